//! Pressure stall information of the machine, read at each scrape.

use std::fmt;
use std::path::PathBuf;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Unit;

use super::{Family, PressureLabels, SecondsCounter};
use eviction_core::reading::Reading;
use eviction_node::proc::pressure::{PsiLine, parse_pressure};

const RESOURCES: [&str; 3] = ["cpu", "io", "memory"];

/// Longer than any file of the kernel, so that one that is no such file is not read whole.
const LONGEST: usize = 4096;

/// Reads a folder such as `/proc/pressure`; what cannot be read has no series.
#[derive(Debug)]
pub(super) struct Pressure {
    folder: PathBuf,
    waiting: Family<PressureLabels, SecondsCounter>,
    stalled: Family<PressureLabels, SecondsCounter>,
}

impl Pressure {
    pub(super) fn of(folder: PathBuf) -> Self {
        Self { folder, waiting: Family::default(), stalled: Family::default() }
    }

    fn read(&self) {
        for resource in RESOURCES {
            let text = std::fs::read(self.folder.join(resource)).unwrap_or_default();
            let pressure = parse_pressure(text.get(..LONGEST).unwrap_or(&text));
            set(&self.waiting, resource, pressure.some);
            // The kernel defines no full stall of the machine for the CPU, and writes 0.
            if resource != "cpu" {
                set(&self.stalled, resource, pressure.full);
            }
        }
    }
}

fn set(family: &Family<PressureLabels, SecondsCounter>, resource: &'static str, stall: PsiLine) {
    let labels = PressureLabels { resource };
    match stall.total_us {
        Reading::Known(total) => {
            // The kernel counts since boot: a later begin would make all of it an increase.
            let boot = super::process::started(0.0).unwrap_or_default();
            let counter: Counter<f64, _> = family.get_or_create_as_of(&labels, boot);
            #[expect(clippy::cast_precision_loss, reason = "seconds for a metric")]
            let seconds = total as f64 / 1e6;
            counter.inner().store(seconds.to_bits(), std::sync::atomic::Ordering::Relaxed);
        }
        Reading::Unknown(_) => family.remove(&labels),
    }
}

impl Collector for Pressure {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.read();
        for (name, help, family) in [
            (
                "pressure_waiting",
                "Time in which some task waited for the resource, since boot.",
                &self.waiting,
            ),
            (
                "pressure_stalled",
                "Time in which all tasks waited for the resource, since boot.",
                &self.stalled,
            ),
        ] {
            family.encode(encoder.encode_descriptor(
                name,
                help,
                Some(&Unit::Seconds),
                family.metric_type(),
            )?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;
    use std::fs;

    use super::super::exposition;
    use super::*;

    #[test]
    fn counters_begin_with_the_boot() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("io"), "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n").unwrap();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Pressure::of(folder.path().to_owned())));
        let mut written = String::new();
        text::encode(&mut written, &registry).unwrap();
        let written = exposition::arrange(&written, 0.0);
        let created =
            written.lines().find(|line| line.starts_with("pressure_waiting_seconds_created")).unwrap();
        let created: f64 = created.rsplit(' ').next().unwrap().parse().unwrap();
        let boot = super::super::process::started(0.0).unwrap();
        assert!((created - boot).abs() < 5.0, "{created} {boot}");
    }

    #[test]
    fn totals_of_the_kernel_are_counters_and_what_is_not_there_has_no_series() {
        let folder = tempfile::tempdir().unwrap();
        let write = |resource: &str, text: &str| fs::write(folder.path().join(resource), text).unwrap();
        let line =
            |kind: &str, total: u64| format!("{kind} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n");
        write("memory", &(line("some", 1_500_000) + &line("full", 250_000)));
        write("cpu", &(line("some", 3_000_000) + &line("full", 0)));
        let mut registry = Registry::default();
        registry
            .sub_registry_with_prefix("eviction_agent")
            .register_collector(Box::new(Pressure::of(folder.path().to_owned())));
        let scrape = || {
            let mut written = String::new();
            text::encode(&mut written, &registry).unwrap();
            let written = exposition::arrange(&written, 0.0);
            let samples = written.lines().filter(|line| !line.starts_with('#') && !line.contains("_created"));
            samples.map(|line| line.replace("eviction_agent_pressure_", "")).collect::<Vec<_>>()
        };
        let [stalled, cpu] = [
            "stalled_seconds_total{resource=\"memory\"} 0.25",
            "waiting_seconds_total{resource=\"cpu\"} 3.0",
        ];
        assert_eq!(scrape(), [stalled, cpu, "waiting_seconds_total{resource=\"memory\"} 1.5"]);
        write("memory", "some nonsense\n");
        assert_eq!(scrape(), [cpu]);
        write("memory", &line("some", 2_000_000));
        assert_eq!(scrape(), [cpu, "waiting_seconds_total{resource=\"memory\"} 2.0"]);
    }
}
