//! `eviction-agent`: parse, start the log, dispatch.

unsafe extern "C" {
    // Where the linker has put the code of the hands (`hands.ld`).
    safe static hands_start: u8;
    safe static hands_end: u8;
}

fn main() -> std::process::ExitCode {
    eviction_agent::cli::main(&raw const hands_start..&raw const hands_end)
}
