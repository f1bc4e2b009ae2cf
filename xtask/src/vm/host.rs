//! The host and its load, on which the values of a guest depend.

use std::process::Command;

use crate::shell;

/// The mark of the host's line in a guest's log.
pub(super) const HOST: &str = "host ";

/// Describes the kernel's package and the current state of the host.
pub(super) fn describe(package: &str) -> String {
    let day =
        shell::read(Command::new("date").args(["--utc", "+%Y-%m-%d"])).map(|text| text.trim().to_owned());
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let day = day.unwrap_or_else(|_| "some day".to_owned());
    format!("{package}, {day}, load {load} on {cpus} CPUs")
}
