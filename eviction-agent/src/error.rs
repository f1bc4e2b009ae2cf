//! The failure of a verb: one report on standard error and one exit code.

use std::error::Error;
use std::fmt::Write as _;
use std::process::ExitCode;

pub(crate) use eviction_core::error::chain;

/// The causes for which a verb failed.
///
/// Written as `error: <operation> <subject>: <cause>`, one line per cause, and a `help:` line if
/// the user can do something about it.
#[derive(Debug)]
pub struct Failure {
    causes: Vec<String>,
    help: Option<String>,
    code: u8,
}

impl Failure {
    /// Returns a failure of the operation, with exit code 1.
    pub fn failed(what: impl Into<String>) -> Self {
        Self { causes: vec![what.into()], help: None, code: 1 }
    }

    /// Returns a failure of the command line, with exit code 2.
    pub fn usage(what: impl Into<String>) -> Self {
        Self { causes: vec![what.into()], help: None, code: 2 }
    }

    /// Returns a failure with several causes, each on its own line.
    pub fn all(causes: Vec<String>) -> Self {
        Self { causes, help: None, code: 1 }
    }

    /// Returns a failure of `operation` with `error` and its sources as the cause.
    pub fn because(operation: impl AsRef<str>, error: &dyn Error) -> Self {
        Self::failed(format!("{}: {}", operation.as_ref(), chain(error)))
    }

    /// Adds what the user can do about it.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Returns the causes, for a report in another format.
    pub(crate) fn into_causes(self) -> Vec<String> {
        self.causes
    }

    /// Returns the causes in one line, for the log.
    pub(crate) fn into_line(self) -> String {
        self.causes.join("; ")
    }

    /// Returns the report for standard error and the exit code.
    pub fn report(&self) -> (String, ExitCode) {
        let mut text = String::new();
        for cause in &self.causes {
            let _infallible = writeln!(text, "error: {cause}");
        }
        if let Some(help) = &self.help {
            let _infallible = writeln!(text, "help: {help}");
        }
        (text, ExitCode::from(self.code))
    }
}
