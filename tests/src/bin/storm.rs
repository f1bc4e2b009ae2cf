//! Fires the kernel's hooks as fast as possible from many cgroups at once: one process in each repeatedly
//! creates and frees page tables.
//!
//! Only a few of them run at a time and pass on to the next. If all of them ran, the kernel would free page
//! tables more slowly than they are created (from 7.2 on after a grace period of RCU), and a small machine
//! would run out of memory.
//!
//! Reads the `cgroup.procs` files of the cgroups from its input, one per line, up to an empty line. Prints
//! `ready` when each cgroup has a process that holds some memory, which differs from cgroup to cgroup
//! (`held_bytes`). `go` continues the processes; `pause` stops them and prints `paused` when all are stopped.
//! It ends with its input.

use std::{
    fs,
    io::{self, BufRead as _, PipeReader, PipeWriter, Read as _, Write as _},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use rustix::{
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap},
    process::{Pid, Signal, WaitOptions, getpid, kill_process, set_parent_process_death_signal, waitpid},
};
use tests::storm::held_bytes;

const PAGE: usize = 4096;

/// The bytes that one page of page tables maps.
const TABLE: usize = 2 << 20;

/// The page tables that are created and freed in one iteration.
const TABLES: usize = 8;

/// The iterations of a process before it passes its token to the next one.
const ITERATIONS: usize = 8;

/// Enough to keep a processor busy while others go to sleep and wake up.
const AT_A_TIME_PER_CPU: usize = 4;

fn main() -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("ask to die with the parent")?;
    let mut lines = io::stdin().lock().lines();
    let (receiver, mut sender) = io::pipe().context("make a pipe")?;
    let at_a_time = AT_A_TIME_PER_CPU * thread::available_parallelism().context("count the CPUs")?.get();
    sender.write_all(&vec![0; at_a_time]).context("send the first tokens")?;
    let mut children = Vec::new();
    for line in lines.by_ref() {
        let procs = line.context("read a path")?;
        if procs.is_empty() {
            break;
        }
        children.push(start(&procs, held_bytes(children.len()), &receiver, &sender)?);
    }
    wait_until_stopped(&children)?;
    print_word("ready")?;
    for line in lines {
        match line.context("read a command")?.as_str() {
            "go" => signal(&children, Signal::CONT)?,
            "pause" => {
                signal(&children, Signal::STOP)?;
                wait_until_stopped(&children)?;
                print_word("paused")?;
            }
            other => bail!("unknown command {other:?}"),
        }
    }
    signal(&children, Signal::KILL)?;
    for child in &children {
        waitpid(Some(*child), WaitOptions::empty()).context("wait for a process")?;
    }
    Ok(())
}

fn print_word(word: &str) -> Result<()> {
    writeln!(io::stdout(), "{word}").with_context(|| format!("say {word}"))
}

fn signal(children: &[Pid], signal: Signal) -> Result<()> {
    children.iter().try_for_each(|child| kill_process(*child, signal)).context("signal a process")
}

fn wait_until_stopped(children: &[Pid]) -> Result<()> {
    for child in children {
        let status = waitpid(Some(*child), WaitOptions::UNTRACED).context("wait for a process")?;
        if !status.is_some_and(|(_, status)| status.stopped()) {
            bail!("a process did not stop: {status:?}");
        }
    }
    Ok(())
}

/// Starts the process of a cgroup.
fn start(procs: &str, held: usize, receiver: &PipeReader, sender: &PipeWriter) -> Result<Pid> {
    // SAFETY: this process has one thread, so that the child may call any function.
    let pid = unsafe { libc::fork() };
    match Pid::from_raw(pid) {
        Some(child) if pid > 0 => Ok(child),
        _ if pid == 0 => {
            let Err(error) = run_child(procs, held, receiver, sender);
            eprintln!("{procs}: {error:#}");
            std::process::exit(1);
        }
        _ => Err(io::Error::last_os_error()).context("fork"),
    }
}

fn run_child(
    procs: &str,
    held: usize,
    mut receiver: &PipeReader,
    mut sender: &PipeWriter,
) -> Result<std::convert::Infallible> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("ask to die with the parent")?;
    fs::write(procs, "0").context("join the group")?;
    let memory = map(held)?;
    touch(memory, held, PAGE);
    kill_process(getpid(), Signal::STOP).context("stop")?;
    let mut token = [0];
    loop {
        receiver.read_exact(&mut token).context("wait for a token")?;
        for _ in 0..ITERATIONS {
            map_and_unmap_tables()?;
        }
        sender.write_all(&token).context("pass the token on")?;
        // Otherwise it would take its own token again, before a waiting process has woken up.
        thread::sleep(Duration::from_millis(1));
    }
}

fn map_and_unmap_tables() -> Result<()> {
    let tables = map(TABLES * TABLE)?;
    touch(tables, TABLES * TABLE, TABLE);
    // SAFETY: this process owns the mapping, and no reference into it exists.
    unsafe { munmap(tables.cast(), TABLES * TABLE) }.context("unmap memory")
}

/// Anonymous memory without huge pages.
fn map(bytes: usize) -> Result<*mut u8> {
    // SAFETY: a fresh mapping at an address that the kernel chooses; the advice is about it alone.
    unsafe {
        let start = mmap_anonymous(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
        .context("map memory")?;
        madvise(start, bytes, Advice::LinuxNoHugepage).context("ask for small pages")?;
        Ok(start.cast())
    }
}

fn touch(start: *mut u8, bytes: usize, step: usize) {
    for offset in (0..bytes).step_by(step) {
        // SAFETY: inside a mapping of so many bytes, which is writable.
        unsafe { start.add(offset).write_volatile(1) };
    }
}
