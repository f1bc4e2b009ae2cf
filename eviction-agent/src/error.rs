//! How a verb fails: one report on standard error, one exit code.

use std::error::Error;
use std::fmt::Write as _;
use std::process::ExitCode;

pub(crate) use eviction_core::error::chain;

/// Why a verb could not do its work.
///
/// Written as `error: <operation> <subject>: <cause>`, one line per cause, and a `help:` line
/// where there is something to do.
#[derive(Debug)]
pub struct Failure {
    causes: Vec<String>,
    help: Option<String>,
    code: u8,
}

impl Failure {
    /// The operation failed; exit code 1.
    pub fn failed(what: impl Into<String>) -> Self {
        Self { causes: vec![what.into()], help: None, code: 1 }
    }

    /// The call was wrong; exit code 2.
    pub fn usage(what: impl Into<String>) -> Self {
        Self { causes: vec![what.into()], help: None, code: 2 }
    }

    /// Several causes at once, each a line of its own.
    pub fn all(causes: Vec<String>) -> Self {
        Self { causes, help: None, code: 1 }
    }

    /// `operation` failed because of `error` and what is behind it.
    pub fn because(operation: impl AsRef<str>, error: &dyn Error) -> Self {
        Self::failed(format!("{}: {}", operation.as_ref(), chain(error)))
    }

    /// What the user can do about it.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The causes, for a report of another kind.
    pub(crate) fn into_causes(self) -> Vec<String> {
        self.causes
    }

    /// The report for standard error, and the exit code that goes with it.
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
