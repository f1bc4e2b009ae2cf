//! The output: text, and JSON lines.

use std::fmt::Display;
use std::io::Write as _;

use serde_json::json;

use crate::checks::{Check, StoryResult};
use crate::testbed::Testbed;
use crate::timeline::millis;

/// Prints text on standard output, or on standard error if standard output has JSON lines.
#[derive(Debug)]
pub(crate) struct Printer {
    json: bool,
}

impl Printer {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Prints a line of text. A closed output is no reason to stop: the cgroups must be removed.
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

    /// Prints the title of a story.
    pub(crate) fn title(&self, name: &str, subject: &str) {
        self.print(format_args!("{name}: {subject}"));
    }

    /// Prints a fact, or something that happens.
    pub(crate) fn line(&self, what: &str, text: impl Display) {
        self.print(format_args!("  {what:<8}{text}"));
    }

    /// Prints the result of a check.
    pub(crate) fn check(&self, check: &Check) {
        let Check { expected, actual } = check;
        match actual {
            None => self.line("ok", expected),
            Some(actual) => self.line("WRONG", format_args!("{expected}; but {actual}")),
        }
    }

    /// Prints the timeline of a story.
    pub(crate) fn timeline(&self, testbed: &Testbed<'_>) {
        for mark in testbed.timeline.sorted() {
            self.print(format_args!("{:>10} ms  {:<9}{}", millis(mark.us), mark.key, mark.what));
        }
    }

    /// Prints the end of a story.
    pub(crate) fn end(&self, name: &str, end: &StoryResult, testbed: &Testbed<'_>) {
        let mut line = json!({
            "story": name,
            "ok": *end == StoryResult::Passed,
            "timeline": testbed.timeline.json(),
            "values": testbed.values,
        });
        match end {
            StoryResult::Passed => self.print("  PASSED\n"),
            StoryResult::Failed(why) => {
                self.print(format_args!("  FAILED  {why}\n"));
                line["why"] = json!(why);
            }
            StoryResult::Skipped(why) => {
                self.print(format_args!("  SKIPPED {name}: {why}\n"));
                line["skipped"] = json!(true);
                line["why"] = json!(why);
            }
        }
        if let Some(backend) = &testbed.backend {
            line["backend"] = json!(backend);
        }
        if let Some(forced) = testbed.forced {
            line["forced"] = json!(forced);
        }
        self.emit(&line);
    }

    /// Prints how many stories passed, failed and were skipped.
    pub(crate) fn total(&self, passed: usize, failed: usize, skipped: usize) {
        self.print(format_args!("{passed} passed, {failed} failed, {skipped} skipped"));
        self.emit(&json!({"task": "demo", "passed": passed, "failed": failed, "skipped": skipped}));
    }
}
