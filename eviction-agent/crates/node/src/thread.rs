//! Priority and stack of the calling thread.

use rustix::process::setpriority_process;

/// The priority of a thread that accesses a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A decision waits for it: it runs before ordinary threads, if CAP_SYS_NICE allows it.
    Urgent,
    /// Its IO is served only while there is no other IO (`IOPRIO_CLASS_IDLE`), if the disk's scheduler supports
    /// priorities.
    Idle,
}

/// Sets the priority of the calling thread. If the kernel refuses, it stays as it was.
pub fn set_priority(priority: Priority) {
    const WHO_PROCESS: libc::c_int = 1;
    const CLASS_SHIFT: libc::c_int = 13;
    let (nice, io_class): (i32, libc::c_int) = match priority {
        // IOPRIO_CLASS_NONE: the IO priority follows from the niceness.
        Priority::Urgent => (-20, 0),
        Priority::Idle => (0, 3),
    };
    // On Linux this sets the priority of one thread, while POSIX specifies the process.
    if let Err(error) = setpriority_process(None, nice) {
        tracing::debug!(?priority, %error, "cannot set the niceness of a thread");
    }
    let this_thread: libc::c_int = 0;
    // SAFETY: the call takes three numbers and touches no memory.
    let result =
        unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, this_thread, io_class << CLASS_SHIFT) };
    if result != 0 {
        tracing::debug!(?priority, error = %std::io::Error::last_os_error(), "cannot set the IO priority of a thread");
    }
}

/// Touches this many bytes of the stack, so that no page fault occurs later, when the node is short of memory or
/// every microsecond counts.
#[inline(never)]
pub fn touch_stack<const BYTES: usize>() {
    let mut stack = [0_u8; BYTES];
    for page in stack.chunks_mut(4096) {
        page[0] = 1;
    }
    std::hint::black_box(&mut stack);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_accepts_both_priorities() {
        let class = || {
            // SAFETY: it takes two numbers and touches no memory.
            unsafe { libc::syscall(libc::SYS_ioprio_get, 1, 0) >> 13 }
        };
        set_priority(Priority::Idle);
        assert_eq!(class(), 3);
        set_priority(Priority::Urgent);
        assert_ne!(class(), 3);
    }
}
