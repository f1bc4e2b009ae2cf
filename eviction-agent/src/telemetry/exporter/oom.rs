//! Kills by the kernel and containers that ended, counted and told.

use jiff::Timestamp;

use crate::telemetry::metrics::{MismatchLabels, OomLabels, TerminationLabels, UnattributedLabels};
use eviction_core::oom::{ContainerEnded, EndedContainer, LimitScope, TerminationCause};
use eviction_core::status_mismatch::MismatchKind;

use super::TelemetryExporter;
use crate::telemetry::event_log::{self, Event};

impl TelemetryExporter {
    /// A group that is killed together may reach over pods; of what is not listed of it, nobody
    /// knows.
    pub(super) fn count_kills(&mut self, kill: &event_log::OomKill) {
        let Self { metrics, .. } = self;
        let namespace = |pod: &Option<event_log::PodRef>| {
            metrics.namespace(pod.as_ref().map_or("", |pod| &*pod.namespace))
        };
        let count = |namespace: String, kills: u64| {
            let limit_scope = kill.limit_scope;
            metrics.oom_kills.get_or_create(&OomLabels { limit_scope, namespace }).inc_by(kills);
        };
        let listed = kill.victims.len() as u64;
        kill.victims.iter().for_each(|victim| count(namespace(&victim.pod), 1));
        count(namespace(&kill.pod), kill.kills().saturating_sub(listed));
        if let Some(kills) = kill.unattributed {
            let labels =
                UnattributedLabels { detected_by: kill.detected_by, namespace: namespace(&kill.pod) };
            metrics.oom_kills_unattributed.get_or_create(&labels).inc_by(kills);
        }
    }

    /// The verdict on a container, and by what its status differs, if that is known.
    pub(super) fn ended(&mut self, ended: EndedContainer, at: Timestamp) {
        let namespace = self.metrics.namespace(&ended.namespace);
        let limit_owner = ended.causes.iter().find_map(|cause| cause.limit_owner);
        let labels = TerminationLabels {
            cause: ended.verdict().name(),
            contributing: ended.also().map_or("", TerminationCause::name),
            limit_scope: limit_owner.map_or("", LimitScope::name),
            namespace: namespace.clone(),
        };
        self.metrics.container_terminations.get_or_create(&labels).inc();
        let differs = self.apart.ended(at, &ended);
        self.count_difference(differs, namespace);
        let mut line = event_log::ContainerTerminated::of(ended, differs);
        line.finished_at = self.clock.shown(line.finished_at);
        self.publish(at, Event::ContainerTerminated(Box::new(line)));
    }

    /// A status that came after the verdict: it is told of if it differs.
    pub(super) fn late_status(&mut self, end: &ContainerEnded, at: Timestamp) {
        let Some(parted) = self.apart.status(at, end) else { return };
        let namespace = self.metrics.namespace(&parted.namespace);
        self.count_difference(Some(parted.difference), namespace);
        self.publish(at, Event::ContainerStatusMismatch(Box::new(parted.into())));
    }

    fn count_difference(&self, differs: Option<MismatchKind>, namespace: String) {
        let Some(difference) = differs.map(MismatchKind::name) else { return };
        let labels = MismatchLabels { difference, namespace };
        self.metrics.container_status_mismatches.get_or_create(&labels).inc();
    }
}
