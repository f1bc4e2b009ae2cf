//! The metrics that the loop touches.
//!
//! A family of metrics is behind a lock that a scrape takes as well, so its members are looked up
//! once; they themselves are atomics. Of those that are touched seldom every member is made at the
//! start: nobody ever has their lock for himself after that, so that the loop waits for nobody.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family;

use crate::core::oom::{LimitOwner, Oddities};
use crate::core::reading::Reading;
use crate::core::signal::Signal;
use crate::metrics::{
    FamilyLabels, IntGauge, LimitLabels, Metrics, OutcomeLabels, ReasonLabels, SignalLabels, TriggerLabels,
};
use crate::source::bpf::{Family, withheld_reasons};

use super::super::eyes::Capacity;
use super::super::limits::{Counts, OWNERS, Turn};
use super::super::reflex::Idle;
use super::wake::Trigger;

/// Kinds of odd records.
const ODD: [&str; 7] =
    ["repeated_kill", "late_kill", "late_end", "unknown_pod", "from_the_future", "nameless_end", "forgotten"];

/// What became of a refresh of all figures at a glance.
pub(super) const GLANCES: [&str; 4] = ["came", "late", "incomplete", "failed"];

/// What can be said of limits; the first one is that somebody watches.
const LIMIT_STATES: [&str; 3] = ["watched", "armed", "near"];

/// Handles of single metrics.
#[derive(Debug)]
pub(crate) struct Gauges {
    looks: [Counter; Trigger::ALL.len()],
    memory: SignalGauges,
    pids: SignalGauges,
    allocatable: SignalGauges,
    limits: [[IntGauge; LIMIT_STATES.len()]; OWNERS.len()],
    crossings: [[Counter; 2]; OWNERS.len()],
    odd: [IntGauge; ODD.len()],
}

/// Those of one signal.
#[derive(Debug)]
struct SignalGauges {
    labels: SignalLabels,
    unknown: Counter,
    available: family::Family<SignalLabels, IntGauge>,
    capacity: family::Family<SignalLabels, IntGauge>,
    /// Made when there is a figure: zero would say that nothing is available.
    known: Option<(IntGauge, IntGauge)>,
}

