//! The threads that finish kills run before ordinary ones: what they do gives memory back, and who
//! hears of an eviction wants the processor at the same moment.
#![forbid(unsafe_code)]

use rustix::process::setpriority_process;

/// Ahead of every ordinary thread, behind those of real time: giving back much memory takes long, and
/// the node goes on meanwhile.
const NICE: i32 = -20;

/// Moves the calling thread there, if CAP_SYS_NICE allows it; it does its work in any case.
pub(super) fn run_ahead() {
    // Linux sets the priority of one thread where POSIX means the process.
    if let Err(error) = setpriority_process(None, NICE) {
        tracing::debug!(%error, "a thread that finishes kills stays an ordinary one");
    }
}
