//! What the BPF programs did not report, counted.

use crate::telemetry::metrics::{Metrics, ProgramLabels, ReasonLabels};
use crate::telemetry::queue::BpfLosses;
use eviction_bpf::{BpfHandle, Drained, EventClass, LossCounters, WITHHELD_REASONS};

/// The counters of the programs as they were read last.
#[derive(Debug, Default)]
pub(super) struct ProgramCounters {
    pub(super) totals: BpfLosses,
    /// The last of programs that were unloaded.
    unloaded: Option<BpfLosses>,
    invalid: u64,
    suppressed: [u64; WITHHELD_REASONS],
    runs_missed: [u64; EventClass::ALL.len()],
    paths_truncated: u64,
    /// Some charges were not followed up to the root lately: thresholds above do not see every charge.
    pub(super) is_truncating: bool,
}

impl ProgramCounters {
    /// Other programs are loaded.
    pub(super) fn restart(&mut self) {
        let Self { totals: BpfLosses { lost: _, invalid, programs }, unloaded, invalid: all_invalid, .. } =
            *self;
        let totals = BpfLosses { lost: LossCounters::default(), invalid, programs: programs + 1 };
        *self = Self { totals, unloaded, invalid: all_invalid, ..Self::default() };
    }

    /// The programs are unloaded: exports what they counted last.
    pub(super) fn unload(&mut self, handle: &BpfHandle, metrics: &Metrics) {
        self.export_suppressed(handle, metrics);
        self.export_runs(handle, metrics);
        self.unloaded = self.read_losses(Some(handle));
    }

    /// Exports the reasons for which an armed kill order was not carried out.
    pub(super) fn export_suppressed(&mut self, handle: &BpfHandle, metrics: &Metrics) {
        let Ok(suppressed) = handle.withheld() else { return };
        for ((reason, sum), before) in suppressed.into_iter().zip(&mut self.suppressed) {
            let more = grown(sum, before);
            if more > 0 {
                metrics.kernel_kill_suppressed.get_or_create(&ReasonLabels { reason }).inc_by(more);
            }
        }
    }

    /// Exports how often programs were not run and paths were truncated; true if a change of the cgroup tree may not
    /// have been reported.
    pub(super) fn export_runs(&mut self, handle: &BpfHandle, metrics: &Metrics) -> bool {
        let mut is_tree_missed = false;
        for ((class, sum), before) in handle.runs_missed().into_iter().zip(&mut self.runs_missed) {
            let more = grown(sum, before);
            if more > 0 {
                metrics
                    .bpf_program_runs_missed
                    .get_or_create(&ProgramLabels { source: class.name() })
                    .inc_by(more);
                is_tree_missed |= class == EventClass::Cgroup;
            }
        }
        if let Ok(counters) = handle.lost() {
            let more = grown(counters.walk_cut, &mut self.paths_truncated);
            metrics.bpf_paths_truncated.inc_by(more);
            self.is_truncating = more > 0;
        }
        is_tree_missed
    }

    /// Returns what was lost in all, if that has grown since the last call.
    pub(super) fn read_losses(&mut self, handle: Option<&BpfHandle>) -> Option<BpfLosses> {
        if self.unloaded.is_some() {
            return self.unloaded.take();
        }
        let totals = BpfLosses { lost: handle?.lost().ok()?, invalid: self.invalid, ..self.totals };
        let before = std::mem::replace(&mut self.totals, totals);
        (before.counters() != totals.counters()).then_some(totals)
    }

    /// Counts events; true if others are missing or could not be decoded.
    pub(super) fn count(&mut self, drained: Drained, metrics: &Metrics) -> bool {
        let Drained { events, malformed, why, missed } = drained;
        metrics.bpf_events.inc_by(events);
        if malformed > 0 {
            metrics.bpf_events_invalid.inc_by(malformed);
            self.invalid += malformed;
            tracing::warn!(malformed, why = ?why, "BPF events that cannot be decoded");
        }
        if missed > 0 {
            tracing::warn!(missed, "BPF events are missing: a full sample follows");
        }
        missed > 0 || malformed > 0
    }
}

/// Returns by how much a sum has grown since the last call. A smaller one was not read in full, and what is missing
/// was counted before.
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
