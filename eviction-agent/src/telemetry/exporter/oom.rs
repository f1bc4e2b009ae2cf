//! Counts and publishes OOM kills and terminated containers.

use jiff::Timestamp;

use crate::telemetry::metrics::{MismatchLabels, OomLabels, TerminationLabels, UnattributedLabels};
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
            let labels = OomLabels { limit_scope, namespace: self.namespace_of(pod) };
            self.metrics.oom_kills.get_or_create(&labels).inc_by(kills);
        };
        let victims = kill.group.as_ref().map_or(&[][..], |group| &group.victims);
        victims.iter().for_each(|victim| count(victim.pod.as_ref(), 1));
        count(kill.pod.as_ref(), kill.kills().saturating_sub(victims.len() as u64));
        if let Some(kills) = kill.unattributed {
            let namespace = self.namespace_of(kill.pod.as_ref());
            let labels = UnattributedLabels { detected_by: kill.detected_by, namespace };
            self.metrics.oom_kills_unattributed.get_or_create(&labels).inc_by(kills);
        }
    }

    pub(super) fn terminated(&mut self, mut terminated: Box<ContainerTerminated>, at: Timestamp) {
        let namespace = self.namespace_of(terminated.container.pod.as_ref());
        let labels = TerminationLabels {
            cause: terminated.cause().name(),
            contributing: terminated.contributing().next().map_or("", TerminationCause::name),
            limit_scope: terminated.limit_scope().map_or("", LimitScope::name),
            namespace: namespace.clone(),
        };
        self.metrics.container_terminations.get_or_create(&labels).inc();
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

    fn namespace_of(&self, pod: Option<&PodRef>) -> String {
        self.metrics.namespace(pod.map_or("", |pod| &pod.namespace))
    }

    fn count_mismatch(&self, mismatch: MismatchKind, namespace: String) {
        let labels = MismatchLabels { difference: mismatch.name(), namespace };
        self.metrics.container_status_mismatches.get_or_create(&labels).inc();
    }
}
