//! The metrics that the control loop touches.
//!
//! A family is behind a lock that a scrape takes as well, so the loop looks up the series that each sync needs once.
//! The series are atomics. All series of the other families are created at the start: then the lock is only read,
//! and the loop never waits for it.

use prometheus_client::metrics::counter::Counter;

use crate::telemetry::metrics::{Metrics, OptionalGauge};
use eviction_core::engine::kernel_kill::NotArmedReason;
use eviction_core::observation::Observation;
use eviction_core::oom::AnomalyCounts;
use eviction_core::policy::preferences::MemoryMeasure;
use eviction_core::policy::{Policy, Threshold};
use eviction_core::reading::{Reading, UnknownReason};
use eviction_core::signal::Signal;
use eviction_core::trend::Trend;
use eviction_core::units::ThresholdValue;

use super::super::limit_monitor::{LimitMonitor, OWNERS};
use eviction_node::sampler::MEASURES;

use super::super::memory_notifier::Trigger;

/// Handles of single series.
#[derive(Debug)]
pub(crate) struct Gauges {
    syncs: [Counter; Trigger::ALL.len()],
    signals: [SignalSeries; Signal::COUNT],
    by_measure: [OptionalGauge; MEASURES.len()],
}

/// The series of one signal.
#[derive(Debug)]
struct SignalSeries {
    errors: Counter,
    available: OptionalGauge,
    capacity: OptionalGauge,
    thresholds: Vec<ThresholdSeries>,
    trend: Trend,
}

/// The series of one threshold.
#[derive(Debug)]
struct ThresholdSeries {
    value: ThresholdValue,
    value_gauge: OptionalGauge,
    /// The time until the threshold is met; only for the agent's thresholds.
    eta: Option<OptionalGauge>,
}

impl Gauges {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        for reason in NotArmedReason::ALL {
            metrics.kernel_kill_not_armed.with([reason.name()]);
        }
        LimitMonitor::default().export(metrics);
        for (owner, state) in
            OWNERS.into_iter().flat_map(|owner| ["near", "away"].map(|state| (owner, state)))
        {
            metrics.memory_limit_transitions.with([owner.name(), state]);
        }
        count_anomalies(metrics, &AnomalyCounts::default());
        Self {
            syncs: Trigger::ALL.map(|trigger| metrics.syncs.with([trigger.name()])),
            signals: Signal::ALL.map(|signal| SignalSeries::new(metrics, signal)),
            by_measure: MEASURES.map(|measure| metrics.memory_available.with([measure_name(measure)])),
        }
    }

    pub(super) fn count_sync(&self, trigger: Trigger) {
        self.syncs[trigger as usize].inc();
    }

    /// Sets the reading of a signal.
    pub(super) fn set_reading(&mut self, signal: Signal, reading: Reading<Observation>) {
        self.signals[signal as usize].set(reading);
    }

    /// Sets the available memory by each of [`MEASURES`].
    pub(super) fn set_by_measure(&self, readings: &[Reading<i64>; MEASURES.len()]) {
        for (gauge, reading) in self.by_measure.iter().zip(readings) {
            gauge.set(reading.known());
        }
    }

    /// Exports the thresholds of a policy. Takes the locks of their families: at a start, and when the
    /// configuration changes.
    pub(crate) fn set_policy(&mut self, policy: &Policy, metrics: &Metrics) {
        let labels_of = |threshold: &Threshold| [threshold.signal.name(), threshold.kind()];
        let wanted: Vec<_> = policy.thresholds.iter().map(labels_of).collect();
        for family in [&metrics.threshold_met, &metrics.threshold_eta] {
            family.retain(|labels| wanted.iter().any(|it| it == labels));
        }
        for family in [&metrics.threshold_bytes, &metrics.threshold_inodes, &metrics.threshold_pids] {
            family.retain(|_| false);
        }
        self.signals.iter_mut().for_each(|series| series.thresholds.clear());
        let agent = policy.thresholds.iter().map(|threshold| (threshold, "agent"));
        let kubelet = policy.kubelet_thresholds.iter().map(|threshold| (threshold, "kubelet"));
        for (threshold, source) in agent.chain(kubelet) {
            let labels = labels_of(threshold);
            let series = &mut self.signals[threshold.signal as usize];
            let eta = (source == "agent").then(|| {
                let met = OptionalGauge::only_with(&series.available);
                met.set(Some(0));
                metrics.threshold_met.add(labels, met);
                metrics.threshold_eta.with(labels)
            });
            let [signal, kind] = labels;
            let value_gauge = metrics.threshold_values(threshold.signal).with([signal, kind, source]);
            let value = threshold.value.clone();
            let of_threshold = ThresholdSeries { value, value_gauge, eta };
            of_threshold.resolve(series.capacity.get());
            series.thresholds.push(of_threshold);
        }
    }
}

