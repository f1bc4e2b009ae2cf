//! The group of all pods, where a threshold is about what it may have.

use eviction_core::reading::Reading;
use eviction_core::signal::Signal;
use eviction_core::time::nanos;
use eviction_node::notify::sample_interval::SampleSchedule;

use super::ControlLoop;
use eviction_node::clock::Instant;
use eviction_node::sampler::CompleteSample;

impl ControlLoop {
    /// When it is to be read again, if it was read for this look.
    pub(super) fn pace_pods(&mut self, node_sample: &CompleteSample, calm: bool, now_ns: u64) {
        let distance = self.node_sampler.allocatable.distance();
        let SampleSchedule { sample, full } = self.notifier.schedule(distance, calm);
        if node_sample.pods_root.is_some() {
            self.node_sampler.allocatable.wait_until(now_ns.saturating_add(nanos(sample)));
        } else if self.node_sampler.allocatable.due_in_ns(now_ns).is_none_or(|due| due == 0) {
            // There was nothing to read, or it could not be read.
            self.node_sampler.allocatable.wait_until(now_ns.saturating_add(nanos(full)));
        }
        if self.node_sampler.allocatable.may_be_met() {
            // Each look is about it.
            self.node_sampler.allocatable.hurry();
        }
    }

    pub(super) fn note_allocatable(&mut self, node_sample: &CompleteSample, at: Instant) {
        let reading = node_sample.stats.allocatable_memory;
        // It is not read for each look: what was read before stays, with its limit.
        if let (Reading::Known(_), None) = (reading, node_sample.pods_root) {
            return;
        }
        let limit = node_sample.pods_root.map_or(0, |root| root.limit);
        let available = match reading {
            Reading::Known(stats) => {
                Reading::Known(i64::try_from(stats.available.unwrap_or(0)).unwrap_or(i64::MAX))
            }
            Reading::Unknown(why) => Reading::Unknown(why),
        };
        self.note_reading(Signal::AllocatableMemoryAvailable, available, limit, at);
    }
}
