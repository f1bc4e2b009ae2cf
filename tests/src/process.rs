//! Processes that tests start, and what /proc contains about any process.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, getppid, pidfd_open, pidfd_send_signal, set_parent_process_death_signal,
};

/// The time after which a test counts as hung. It never measures speed: an emulated machine that is out of
/// memory may need minutes, on a host with other load.
pub const HANG: Duration = Duration::from_secs(300);

/// Waits until `condition` holds. After [`HANG`] it fails with an error that names `what`.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > HANG {
            bail!("waited {} s for: {what}", HANG.as_secs());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// A flag for another thread to end, which is set when this is dropped: a failed assertion must not leave that thread
/// running for ever.
#[derive(Debug)]
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the state letter and start time (clock ticks since boot) of a process.
pub fn stat(pid: u32) -> Option<(char, u64)> {
    let stat = procfs::process::Process::new(pid.try_into().ok()?).ok()?.stat().ok()?;
    Some((stat.state, stat.starttime))
}

/// Returns whether the process runs: it exists and is no zombie.
pub fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

/// Sends a signal through a pidfd; a process that has ended already is no error.
pub fn signal(pid: u32, signal: Signal) -> Result<()> {
    let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        bail!("signal pid {pid}: not a process id");
    };
    let sent = pidfd_open(raw, PidfdFlags::empty()).and_then(|fd| pidfd_send_signal(fd, signal));
    match sent {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("signal pid {pid}")),
    }
}

/// Runs a program to its end.
///
/// # Errors
/// If there is no such program, or it fails; the error contains its error output.
pub fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("run {program}"))?;
    if !output.status.success() {
        bail!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; "));
    }
    Ok(())
}

/// A child process that is killed and reaped when dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts the command.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let child = command.spawn().with_context(|| format!("start {:?}", command.get_program()))?;
        Ok(Self(child))
    }

    /// Returns its process ID.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Returns the child, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// Returns whether it has not exited yet.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.0.try_wait().context("wait for a child")?.is_none())
    }

    /// Waits for its end, at most [`HANG`].
    pub fn wait(&mut self) -> Result<ExitStatus> {
        let mut status = None;
        wait_until(&format!("end of pid {}", self.pid()), || {
            status = self.0.try_wait().ok().flatten();
            status.is_some()
        })?;
        status.context("no exit status")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        // A killed child in a frozen cgroup is not reaped until the owner of the cgroup thaws it.
        for _ in 0..500 {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Makes the kernel kill the process to be started when the thread that starts it ends.
pub fn die_with_parent(command: &mut Command) {
    let parent = getpid();
    let bind = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the line above.
        if getppid() == Some(parent) { Ok(()) } else { Err(std::io::ErrorKind::NotFound.into()) }
    };
    // SAFETY: two system calls, no allocation and no lock between fork and exec.
    unsafe { command.pre_exec(bind) };
}

/// Lets the calling thread run before every ordinary one (SCHED_FIFO).
///
/// # Errors
/// If the kernel refuses it.
pub fn set_fifo_priority() -> Result<()> {
    let priority: libc::c_int = 1;
    // SAFETY: the kernel reads an int, which outlives the call; 0 is the calling thread.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_FIFO, &raw const priority) };
    if result < 0 {
        return Err(std::io::Error::last_os_error()).context("ask for SCHED_FIFO");
    }
    Ok(())
}