/// Exports the totals of records that were late, repeated or implausible.
pub(super) fn count_anomalies(metrics: &Metrics, anomalies: &AnomalyCounts) {
    let AnomalyCounts {
        repeated_kills,
        late_kills,
        late_ends,
        unknown_pods,
        from_the_future,
        nameless_ends,
        forgotten,
    } = *anomalies;
    for (reason, total) in [
        ("repeated_kill", repeated_kills),
        ("late_kill", late_kills),
        ("late_termination", late_ends),
        ("unknown_pod", unknown_pods),
        ("future_time", from_the_future),
        ("nameless_termination", nameless_ends),
        ("forgotten", forgotten),
    ] {
        let counter = metrics.oom_record_anomalies.with([reason]);
        counter.inc_by(total.saturating_sub(counter.get()));
    }
}

fn measure_name(measure: MemoryMeasure) -> &'static str {
    match measure {
        MemoryMeasure::WorkingSet => "working_set",
        MemoryMeasure::MemAvailable => "mem_available",
        MemoryMeasure::WorkingSetMinusActiveFile => "working_set_minus_active_file",
    }
}

impl SignalSeries {
    fn new(metrics: &Metrics, signal: Signal) -> Self {
        Self {
            errors: metrics.signal_read_errors.with([signal.name()]),
            available: metrics.signal_available(signal).with([signal.name()]),
            capacity: metrics.signal_capacity(signal).with([signal.name()]),
            thresholds: Vec::new(),
            trend: Trend::default(),
        }
    }

    /// Sets the series of the signal. A signal that is unknown has no series. An absent value is an error only
    /// if it was known before: the kubelet has no value for pods without a limit either.
    fn set(&mut self, reading: Reading<Observation>) {
        match reading {
            Reading::Known(Observation { available, capacity, time }) => {
                self.available.set(Some(available));
                if self.capacity.get() != Some(capacity) {
                    self.capacity.set(Some(capacity));
                    self.thresholds.iter().for_each(|it| it.resolve(Some(capacity)));
                }
                if self.thresholds.is_empty() {
                    return;
                }
                // A value that was not read again has the same time, and does not count twice.
                if let Some(time) = time {
                    self.trend.observe(time, available);
                }
                let per_second = self.trend.slope().map_or(0.0, |slope| slope.per_second);
                for threshold in &self.thresholds {
                    threshold.set_eta(available, per_second);
                }
            }
            Reading::Unknown(why) => {
                if why != UnknownReason::Absent || self.available.get().is_some() {
                    self.errors.inc();
                }
                self.available.set(None);
                self.capacity.set(None);
                self.trend = Trend::default();
                self.thresholds.iter().for_each(|it| it.resolve(None));
            }
        }
    }
}

impl ThresholdSeries {
    /// Resolves the threshold value. A percentage of an unknown capacity is unknown.
    fn resolve(&self, capacity: Option<i64>) {
        let value = match (&self.value, capacity) {
            (ThresholdValue::Percentage(_), None) => None,
            (value, capacity) => Some(value.quantity(capacity.unwrap_or(0)).value()),
        };
        self.value_gauge.set(value);
        if let (Some(eta), None) = (&self.eta, capacity) {
            eta.set(None);
        }
    }

