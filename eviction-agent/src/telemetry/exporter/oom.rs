//! Counts and publishes OOM kills and terminated containers.

use jiff::Timestamp;

use crate::telemetry::metrics::Label;
use eviction_core::oom::{
    ContainerStatusMismatch, ContainerTerminated, LimitScope, MismatchKind, OomKill, TerminationCause,
};
use eviction_core::pod_ref::PodRef;

use super::TelemetryExporter;
use crate::telemetry::event_log::Event;

impl TelemetryExporter {
    /// The victims of a group kill may be in several pods; those that are not listed count for the first one's.
    pub(super) fn count_kills(&mut self, kill: &OomKill) {
        let limit_scope = kill.limit_scope.name();
        let count = |pod: Option<&PodRef>, kills: u64| {
            self.metrics.oom_kills.with([limit_scope.into(), self.namespace_of(pod)]).inc_by(kills);
        };
        let victims = kill.group.as_ref().map_or(&[][..], |group| &group.victims);
        victims.iter().for_each(|victim| count(victim.pod.as_ref(), 1));
        count(kill.pod.as_ref(), kill.kills().saturating_sub(victims.len() as u64));
        if let Some(kills) = kill.unattributed {
            let namespace = self.namespace_of(kill.pod.as_ref());
            self.metrics.oom_kills_unattributed.with([kill.detected_by.into(), namespace]).inc_by(kills);
        }
    }

    pub(super) fn terminated(&mut self, mut terminated: Box<ContainerTerminated>, at: Timestamp) {
        let namespace = self.namespace_of(terminated.container.pod.as_ref());
        let contributing = terminated.contributing().next().map_or("", TerminationCause::name);
        let limit_scope = terminated.limit_scope().map_or("", LimitScope::name);
        let labels =
            [terminated.cause().name().into(), contributing.into(), limit_scope.into(), namespace.clone()];
        self.metrics.container_terminations.with(labels).inc();
        if let Some(mismatch) = terminated.mismatch {
            self.count_mismatch(mismatch, namespace);
        }
        terminated.finished_at = self.clock.shown(terminated.finished_at);
        self.publish(at, Event::ContainerTerminated(terminated));
    }

    pub(super) fn status_mismatch(&mut self, mismatch: Box<ContainerStatusMismatch>, at: Timestamp) {
        self.count_mismatch(mismatch.mismatch, self.namespace_of(mismatch.container.pod.as_ref()));
        self.publish(at, Event::ContainerStatusMismatch(mismatch));
    }

    fn namespace_of(&self, pod: Option<&PodRef>) -> Label {
        self.metrics.namespace(pod.map_or("", |pod| &pod.namespace))
    }

    fn count_mismatch(&self, mismatch: MismatchKind, namespace: Label) {
        self.metrics.container_status_mismatches.with([mismatch.name().into(), namespace]).inc();
    }
}
