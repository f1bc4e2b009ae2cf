//! IO priority of the calling thread (ioprio_set(2)).

/// The IO priority of a thread, as far as the disk's scheduler supports priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoPriority {
    /// The priority that follows from its niceness (`IOPRIO_CLASS_NONE`).
    Normal,
    /// Served only while there is no other IO (`IOPRIO_CLASS_IDLE`).
    Idle,
}

/// Sets the priority of the calling thread. Needs no privilege. If the kernel refuses, the priority stays as it
/// was.
pub fn set_io_priority(priority: IoPriority) {
    const WHO_PROCESS: libc::c_int = 1;
    const CLASS_SHIFT: libc::c_int = 13;
    let class: libc::c_int = match priority {
        IoPriority::Normal => 0,
        IoPriority::Idle => 3,
    };
    let this_thread: libc::c_int = 0;
    // SAFETY: the call takes three numbers and touches no memory.
    let result =
        unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, this_thread, class << CLASS_SHIFT) };
    if result != 0 {
        tracing::debug!(?priority, error = %std::io::Error::last_os_error(), "cannot set the IO priority of a thread");
    }
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
        set_io_priority(IoPriority::Idle);
        assert_eq!(class(), 3);
        set_io_priority(IoPriority::Normal);
        assert_ne!(class(), 3);
    }
}
