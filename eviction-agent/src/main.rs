//! The `eviction-agent` binary. The command line is in the library's `cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    eviction_agent::cli::main()
}