impl Gauges {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        make_members(metrics);
        let looks = |trigger: Trigger| {
            let labels = TriggerLabels { trigger: trigger.name() };
            metrics.looks.get_or_create(&labels).clone()
        };
        let limits = |owner: LimitOwner| {
            let labels = |state| LimitLabels { limit_owner: owner.name(), state };
            LIMIT_STATES.map(|state| metrics.limits.get_or_create(&labels(state)).clone())
        };
        let crossings = |owner: LimitOwner| {
            let labels = |state| LimitLabels { limit_owner: owner.name(), state };
            ["near", "away"].map(|state| metrics.limit_crossings.get_or_create(&labels(state)).clone())
        };
        let odd = |outcome| metrics.odd_records.get_or_create(&OutcomeLabels { outcome }).clone();
        Self {
            looks: Trigger::ALL.map(looks),
            memory: SignalGauges::new(metrics, Signal::MemoryAvailable),
            pids: SignalGauges::new(metrics, Signal::PidAvailable),
            allocatable: SignalGauges::new(metrics, Signal::AllocatableMemoryAvailable),
            limits: OWNERS.map(limits),
            crossings: OWNERS.map(crossings),
            odd: ODD.map(odd),
        }
    }

    pub(super) fn look(&self, trigger: Trigger) {
        self.looks[trigger.place()].inc();
    }

    /// Of a signal that is watched here: nobody watches disks.
    pub(super) fn reading(&mut self, signal: Signal, available: Reading<i64>, capacity: Capacity) {
        match signal {
            Signal::PidAvailable => self.pids.set(available, capacity.pids),
            _ => self.memory.set(available, capacity.memory),
        }
    }

    /// What all pods together may still have.
    pub(super) fn allocatable(&mut self, available: i64, limit: u64) {
        self.allocatable.set(Reading::Known(available), limit);
    }

    /// How many limits there are, and how many of them are near.
    pub(super) fn limits(&self, counts: &Counts) {
        let Counts { watched, armed, near } = counts;
        for (place, [of_all, of_armed, of_near]) in self.limits.iter().enumerate() {
            of_all.set(watched[place]);
            of_armed.set(armed[place]);
            of_near.set(near[place]);
        }
    }

    /// A limit came near, or is so no more.
    pub(super) fn limit_crossed(&self, owner: LimitOwner, turn: Turn) {
        let direction = match turn {
            Turn::Near { .. } => 0,
            Turn::Away { .. } => 1,
        };
        let place = OWNERS.iter().position(|it| *it == owner);
        if let Some(counters) = place.and_then(|place| self.crossings.get(place)) {
            counters[direction].inc();
        }
    }

    /// What records made no sense.
    pub(super) fn oddities(&self, oddities: &Oddities) {
        let Oddities {
            repeated_kills,
            late_kills,
            late_ends,
            unknown_pods,
            from_the_future,
            nameless_ends,
            forgotten,
        } = *oddities;
        let counts =
            [repeated_kills, late_kills, late_ends, unknown_pods, from_the_future, nameless_ends, forgotten];
        for (gauge, count) in self.odd.iter().zip(counts) {
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

fn make_members(metrics: &Metrics) {
    for source in Family::ALL.map(Family::name) {
        drop(metrics.runs_missed.get_or_create(&FamilyLabels { source }));
    }
    for reason in withheld_reasons() {
        drop(metrics.reflex_withheld.get_or_create(&ReasonLabels { reason }));
    }
    for reason in Idle::all().map(Idle::name) {
        drop(metrics.reflex_idle.get_or_create(&ReasonLabels { reason }));
    }
    for outcome in GLANCES {
        drop(metrics.glances.get_or_create(&OutcomeLabels { outcome }));
    }
}

impl SignalGauges {
    fn new(metrics: &Metrics, signal: Signal) -> Self {
        let labels = SignalLabels { eviction_signal: signal.name() };
        Self {
            unknown: metrics.unknown.get_or_create(&labels).clone(),
            available: metrics.available.clone(),
            capacity: metrics.capacity.clone(),
            labels,
            known: None,
        }
    }

    fn set(&mut self, left: Reading<i64>, capacity: u64) {
        let Reading::Known(left) = left else {
            self.unknown.inc();
            return;
        };
        let Self { labels, unknown: _, available, capacity: capacities, known } = self;
        let made = || {
            let gauge = |family: &family::Family<_, IntGauge>| family.get_or_create(labels).clone();
            (gauge(available), gauge(capacities))
        };
        let (available, capacities) = known.get_or_insert_with(made);
        available.set(left);
        capacities.set(i64::try_from(capacity).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::reading::Why;

    #[test]
    fn each_trigger_has_its_place() {
        for (place, trigger) in Trigger::ALL.into_iter().enumerate() {
            assert_eq!(trigger.place(), place, "{trigger:?}");
        }
    }

    #[test]
    fn a_figure_that_was_never_known_is_not_shown_as_zero() {
        let metrics = Metrics::new("0", "0");
        let mut gauges = Gauges::new(&metrics);
        let capacity = Capacity { memory: 9, pids: 9 };
        gauges.reading(Signal::MemoryAvailable, Reading::Known(7), capacity);
        gauges.reading(Signal::PidAvailable, Reading::Unknown(Why::Absent), capacity);
        gauges.look(Trigger::Timer);
        let text = metrics.encode().unwrap();
        let line = |line: &str| text.lines().any(|found| found == line);
        assert!(line("eviction_agent_signal_available{eviction_signal=\"memory.available\"} 7"), "{text}");
        assert!(line("eviction_agent_signal_capacity{eviction_signal=\"memory.available\"} 9"), "{text}");
        assert!(!text.contains("eviction_agent_signal_available{eviction_signal=\"pid.available\"}"));
        assert!(line("eviction_agent_signal_unknown_total{eviction_signal=\"pid.available\"} 1"), "{text}");
        assert!(line("eviction_agent_looks_total{trigger=\"timer\"} 1"), "{text}");
        assert!(line("eviction_agent_looks_total{trigger=\"charge\"} 0"), "{text}");
    }
}