    fn set_eta(&self, available: i64, per_second: f64) {
        let Some(eta) = &self.eta else { return };
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let left = available.saturating_sub(self.value_gauge.get().unwrap_or(0)).max(0) as f64;
        eta.set_f64(Some(match per_second {
            _ if left == 0.0 => 0.0,
            falling if falling < 0.0 => left / -falling,
            _ => f64::INFINITY,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::Form;
    use eviction_core::fixture::{at, hard, policy};
    use eviction_core::signal::Resource;

    fn text(metrics: &Metrics) -> String {
        metrics.encode(Form::OpenMetrics).unwrap()
    }

    fn has_line(metrics: &Metrics, line: &str) -> bool {
        text(metrics).lines().any(|found| found == line)
    }

    fn read(available: i64, capacity: i64, second: i64) -> Reading<Observation> {
        Reading::Known(Observation { available, capacity, time: Some(at(second)) })
    }

    #[test]
    fn each_trigger_is_at_the_index_of_its_value() {
        for (place, trigger) in Trigger::ALL.into_iter().enumerate() {
            assert_eq!(trigger as usize, place, "{trigger:?}");
        }
    }

    #[test]
    fn available_memory_has_a_series_for_each_known_measure() {
        let metrics = Metrics::new("0", "0");
        let gauges = Gauges::new(&metrics);
        let samples = || {
            let text = text(&metrics);
            let lines =
                text.lines().filter_map(|line| line.strip_prefix("eviction_agent_memory_available_bytes{"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(samples().is_empty());
        gauges.set_by_measure(&[
            Reading::Known(1),
            Reading::Unknown(UnknownReason::Absent),
            Reading::Known(3),
        ]);
        let known = ["measure=\"working_set\"} 1", "measure=\"working_set_minus_active_file\"} 3"];
        assert_eq!(samples(), known);
        gauges.set_by_measure(&[Reading::Unknown(UnknownReason::Absent); 3]);
        assert!(samples().is_empty());
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
            let quarter = hard(signal, "25%");
            gauges.set_policy(&policy(vec![quarter]), &metrics);
            let has = |line: String| has_line(&metrics, &line);
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
            assert!(!text(&metrics).contains(&available("")), "{signal}: it was never known");
            gauges.set_reading(signal, Reading::Unknown(UnknownReason::Absent));
            assert!(has(errors(0)), "{signal}: it was never there");
            gauges.set_reading(signal, read(7, 9, 0));
            assert!(has(available(" 7")) && has(capacity(" 9")) && has(errors(0)), "{signal}");
            gauges.set_reading(signal, Reading::Unknown(UnknownReason::Absent));
            let text = text(&metrics);
            assert!(!text.contains(&available("")) && !text.contains(&capacity("")), "{signal}: {text}");
            assert!(
                !text.lines().any(|line| line.starts_with("eviction_agent_threshold")),
                "{signal}: {text}"
            );
            assert!(has(errors(1)), "{signal}: it went");
            gauges.set_reading(signal, Reading::Unknown(UnknownReason::Failed));
            assert!(has(errors(2)), "{signal}: it could not be read");
            gauges.set_reading(signal, read(5, 9, 0));
            assert!(has(available(" 5")) && has(errors(2)), "{signal}: it is known again");
        }
    }

    #[test]
    fn each_trigger_is_counted_from_zero() {
        let metrics = Metrics::new("0", "0");
        let gauges = Gauges::new(&metrics);
        gauges.count_sync(Trigger::Timer);
        let text = text(&metrics);
        assert!(text.contains("\neviction_agent_syncs_total{trigger=\"timer\"} 1\n"), "{text}");
        assert!(text.contains("\neviction_agent_syncs_total{trigger=\"charge\"} 0\n"), "{text}");
    }

    #[test]
    fn thresholds_are_exported_with_the_time_until_they_are_met() {
        let metrics = Metrics::new("0", "0");
        let mut gauges = Gauges::new(&metrics);
        let signal = Signal::MemoryAvailable;
        let mut policy = policy(vec![hard(signal, "200")]);
        policy.kubelet_thresholds = vec![hard(signal, "10%")];
        gauges.set_policy(&policy, &metrics);
        let of = |source: &str| {
            format!(
                "eviction_agent_threshold_bytes{{eviction_signal=\"{signal}\",threshold=\"hard\",source=\"{source}\"}}"
            )
        };
        assert!(has_line(&metrics, &format!("{} 200", of("agent"))), "{}", text(&metrics));
        assert!(!text(&metrics).contains(&of("kubelet")), "a share of what is not known");
        let eta = metrics.threshold_eta.with([signal.name(), "hard"]);
        for second in 0..10 {
            gauges.set_reading(signal, read(900, 1000, second));
        }
        assert!(has_line(&metrics, &format!("{} 100", of("kubelet"))));
        assert_eq!(eta.get_f64(), Some(f64::INFINITY), "nothing grows");
        for second in 0..20 {
            // Each value is reported again before the next one is read.
            for _ in 0..3 {
                gauges.set_reading(signal, read(900 - 10 * second, 1000, 100 + second));
            }
        }
        let left = eta.get_f64().unwrap();
        assert!((50.0..53.0).contains(&left), "{left}");
        gauges.set_reading(signal, read(150, 1000, 200));
        assert_eq!(eta.get_f64(), Some(0.0), "it is met");
        policy.thresholds.clear();
        gauges.set_policy(&policy, &metrics);
        assert!(!text(&metrics).contains(&of("agent")), "a threshold that is gone has no series");
    }
}
