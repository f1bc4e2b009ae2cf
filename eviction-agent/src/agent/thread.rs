//! What the reaction thread asks of the kernel, so that it runs while the node does not: a place
//! before all ordinary threads, memory that stays, and not to be the one that is killed.
//!
//! Each wish may be refused; what came of it is said like the rung of a source.

use std::io;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit};
use rustix::thread::{Pid, gettid};

use crate::source::info::SourceInfo;

/// Above every ordinary thread, below every other that asks for real time.
const FIFO_PRIORITY: libc::c_int = 1;

/// A thread before all others that runs away would take a CPU from the node: after so long
/// without waiting the kernel sends SIGXCPU (RLIMIT_RTTIME), and it becomes an ordinary one. A
/// look at a tree of 50,000 groups takes a good part of it.
const LONGEST_RUN_US: u64 = 1_000_000;

/// The kernel's own figure for what must live, as the kubelet has it for itself.
const OOM_SCORE_ADJ: &str = "-999";

/// Asks for all of it for the calling thread and its process. What it spawns is ordinary.
pub(crate) fn prepare() -> [SourceInfo; 3] {
    [schedule(), lock(), protect()]
}

/// The calling thread.
pub(crate) fn this() -> Pid {
    gettid()
}

/// Makes a thread of this process an ordinary one again.
pub(crate) fn step_down(thread: Pid) -> io::Result<()> {
    set_scheduler(thread, libc::SCHED_OTHER, 0)
}

fn info(source: &'static str, rung: &'static str, reason: String) -> SourceInfo {
    SourceInfo { source, rung, reason, sees_every_charge: false, grain_bytes: 0 }
}

fn schedule() -> SourceInfo {
    let source = "reaction thread";
    let guarded = set_limit().and_then(|()| set_scheduler(this(), libc::SCHED_FIFO, FIFO_PRIORITY));
    let refused = match guarded {
        Ok(()) => {
            return info(source, "SCHED_FIFO", "it runs before every ordinary thread".to_owned());
        }
        // With RT_GROUP_SCHED a pod's group has no real time to give.
        Err(error) => format!("SCHED_FIFO: {error}"),
    };
    // Linux sets the priority of one thread where POSIX means the process.
    match setpriority_process(Some(this()), -20) {
        Ok(()) => info(source, "nice -20", refused),
        Err(error) => info(source, "", format!("{refused}; nice -20: {error}; CAP_SYS_NICE allows it")),
    }
}

fn set_limit() -> io::Result<()> {
    let Rlimit { current: _, maximum } = getrlimit(Resource::Rttime);
    let current = maximum.map_or(LONGEST_RUN_US, |maximum| maximum.min(LONGEST_RUN_US));
    Ok(setrlimit(Resource::Rttime, Rlimit { current: Some(current), maximum })?)
}

fn set_scheduler(thread: Pid, policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    // Threads for blocking work are made by this one, and must not be like it.
    let policy = policy | libc::SCHED_RESET_ON_FORK;
    // By its number: musl's function of that name refuses to work, and its structure is longer
    // than the kernel's `sched_param`, which is this one number.
    // SAFETY: the kernel reads an int, which outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            thread.as_raw_nonzero().get(),
            policy,
            &raw const priority,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Keeps the program's pages from being written out or dropped, as they are touched: whole stacks
/// would be locked otherwise.
fn lock() -> SourceInfo {
    let source = "memory lock";
    match mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT) {
        Ok(()) => {
            info(source, "mlockall on fault", "pages of the agent stay when the node reclaims".to_owned())
        }
        Err(error) => info(source, "", format!("mlockall: {error}; CAP_IPC_LOCK allows it")),
    }
}

fn protect() -> SourceInfo {
    let source = "oom protection";
    match std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ) {
        Ok(()) => info(source, "oom_score_adj -999", "the kernel kills it last".to_owned()),
        Err(error) => info(source, "", format!("set oom_score_adj: {error}; CAP_SYS_RESOURCE allows it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_refused_has_its_reason_and_what_is_spawned_is_ordinary() {
        let told = std::thread::spawn(|| {
            let told = prepare();
            let child = std::thread::spawn(|| policy(gettid())).join().unwrap();
            assert_eq!(child, libc::SCHED_OTHER, "a thread that it spawns");
            step_down(this()).unwrap();
            assert_eq!(policy(gettid()) & !libc::SCHED_RESET_ON_FORK, libc::SCHED_OTHER);
            told
        });
        for info in told.join().unwrap() {
            assert!(!info.reason.is_empty(), "{info:?}");
        }
    }

    fn policy(thread: Pid) -> libc::c_int {
        // SAFETY: takes and gives numbers.
        unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread.as_raw_nonzero().get()) as libc::c_int }
    }
}
