//! The cost of page faults and processes: the processor time that they take, independent of other load.

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use rustix::time::{ClockId, clock_gettime};

use crate::cli::Task;
use crate::print_event;
use crate::region::{Anonymous, Pages, Region as _};

/// The memory that is touched in one go, so that the working set stays the same.
const REGION: u64 = 8 << 20;
const PAGE: u64 = 4096;

/// Makes one measurement for each line of the input.
pub(crate) fn run(what: Task, count: u32, dir: Option<&Path>) -> Result<()> {
    let mut file = match dir {
        Some(dir) => tempfile::tempfile_in(dir),
        None => tempfile::tempfile(),
    }
    .context("make a file")?;
    for line in std::io::stdin().lines() {
        line.context("wait for a line")?;
        let before = cpu_time()?;
        match what {
            Task::Fault => fault(count)?,
            Task::Fork => (0..count).try_for_each(|_| fork())?,
            Task::Write => write(&mut file, count)?,
        }
        print_event("measured", &[("cpu_ns", cpu_time()?.saturating_sub(before))]);
    }
    Ok(())
}

/// Causes page faults, rounded up to whole regions; pages and page tables are new each time.
fn fault(count: u32) -> Result<()> {
    for _ in 0..u64::from(count).div_ceil(REGION / PAGE) {
        Anonymous::map(REGION, Pages::Small)?.touch(0, REGION)?;
    }
    Ok(())
}

/// Writes to the file, then truncates it.
fn write(file: &mut File, count: u32) -> Result<()> {
    let block = vec![0x5a; 64 << 10];
    for _ in 0..count {
        file.write_all(&block).context("write")?;
    }
    file.rewind().context("rewind a file")?;
    file.set_len(0).context("empty a file")
}

/// Runs a process that does almost nothing.
fn fork() -> Result<()> {
    let mut command = Command::new("true");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().context("start `true`")?;
    ensure!(status.success(), "`true` ended with {status}");
    Ok(())
}

/// Returns the processor time of this process and of its children that have ended, nanoseconds.
fn cpu_time() -> Result<u64> {
    let own = clock_gettime(ClockId::ProcessCPUTime);
    let own = u64::try_from(own.tv_sec)? * 1_000_000_000 + u64::try_from(own.tv_nsec)?;
    Ok(own + children_cpu_time()?)
}

fn children_cpu_time() -> Result<u64> {
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
