//! `eviction-agent`: parse, start the log, dispatch.

fn main() -> std::process::ExitCode {
    eviction_agent::cli::main()
}
