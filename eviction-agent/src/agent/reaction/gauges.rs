//! The metrics that the control loop touches.
//!
//! A family is behind a lock that a scrape takes as well, so its series are looked up once; they themselves
//! are atomics. Of those that are touched seldom every series is made at the start, so that the loop
//! never waits for the lock.

use prometheus_client::metrics::counter::Counter;

use crate::core::oom::{LimitOwner, Oddities};
use crate::core::reading::{Reading, Why};
use crate::core::signal::{Resource, Signal};
use crate::metrics::{
    Family, IntGauge, LimitLabels, Metrics, OptionalGauge, ProgramLabels, ReasonLabels, SignalLabels,
    TriggerLabels,
};
use crate::source::bpf::{self, withheld_reasons};

use super::super::limits::{Counts, OWNERS, Turn};
use super::super::reflex::Idle;
use super::wake::Trigger;

/// Kinds of anomalies.
const ANOMALIES: [&str; 7] = [
    "repeated_kill",
    "late_kill",
    "late_termination",
    "unknown_pod",
    "future_time",
    "nameless_termination",
    "forgotten",
];

/// States of limits.
const LIMIT_STATES: [&str; 3] = ["watched", "armed", "near"];

/// Handles of single series.
#[derive(Debug)]
pub(crate) struct Gauges {
    syncs: [Counter; Trigger::ALL.len()],
    signals: [SignalSeries; Signal::COUNT],
    limits: [[IntGauge; LIMIT_STATES.len()]; OWNERS.len()],
    transitions: [[Counter; 2]; OWNERS.len()],
    anomalies: [Counter; ANOMALIES.len()],
}

/// Those of one signal.
#[derive(Debug)]
struct SignalSeries {
    errors: Counter,
    available: OptionalGauge,
    capacity: OptionalGauge,
}

impl Gauges {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        make_series(metrics);
        let syncs = |trigger: Trigger| {
            let labels = TriggerLabels { trigger: trigger.name() };
            metrics.syncs.get_or_create(&labels)
        };
        let limits = |owner: LimitOwner| {
            let labels = |state| LimitLabels { level: owner.name(), state };
            LIMIT_STATES.map(|state| metrics.memory_limits.get_or_create(&labels(state)))
        };
        let transitions = |owner: LimitOwner| {
            let labels = |state| LimitLabels { level: owner.name(), state };
            ["near", "away"].map(|state| metrics.memory_limit_transitions.get_or_create(&labels(state)))
        };
        let anomalies = |reason| metrics.oom_record_anomalies.get_or_create(&ReasonLabels { reason });
        Self {
            syncs: Trigger::ALL.map(syncs),
            signals: Signal::ALL.map(|signal| SignalSeries::new(metrics, signal)),
            limits: OWNERS.map(limits),
            transitions: OWNERS.map(transitions),
            anomalies: ANOMALIES.map(anomalies),
        }
    }

    pub(super) fn look(&self, trigger: Trigger) {
        self.syncs[trigger.place()].inc();
    }

    /// What was read of a signal, and the capacity that it is compared with.
    pub(super) fn reading(&mut self, signal: Signal, available: Reading<i64>, capacity: u64) {
        self.signals[signal as usize].set(available, capacity);
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
        if let Some(counters) = place.and_then(|place| self.transitions.get(place)) {
            counters[direction].inc();
        }
    }

    /// How many records made no sense since the start.
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
        for (counter, count) in self.anomalies.iter().zip(counts) {
            counter.inc_by(count.saturating_sub(counter.get()));
        }
    }
}

fn make_series(metrics: &Metrics) {
    for source in bpf::Family::ALL.map(bpf::Family::name) {
        metrics.bpf_program_runs_missed.get_or_create(&ProgramLabels { source });
    }
    for reason in withheld_reasons() {
        metrics.kernel_kill_suppressed.get_or_create(&ReasonLabels { reason });
    }
    for reason in Idle::all().map(Idle::name) {
        metrics.kernel_kill_not_armed.get_or_create(&ReasonLabels { reason });
    }
}

