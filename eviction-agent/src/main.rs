//! `eviction-agent`: parse, start the log, dispatch.

use std::process::ExitCode;

unsafe extern "C" {
    // Around the code of the threads that decide and kill (`hands.ld`).
    static hands_start: [u8; 0];
    static hands_end: [u8; 0];
}

fn main() -> ExitCode {
    let (start, end) = ((&raw const hands_start).cast::<u8>(), (&raw const hands_end).cast::<u8>());
    // SAFETY: what is between the two is code of this program: it is there as long as it runs, and nobody writes it.
    let hands = unsafe { std::slice::from_raw_parts(start, end.addr() - start.addr()) };
    eviction_agent::cli::main(hands)
}
