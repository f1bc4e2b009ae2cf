//! The metrics that the loop touches.
//!
//! A family of metrics is behind a lock that a scrape takes as well, so its members are looked up
//! once; they themselves are atomics.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use crate::core::oom::Oddities;
use crate::core::reading::Reading;
use crate::core::signal::Signal;
use crate::metrics::{IntGauge, Metrics, OutcomeLabels, SignalLabels, TriggerLabels};

use super::super::eyes::Capacity;
use super::wake::Trigger;

/// Kinds of odd records.
const ODD: [&str; 7] =
    ["repeated_kill", "late_kill", "late_end", "unknown_pod", "from_the_future", "nameless_end", "forgotten"];

/// Handles of single metrics.
#[derive(Debug)]
pub(crate) struct Gauges {
    looks: [Counter; Trigger::ALL.len()],
    memory: SignalGauges,
    pids: SignalGauges,
    odd: [IntGauge; ODD.len()],
}

/// Those of one signal.
#[derive(Debug)]
struct SignalGauges {
    labels: SignalLabels,
    unknown: Counter,
    available: Family<SignalLabels, IntGauge>,
    capacity: Family<SignalLabels, IntGauge>,
    /// Made when there is a figure: zero would say that nothing is available.
    known: Option<(IntGauge, IntGauge)>,
}

impl Gauges {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let looks = |trigger: Trigger| {
            let labels = TriggerLabels { trigger: trigger.name() };
            metrics.looks.get_or_create(&labels).clone()
        };
        let odd = |outcome| metrics.odd_records.get_or_create(&OutcomeLabels { outcome }).clone();
        Self {
            looks: Trigger::ALL.map(looks),
            memory: SignalGauges::new(metrics, Signal::MemoryAvailable),
            pids: SignalGauges::new(metrics, Signal::PidAvailable),
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
            let gauge = |family: &Family<_, IntGauge>| family.get_or_create(labels).clone();
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
