//! The metrics that every exporter has of its own process, read at each scrape.

use std::fmt;
use std::time::SystemTime;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// Reads `/proc/self`; what cannot be read is left out.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Ok(process) = procfs::process::Process::myself() else { return Ok(()) };
        if let Ok(stat) = process.stat() {
            let ticks = procfs::ticks_per_second().max(1) as f64;
            let cpu = (stat.utime + stat.stime) as f64 / ticks;
            let help = "User and system CPU time of the agent.";
            gauge_or_counter(
                &mut encoder,
                "process_cpu",
                help,
                Some(&Unit::Seconds),
                &ConstCounter::new(cpu),
            )?;
            let resident = i64::try_from(stat.rss.saturating_mul(procfs::page_size())).unwrap_or(i64::MAX);
            let help = "Resident memory of the agent.";
            gauge_or_counter(
                &mut encoder,
                "process_resident_memory",
                help,
                Some(&Unit::Bytes),
                &ConstGauge::new(resident),
            )?;
            if let Some(started) = started(stat.starttime as f64 / ticks) {
                let help = "Start time of the agent since the Unix epoch.";
                gauge_or_counter(
                    &mut encoder,
                    "process_start_time",
                    help,
                    Some(&Unit::Seconds),
                    &ConstGauge::new(started),
                )?;
            }
        }
        if let Ok(open) = process.fd_count() {
            let open = i64::try_from(open).unwrap_or(i64::MAX);
            let help = "File descriptors that the agent has open.";
            gauge_or_counter(&mut encoder, "process_open_fds", help, None, &ConstGauge::new(open))?;
        }
        Ok(())
    }
}

fn gauge_or_counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, unit, metric.metric_type())?)
}

/// The wall clock's time of an instant that many seconds after the boot.
pub(super) fn started(after_boot: f64) -> Option<f64> {
    let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let up = up.tv_sec as f64 + up.tv_nsec as f64 / 1e9;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(((now.as_secs_f64() - up + after_boot) * 100.0).round() / 100.0)
}
