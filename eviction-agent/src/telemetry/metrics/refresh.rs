//! Metrics that are read at each scrape: pressure stall information and the agent's process.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use super::{Family, Metrics, SecondsCounter, unix_now};
use eviction_core::policy::preferences::PsiKind;
use eviction_core::reading::Reading;
use eviction_node::psi::{PsiLine, parse_pressure};

impl Metrics {
    /// Reads the pressure files of a folder such as `/proc/pressure`. A file that cannot be read has no
    /// series.
    pub(super) fn read_pressure(&self, folder: &Path) {
        for resource in ["cpu", "io", "memory"] {
            let text = std::fs::read(folder.join(resource)).unwrap_or_default();
            set_stall(&self.pressure_waiting, resource, parse_pressure(&text, PsiKind::Some));
            // The kernel defines no full stall of the machine for the CPU, and writes 0.
            if resource != "cpu" {
                set_stall(&self.pressure_stalled, resource, parse_pressure(&text, PsiKind::Full));
            }
        }
    }

    /// Reads `/proc/self`. Values that cannot be read are skipped.
    pub(super) fn read_process(&self) {
        let process = procfs::process::Process::myself();
        let whole = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let open = process.as_ref().ok().and_then(|process| process.fd_count().ok());
        self.process_open_fds.set(open.map(|open| whole(open as u64)));
        let Ok(stat) = process.and_then(|process| process.stat()) else { return };
        let ticks = procfs::ticks_per_second().max(1) as f64;
        self.process_cpu.inner().store(((stat.utime + stat.stime) as f64 / ticks).to_bits(), Relaxed);
        self.process_resident_memory.set(Some(whole(stat.rss.saturating_mul(procfs::page_size()))));
        self.process_start_time.set_f64(Some(started(stat.starttime as f64 / ticks)));
    }
}

fn set_stall(family: &Family<1, SecondsCounter>, resource: &'static str, stall: PsiLine) {
    match stall.total_us {
        Reading::Known(total) => {
            // The kernel counts since boot. With a later creation time, all of the value would count as
            // an increase.
            let counter = family.insert([resource.into()], SecondsCounter::default(), started(0.0));
            #[expect(clippy::cast_precision_loss, reason = "seconds for a metric")]
            let seconds = total as f64 / 1e6;
            counter.inner().store(seconds.to_bits(), Relaxed);
        }
        Reading::Unknown(_) => family.retain(|[it]| it != resource),
    }
}

/// Returns the wall clock time, in seconds since the Unix epoch, of an instant given in seconds since
/// boot.
fn started(after_boot: f64) -> f64 {
    let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let up = up.tv_sec as f64 + up.tv_nsec as f64 / 1e9;
    ((unix_now() - up + after_boot) * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::telemetry::metrics::Form;

    fn samples(metrics: &Metrics) -> Vec<String> {
        let text = metrics.encode(Form::OpenMetrics).unwrap();
        let lines = text.lines().filter_map(|line| line.strip_prefix("eviction_agent_pressure_"));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn pressure_counters_have_the_boot_as_creation_time() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("io"), "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n").unwrap();
        let metrics = Metrics::new("0", "0");
        metrics.read_pressure(folder.path());
        let samples = samples(&metrics);
        let created = samples.iter().find(|line| line.starts_with("waiting_seconds_created")).unwrap();
        let created: f64 = created.rsplit(' ').next().unwrap().parse().unwrap();
        let boot = started(0.0);
        assert!((created - boot).abs() < 5.0, "{created} {boot}");
    }

    #[test]
    fn pressure_totals_are_counters_and_missing_totals_have_no_series() {
        let folder = tempfile::tempdir().unwrap();
        let write = |resource: &str, text: &str| fs::write(folder.path().join(resource), text).unwrap();
        let line =
            |kind: &str, total: u64| format!("{kind} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n");
        write("memory", &(line("some", 1_500_000) + &line("full", 250_000)));
        write("cpu", &(line("some", 3_000_000) + &line("full", 0)));
        let metrics = Metrics::new("0", "0");
        let scrape = || {
            metrics.read_pressure(folder.path());
            let samples = samples(&metrics).into_iter();
            samples.filter(|line| !line.contains("_created")).collect::<Vec<_>>()
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

    #[test]
    fn the_agents_own_process_is_read() {
        let metrics = Metrics::new("0", "0");
        metrics.read_process();
        assert!(metrics.process_resident_memory.get().unwrap() > 1 << 20);
        assert!(metrics.process_open_fds.get().unwrap() > 2);
        assert!(metrics.process_start_time.get_f64().unwrap() > started(0.0));
    }
}
