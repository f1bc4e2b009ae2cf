//! The command line: one file per verb.

use std::process::ExitCode;

/// Parses the arguments and runs the verb.
pub fn main() -> ExitCode {
    ExitCode::SUCCESS
}
