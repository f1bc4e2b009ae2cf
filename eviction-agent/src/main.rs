//! `eviction-agent`: parse, start the log, dispatch.

use std::process::ExitCode;

fn main() -> ExitCode {
    eviction_agent::cli::main()
}
