//! Text for people, JSON lines for machines.

use std::fmt::Display;
use std::io::Write as _;

use serde_json::json;

use crate::checks::{Check, End};
use crate::testbed::Testbed;
use crate::timeline::millis;

/// Where the two go: to people on standard output, unless machines read that.
#[derive(Debug)]
pub(crate) struct Printer {
    json: bool,
}

impl Printer {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// A line for people. Who no longer listens is no reason to stop: the groups must go.
    fn print(&self, line: impl Display) {
        let _ = if self.json {
            writeln!(std::io::stderr(), "{line}")
        } else {
            writeln!(std::io::stdout(), "{line}")
        };
    }

    fn emit(&self, line: &serde_json::Value) {
        if self.json {
            let _ = writeln!(std::io::stdout(), "{line}");
        }
    }

    /// How a story begins.
    pub(crate) fn title(&self, name: &str, subject: &str) {
        self.print(format_args!("{name}: {subject}"));
    }

    /// Something that is so, or that happens.
    pub(crate) fn line(&self, what: &str, text: impl Display) {
        self.print(format_args!("  {what:<8}{text}"));
    }

    /// What a check came to.
    pub(crate) fn check(&self, check: &Check) {
        let Check { expected, seen } = check;
        match seen {
            None => self.line("ok", expected),
            Some(seen) => self.line("WRONG", format_args!("{expected}; but {seen}")),
        }
    }

    /// The moments of a story.
    pub(crate) fn timeline(&self, testbed: &Testbed<'_>) {
        for mark in testbed.timeline.sorted() {
            self.print(format_args!("{:>10} ms  {:<9}{}", millis(mark.us), mark.key, mark.what));
        }
    }

    /// How a story ended.
    pub(crate) fn end(&self, name: &str, end: &End, testbed: &Testbed<'_>) {
        let mut line = json!({
            "story": name,
            "ok": *end == End::Passed,
            "timeline": testbed.timeline.json(),
            "values": testbed.values,
        });
        match end {
            End::Passed => self.print("  PASSED\n"),
            End::Failed(why) => {
                self.print(format_args!("  FAILED  {why}\n"));
                line["why"] = json!(why);
            }
            End::Skipped(why) => {
                self.print(format_args!("  SKIPPED {name}: {why}\n"));
                line["skipped"] = json!(true);
                line["why"] = json!(why);
            }
        }
        if let Some(backend) = &testbed.backend {
            line["backend"] = json!(backend);
        }
        if let Some(forced) = testbed.forced {
            line["forced"] = json!(forced.backend);
        }
        self.emit(&line);
    }

    /// How they all ended.
    pub(crate) fn total(&self, passed: usize, failed: usize, skipped: usize) {
        self.print(format_args!("{passed} passed, {failed} failed, {skipped} skipped"));
        self.emit(&json!({"task": "demo", "passed": passed, "failed": failed, "skipped": skipped}));
    }
}