impl SignalSeries {
    fn new(metrics: &Metrics, signal: Signal) -> Self {
        let labels = SignalLabels { eviction_signal: signal.name() };
        let of = |[bytes, inodes, pids]: [&Family<SignalLabels, OptionalGauge>; 3]| {
            match signal.resource() {
                Resource::Memory | Resource::EphemeralStorage => bytes,
                Resource::Inodes => inodes,
                Resource::Pids => pids,
            }
            .get_or_create(&labels)
        };
        Self {
            errors: metrics.signal_read_errors.get_or_create(&labels),
            available: of([
                &metrics.signal_available_bytes,
                &metrics.signal_available_inodes,
                &metrics.signal_available_pids,
            ]),
            capacity: of([
                &metrics.signal_capacity_bytes,
                &metrics.signal_capacity_inodes,
                &metrics.signal_capacity_pids,
            ]),
        }
    }

    /// A signal that is not known has no series. That it is absent is an error only if it was known: the
    /// kubelet has no figure of pods without a limit either.
    fn set(&self, available: Reading<i64>, capacity: u64) {
        match available {
            Reading::Known(available) => {
                self.available.set(Some(available));
                self.capacity.set(Some(i64::try_from(capacity).unwrap_or(i64::MAX)));
            }
            Reading::Unknown(why) => {
                if why != Why::Absent || self.available.get().is_some() {
                    self.errors.inc();
                }
                self.available.set(None);
                self.capacity.set(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trigger_has_its_place() {
        for (place, trigger) in Trigger::ALL.into_iter().enumerate() {
            assert_eq!(trigger.place(), place, "{trigger:?}");
        }
    }

    fn unit(signal: Signal) -> &'static str {
        match signal.resource() {
            Resource::Memory | Resource::EphemeralStorage => "bytes",
            Resource::Inodes => "inodes",
            Resource::Pids => "pids",
        }
    }

    #[test]
    fn a_signal_that_becomes_unknown_loses_its_series_and_counts_an_error() {
        for signal in Signal::ALL {
            let metrics = Metrics::new("0", "0");
            let mut gauges = Gauges::new(&metrics);
            let has = |line: String| metrics.encode().unwrap().lines().any(|found| found == line);
            let available = |value: &str| {
                format!(
                    "eviction_agent_signal_available_{}{{eviction_signal=\"{signal}\"}}{value}",
                    unit(signal)
                )
            };
            let capacity = |value: &str| available(value).replace("available_", "capacity_");
            let errors = |count: u32| {
                format!("eviction_agent_signal_read_errors_total{{eviction_signal=\"{signal}\"}} {count}")
            };
            assert!(!metrics.encode().unwrap().contains(&available("")), "{signal}: it was never known");
            gauges.reading(signal, Reading::Unknown(Why::Absent), 9);
            assert!(has(errors(0)), "{signal}: it was never there");
            gauges.reading(signal, Reading::Known(7), 9);
            assert!(has(available(" 7")) && has(capacity(" 9")) && has(errors(0)), "{signal}");
            gauges.reading(signal, Reading::Unknown(Why::Absent), 9);
            let text = metrics.encode().unwrap();
            assert!(!text.contains(&available("")) && !text.contains(&capacity("")), "{signal}: {text}");
            assert!(has(errors(1)), "{signal}: it went");
            gauges.reading(signal, Reading::Unknown(Why::Failed), 9);
            assert!(has(errors(2)), "{signal}: it could not be read");
            gauges.reading(signal, Reading::Known(5), 9);
            assert!(has(available(" 5")) && has(errors(2)), "{signal}: it is known again");
        }
    }

    #[test]
    fn each_trigger_is_counted_from_zero() {
        let metrics = Metrics::new("0", "0");
        let gauges = Gauges::new(&metrics);
        gauges.look(Trigger::Timer);
        let text = metrics.encode().unwrap();
        assert!(text.contains("\neviction_agent_syncs_total{trigger=\"timer\"} 1\n"), "{text}");
        assert!(text.contains("\neviction_agent_syncs_total{trigger=\"charge\"} 0\n"), "{text}");
    }
}
