//! Reports that this machine cannot run a test.

use std::io::Write as _;

/// Ends the test and prints `SKIPPED <test>: <reason>` as one line on standard error, which the test harness
/// does not capture. The test task counts these lines, so that a skip is never taken for a pass.
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

/// Returns the value of a `Result`. An error ends the test as [`skip!`](crate::skip!) does, with `what` before it.
#[macro_export]
macro_rules! or_skip {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(why) => $crate::skip!("{why:#}"),
        }
    };
    ($result:expr, $what:expr) => {
        match $result {
            Ok(value) => value,
            Err(why) => $crate::skip!("{}: {why:#}", $what),
        }
    };
}

/// Prints the line for the running test. The macro [`skip!`](crate::skip!) calls it.
pub fn report(reason: &str) {
    let thread = std::thread::current();
    print(&format!("SKIPPED {}: {}\n", thread.name().unwrap_or("unnamed"), reason.replace('\n', " ")));
}

/// Prints what a test has found out about this machine, as one line on standard error, which the harness does
/// not capture: a row of the table of `cargo xtask vm`. Neither text may contain a colon followed by a space.
pub fn report_finding(what: &str, found: &str) {
    print(&format!("FOUND {what}: {found}\n"));
}

/// Prints a line that the harness does not capture: it captures print macros only, and not writes to the
/// handle. Errors are ignored.
fn print(line: &str) {
    let _ = std::io::stderr().write_all(line.as_bytes());
}
