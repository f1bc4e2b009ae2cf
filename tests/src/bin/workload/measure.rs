//! What page faults and processes cost: the time that the processor spends on them, whoever else
//! wants it meanwhile.

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use rustix::time::{ClockId, clock_gettime};

use crate::cli::Task;
use crate::region::{Anonymous, Pages, Region as _};
use crate::say;

/// Memory that is touched in one go, so that the working set does not wander.
const REGION: u64 = 8 << 20;
const PAGE: u64 = 4096;

/// One measurement for each line that comes.
pub(crate) fn run(what: Task, count: u32, dir: Option<&Path>) -> Result<()> {
    let mut file = match dir {
        Some(dir) => tempfile::tempfile_in(dir),
        None => tempfile::tempfile(),
    }
    .context("make a file")?;
    for line in std::io::stdin().lines() {
        line.context("wait for a line")?;
        let before = spent()?;
        match what {
            Task::Fault => fault(count)?,
            Task::Fork => (0..count).try_for_each(|_| fork())?,
            Task::Write => write(&mut file, count)?,
        }
        say("measured", &[("cpu_ns", spent()?.saturating_sub(before))]);
    }
    Ok(())
}

/// Page faults, rounded up to whole regions; pages and page tables are new each time.
fn fault(count: u32) -> Result<()> {
    for _ in 0..u64::from(count).div_ceil(REGION / PAGE) {
        Anonymous::map(REGION, Pages::Small)?.touch(0, REGION)?;
    }
    Ok(())
}

/// Writes, and gives everything back.
fn write(file: &mut File, count: u32) -> Result<()> {
    let block = vec![0x5a; 64 << 10];
    for _ in 0..count {
        file.write_all(&block).context("write")?;
    }
    file.rewind().context("rewind a file")?;
    file.set_len(0).context("empty a file")
}

/// A process that does next to nothing.
fn fork() -> Result<()> {
    let mut command = Command::new("true");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().context("start `true`")?;
    ensure!(status.success(), "`true` ended with {status}");
    Ok(())
}

/// Time on a processor of this process and of its children that have ended, nanoseconds.
fn spent() -> Result<u64> {
    let own = clock_gettime(ClockId::ProcessCPUTime);
    let own = u64::try_from(own.tv_sec)? * 1_000_000_000 + u64::try_from(own.tv_nsec)?;
    Ok(own + of_children()?)
}

fn of_children() -> Result<u64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the kernel fills the structure, which outlives the call.
    let result = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) };
    ensure!(result == 0, "getrusage: {}", std::io::Error::last_os_error());
    // SAFETY: filled by the call above, which succeeded.
    let usage = unsafe { usage.assume_init() };
    let nanos = |time: libc::timeval| -> Result<u64> {
        Ok(u64::try_from(time.tv_sec)? * 1_000_000_000 + u64::try_from(time.tv_usec)? * 1000)
    };
    Ok(nanos(usage.ru_utime)? + nanos(usage.ru_stime)?)
}
