//! What the kernel side did not tell, counted.

use crate::telemetry::metrics::{Metrics, ProgramLabels, ReasonLabels};
use eviction_bpf::{Drained, EventClass};

use super::super::realtime;
use super::BpfMonitor;
use crate::telemetry::queue::BpfLosses;

impl BpfMonitor {
    /// Exports why crossings were not answered.
    pub(crate) fn export_withheld(&mut self, metrics: &Metrics) {
        let Some(withheld) = self.loaded.as_ref().and_then(|(kernel, _)| kernel.withheld().ok()) else {
            return;
        };
        for ((reason, sum), before) in withheld.into_iter().zip(&mut self.withheld) {
            let more = grown(sum, before);
            if more > 0 {
                let labels = ReasonLabels { reason };
                metrics.kernel_kill_suppressed.get_or_create(&labels).inc_by(more);
            }
        }
    }

    /// Exports how often programs were not run; true if a change of the tree may not have been told.
    pub(crate) fn export_runs_missed(&mut self, metrics: &Metrics) -> bool {
        let Some((kernel, _)) = &self.loaded else { return false };
        let mut untold = false;
        for ((family, sum), before) in kernel.runs_missed().into_iter().zip(&mut self.runs_missed) {
            let more = grown(sum, before);
            if more > 0 {
                let labels = ProgramLabels { source: family.name() };
                metrics.bpf_program_runs_missed.get_or_create(&labels).inc_by(more);
                untold |= family == EventClass::Cgroup;
            }
        }
        untold
    }

    /// Exports how many charges were not followed up to the root, as of the last question for losses: lines
    /// above did not hear of them. While there are any, the rung is none that sees every charge.
    pub(crate) fn export_walks_cut(&mut self, metrics: &Metrics) {
        let more = grown(self.losses.lost.walk_cut, &mut self.walks_cut);
        metrics.bpf_paths_truncated.inc_by(more);
        self.is_cut = more > 0;
    }

    /// Lets go of what is loaded, and keeps what it counted last: the next programs begin anew.
    pub(super) fn leave(&mut self, metrics: &Metrics) {
        self.export_withheld(metrics);
        self.export_runs_missed(metrics);
        self.last = self.losses();
        self.export_walks_cut(metrics);
        self.stand_down();
        let Some((kernel, _)) = self.loaded.take() else { return };
        self.numbers = kernel.last_numbers();
        realtime::let_go(kernel);
    }

    /// What was lost in all, if that has grown since the last question.
    pub(crate) fn losses(&mut self) -> Option<BpfLosses> {
        if self.last.is_some() {
            return self.last.take();
        }
        let (kernel, _) = self.loaded.as_ref()?;
        let losses = BpfLosses { lost: kernel.lost().ok()?, invalid: self.invalid, ..self.losses };
        let before = std::mem::replace(&mut self.losses, losses);
        (before.counters() != losses.counters()).then_some(losses)
    }

    /// Counts what came; true if something else did not, or made no sense.
    pub(super) fn count(&mut self, drained: Drained, metrics: &Metrics) -> bool {
        let Drained { events, malformed, why, missed } = drained;
        metrics.bpf_events.inc_by(events);
        if malformed > 0 {
            metrics.bpf_events_invalid.inc_by(malformed);
            self.invalid += malformed;
            tracing::warn!(malformed, why = ?why, "records of an unknown form");
        }
        if missed > 0 {
            tracing::warn!(missed, "records are missing: everything is looked at anew");
        }
        missed > 0 || malformed > 0
    }
}

/// By how much a sum has grown since it was asked for last. One that is smaller was not told in full, and what is
/// missing was counted before.
fn grown(sum: u64, before: &mut u64) -> u64 {
    let more = sum.saturating_sub(*before);
    *before = sum.max(*before);
    more
}

#[cfg(test)]
mod tests {
    use super::grown;

    #[test]
    fn nothing_is_counted_twice() {
        let mut before = 0;
        let more = [3, 3, 0, 5, 2, 6].map(|sum| grown(sum, &mut before));
        assert_eq!(more, [3, 0, 0, 2, 0, 1]);
    }
}
