//! IO priority of the calling thread (ioprio_set(2)).

/// How soon the disk serves a thread, as far as its scheduler knows priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoPriority {
    /// As its niceness says (`IOPRIO_CLASS_NONE`).
    Normal,
    /// When nobody else wants anything (`IOPRIO_CLASS_IDLE`).
    Idle,
}

/// Sets the priority of the calling thread. Needs no privilege; a kernel that refuses it leaves it as it was.
pub fn set_io_priority(priority: IoPriority) {
    const WHO_PROCESS: libc::c_int = 1;
    const CLASS_SHIFT: libc::c_int = 13;
    let class: libc::c_int = match priority {
        IoPriority::Normal => 0,
        IoPriority::Idle => 3,
    };
    let own: libc::c_int = 0;
    // SAFETY: the call takes three numbers and touches no memory.
    let done = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, own, class << CLASS_SHIFT) };
    if done != 0 {
        tracing::debug!(?priority, error = %std::io::Error::last_os_error(), "set the IO priority of a thread");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_takes_both() {
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
