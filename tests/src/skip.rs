//! How a test says that this machine cannot run it.

use std::io::Write as _;

/// Ends the test and prints `SKIPPED <test>: <reason>` as one line on standard error, past the
/// test harness's capture. The test task counts these lines, so a skip never looks like a pass.
///
/// ```no_run
/// if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
///     tests::skip!("the kernel has no BTF");
/// }
/// ```
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {{
        $crate::report_skip(&format!($($reason)+));
        return ::core::default::Default::default();
    }};
}

/// Prints the line for the running test. The macro [`skip!`](crate::skip!) calls it.
pub fn report(reason: &str) {
    let thread = std::thread::current();
    print(&format!("SKIPPED {}: {}\n", thread.name().unwrap_or("unnamed"), reason.replace('\n', " ")));
}

/// Prints what a test found out of this machine, as one line on standard error, past the harness's capture: a row of the
/// table of `cargo xtask vm`. Neither may contain a colon followed by a space.
pub fn report_finding(what: &str, found: &str) {
    print(&format!("FOUND {what}: {found}\n"));
}

/// The harness captures print macros only; a write to the handle always comes through. Nothing can be done where
/// that fails.
fn print(line: &str) {
    let _ = std::io::stderr().write_all(line.as_bytes());
}
