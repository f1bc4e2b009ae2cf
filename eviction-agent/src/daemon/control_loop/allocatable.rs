//! The group of all pods, where a threshold is about what it may have.

use eviction_core::reading::Reading;
use eviction_core::signal::Signal;
use eviction_core::time::nanos;
use eviction_node::sample_interval;

use super::super::limit_monitor::LimitWatch;
use super::super::notify_plan::{self, GrowthSource, MinRearm};
use super::ControlLoop;
use super::limits::DetectedBy;
use eviction_node::allocatable::PodsRootSample;
use eviction_node::clock::Instant;
use eviction_node::sampler::CompleteSample;

impl ControlLoop {
    /// Arms it at its thresholds and at its own limit, if it was read for this look.
    pub(super) fn arm_pods(&mut self, look: &CompleteSample, rung: GrowthSource, floor: MinRearm) {
        let Some(PodsRootSample { id, seen, limit }) = look.pods_root else { return };
        self.take_figures(id, seen, limit, DetectedBy::LOOK);
        let own = self.limits.find(id).map(LimitWatch::line);
        let lines = self.eyes.allocatable.lines(self.engine.policy(), limit).working_sets(limit);
        let arming = notify_plan::plan(rung, floor, seen, lines.chain(own));
        self.hook.arm(id, &arming);
        self.eyes.allocatable.note_armed(arming.usage_below.is_some());
    }

    /// When it is to be read again, if it was read for this look.
    pub(super) fn pace_pods(&mut self, look: &CompleteSample, rung: GrowthSource, calm: bool, now_ns: u64) {
        let distance = self.eyes.allocatable.distance();
        let sample_interval::SampleSchedule { sample, full } = match rung.sees_every_charge {
            true => sample_interval::due_when_told(distance, &self.rate, calm),
            false => sample_interval::due(distance, &self.rate, calm),
        };
        if look.pods_root.is_some() {
            self.eyes.allocatable.wait_until(now_ns.saturating_add(nanos(sample)));
        } else if self.eyes.allocatable.due_in_ns(now_ns).is_none_or(|due| due == 0) {
            // There was nothing to read, or it could not be read.
            self.eyes.allocatable.wait_until(now_ns.saturating_add(nanos(full)));
        }
        if self.eyes.allocatable.may_be_met() {
            // Each look is about it.
            self.eyes.allocatable.hurry();
        }
    }

    pub(super) fn note_allocatable(&mut self, look: &CompleteSample, at: Instant) {
        let reading = look.stats.allocatable_memory;
        // It is not read for each look: what was read before stays, with its limit.
        if let (Reading::Known(_), None) = (reading, look.pods_root) {
            return;
        }
        let limit = look.pods_root.map_or(0, |root| root.limit);
        let available = match reading {
            Reading::Known(stats) => {
                Reading::Known(i64::try_from(stats.available.unwrap_or(0)).unwrap_or(i64::MAX))
            }
            Reading::Unknown(why) => Reading::Unknown(why),
        };
        self.note_reading(Signal::AllocatableMemoryAvailable, available, limit, at);
    }
}
