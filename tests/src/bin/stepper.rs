//! A process that changes its memory and its tasks, one step per line of its input, and prints `ok` after each:
//! for tests that check something between the steps. It ends with its input.
//!
//! - `touch MIB` maps fresh pages and writes to each.
//! - `touch-huge MIB` does the same with huge pages.
//! - `free` unmaps all.
//! - `give-back` frees all pages, but keeps the mappings and their page tables.
//! - `again` writes to each page of what is mapped.
//! - `forks N` starts and reaps N processes, one after the other.
//! - `threads N` starts and joins N threads.
//! - `park N` starts N threads that stay.
//! - `touch-by-threads MIB` writes to fresh pages with four threads.
//! - `cache MIB` keeps a file in the page cache.
//! - `vfork MIB` touches pages in a child that shares memory.
//! - `write MIB` writes a file of this size to the disk, in small parts, and removes it.
//! - `child MIB` starts a process that the OOM killer prefers and that touches this much. It prints `child PID`
//!   before, and `ended SIGNAL` after that.
//! - `watch FOLDER` keeps the inotify events of files that are closed in the folder. They are charged to this
//!   process, whichever process closes the files.
//! - `open FOLDER` opens many files there, which are closed at the end of the process.
//! - `stir FOLDER` opens and closes as many.
//! - `file WHAT PATH BYTES` changes a file, see [`change_file`].

use std::{
    fs::{self, File},
    io::{self, BufRead as _, Write as _},
    os::{fd::OwnedFd, unix::process::ExitStatusExt as _},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use rustix::{
    fs::inotify,
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap},
    process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit},
};
use tests::folder::on_disk;

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

/// Anonymous memory without huge pages.
struct Region {
    start: *mut u8,
    bytes: usize,
}

impl Region {
    fn map(bytes: usize) -> Result<Self> {
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }
        .context("map memory")?;
        let region = Self { start: start.cast(), bytes };
        // SAFETY: this process owns the mapping, and no reference into it exists.
        unsafe { madvise(region.start.cast(), bytes, Advice::LinuxNoHugepage) }
            .context("ask for small pages")?;
        Ok(region)
    }

    fn make_huge(&self) -> Result<()> {
        // SAFETY: this process owns the mapping, and no reference into it exists.
        unsafe { madvise(self.start.cast(), self.bytes, Advice::LinuxHugepage) }.context("ask for huge pages")
    }

    fn give_back(&self) -> Result<()> {
        // SAFETY: this process owns the mapping, and no reference into it exists.
        unsafe { madvise(self.start.cast(), self.bytes, Advice::LinuxDontNeed) }.context("give memory back")
    }

    fn touch(&self) {
        for offset in (0..self.bytes).step_by(PAGE) {
            // SAFETY: inside the mapping, which is writable.
            unsafe { self.start.add(offset).write_volatile(1) };
        }
    }

    /// Writes to each page; each thread has its own part.
    fn touch_by_threads(&self, threads: usize) {
        let (start, part) = (self.start.expose_provenance(), self.bytes / threads);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || {
                    for offset in (thread * part..(thread + 1) * part).step_by(PAGE) {
                        let byte = std::ptr::with_exposed_provenance_mut::<u8>(start + offset);
                        // SAFETY: inside the mapping, which is writable and outlives the scope.
                        unsafe { byte.write_volatile(1) };
                    }
                });
            }
        });
    }
}

/// Fills the page cache with a file that is removed when it is closed.
fn fill_cache(bytes: usize) -> Result<()> {
    let mut file = tempfile::tempfile_in(on_disk()?).context("make a file")?;
    let block = vec![1; MIB];
    for _ in 0..bytes / MIB {
        file.write_all(&block).context("write a file")?;
    }
    file.sync_data().context("write a file back")?;
    // The file stays open: its page cache would be removed with it.
    std::mem::forget(file);
    Ok(())
}

/// Starts a child that shares this process's memory, touches so much of it and ends, while this process waits.
/// This is what vfork(2) does, but the child has its own stack.
fn vfork(mib: usize) -> Result<()> {
    extern "C" fn child(region: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the region of the parent, which waits.
        let region = unsafe { &*region.cast::<Region>() };
        let mut text = *b"child 0000000000\n";
        let digits = text.len() - 1;
        let mut rest = std::process::id();
        for place in (digits - 10..digits).rev() {
            text[place] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        // SAFETY: a valid buffer.
        unsafe { libc::write(1, text.as_ptr().cast(), text.len()) };
        region.touch();
        0
    }
    const STACK: usize = 256 << 10;
    let region = Region::map(mib * MIB)?;
    let stack = Region::map(STACK)?;
    let mut out = io::stdout();
    out.flush().context("write what was said")?;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the function uses nothing but the region and its stack, both of which outlive it.
    let pid = unsafe {
        let top = stack.start.add(STACK).cast();
        libc::clone(child, top, flags, (&raw const region).cast_mut().cast())
    };
    let mut status = 0;
    // SAFETY: a child of this process, and a place for its status.
    if pid < 0 || unsafe { libc::waitpid(pid, &raw mut status, 0) } != pid {
        return Err(io::Error::last_os_error()).context("vfork");
    }
    let signal = if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { 0 };
    writeln!(out, "ended {signal}").context("name its end")
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this process owns the mapping, and no reference into it exists.
        let _ = unsafe { munmap(self.start.cast(), self.bytes) };
    }
}

fn main() -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("ask to die with the parent")?;
    let (mut regions, mut watchers, mut files) = (Vec::new(), Vec::new(), Vec::new());
    let mut out = io::stdout();
    for line in io::stdin().lock().lines() {
        let line = line.context("read a step")?;
        let (step, argument) = line.split_once(' ').unwrap_or((&line, "0"));
        let number = || argument.parse::<usize>().with_context(|| format!("step {line:?}"));
        match step {
            "watch" => watchers.extend(watch(argument)?),
            // If dropped, they would be closed before the end of the process.
            "open" => std::mem::forget(open_many(argument)?),
            "stir" => drop(open_many(argument)?),
            "touch" => {
                let region = Region::map(number()? * MIB)?;
                region.touch();
                regions.push(region);
            }
            "touch-huge" => {
                // The mapping contains whole huge pages, wherever it begins.
                let region = Region::map((number()? + 2) * MIB)?;
                region.make_huge()?;
                region.touch();
                regions.push(region);
            }
            "touch-by-threads" => {
                let region = Region::map(number()? * MIB)?;
                region.touch_by_threads(4);
                regions.push(region);
            }
            "cache" => fill_cache(number()? * MIB)?,
            "vfork" => vfork(number()?)?,
            "free" => regions.clear(),
            "give-back" => regions.iter().try_for_each(Region::give_back)?,
            "again" => regions.iter().for_each(Region::touch),
            "forks" => {
                for _ in 0..number()? {
                    Command::new("/proc/self/exe")
                        .stdin(Stdio::null())
                        .status()
                        .context("start a process")?;
                }
            }
            "threads" => {
                for _ in 0..number()? {
                    if std::thread::spawn(|| ()).join().is_err() {
                        bail!("a thread panicked");
                    }
                }
            }
            "park" => (0..number()?).for_each(|_| drop(std::thread::spawn(std::thread::park))),
            "write" => write(number()?)?,
            "child" => child(number()?)?,
            "prefer" => prefer_as_oom_victim()?,
            "file" => files.extend(change_file(argument)?),
            "close" => files.clear(),
            _ => bail!("unknown step {line:?}"),
        }
        writeln!(out, "ok").context("say ok")?;
    }
    Ok(())
}

/// Watches a folder with several watchers. Each keeps 16,384 events (`fs.inotify.max_queued_events`), of 512
/// bytes where names are long.
fn watch(folder: &str) -> Result<Vec<OwnedFd>> {
    const WATCHERS: usize = 8;
    let watcher = || {
        let watcher = inotify::init(inotify::CreateFlags::CLOEXEC)?;
        inotify::add_watch(&watcher, folder, inotify::WatchFlags::CLOSE)?;
        Ok(watcher)
    };
    (0..WATCHERS).map(|_| watcher()).collect::<rustix::io::Result<_>>().context("watch a folder")
}

/// Opens two files alternately, many times, since identical successive events are reported once.
fn open_many(folder: &str) -> Result<Vec<File>> {
    // By default a process may open 4,096 files.
    const FILES: usize = 3_500;
    let nofile = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: nofile.maximum, ..nofile }).context("allow more files")?;
    let names = ["a", "b"].map(|name| Path::new(folder).join(name.repeat(240)));
    names.iter().cycle().take(FILES).map(|name| File::create(name).context("open a file")).collect()
}

/// Fills the page cache with pages that the kernel can reclaim at once.
fn write(mib: usize) -> Result<()> {
    let mut file = tempfile::tempfile_in(on_disk()?).context("make a file")?;
    let block = vec![1; MIB];
    for written in 1..=mib {
        file.write_all(&block).context("write a file")?;
        // With more dirty pages, cgroup v2 makes a writer in a small cgroup wait.
        if written.is_multiple_of(2) {
            file.sync_data().context("write a file to the disk")?;
        }
    }
    Ok(())
}

/// Changes a file: appends to it (`append`), overwrites its beginning (`rewrite`), truncates it (`truncate`),
/// removes it (`unlink`), allocates blocks (`fallocate`), writes to it through a mapping (`map`), writes it
/// back (`sync`), makes a directory (`mkdir`), or writes it, removes it and keeps it open until `close`
/// (`keep`).
fn change_file(step: &str) -> Result<Option<File>> {
    let mut words = step.split(' ');
    let mut word = || words.next().with_context(|| format!("step file {step:?}"));
    let (what, path) = (word()?, Path::new(word()?));
    let bytes = word()?.parse::<u64>().context("how many bytes")?;
    let open = || {
        let mut options = File::options();
        options.create(true).truncate(false).read(true).write(true).open(path).context("open a file")
    };
    match what {
        "append" => {
            let mut file = File::options().create(true).append(true).open(path).context("open a file")?;
            fill(&mut file, bytes)?;
        }
        "rewrite" => fill(&mut open()?, bytes)?,
        "truncate" => open()?.set_len(bytes).context("cut a file off")?,
        "unlink" => fs::remove_file(path).context("remove a file")?,
        "fallocate" => {
            rustix::fs::fallocate(open()?, rustix::fs::FallocateFlags::empty(), 0, bytes)
                .context("allocate blocks")?;
        }
        "map" => write_by_memory(&open()?, bytes as usize)?,
        "sync" => open()?.sync_all().context("write a file back")?,
        "mkdir" => fs::create_dir(path).context("make a directory")?,
        "keep" => {
            let mut file = open()?;
            fill(&mut file, bytes)?;
            fs::remove_file(path).context("remove a file")?;
            return Ok(Some(file));
        }
        other => bail!("unknown change of a file {other:?}"),
    }
    Ok(None)
}

fn fill(file: &mut File, bytes: u64) -> Result<()> {
    let block = vec![1; 64 << 10];
    let mut left = bytes as usize;
    while left > 0 {
        let part = left.min(block.len());
        file.write_all(&block[..part]).context("write a file")?;
        left -= part;
    }
    Ok(())
}

fn write_by_memory(file: &File, bytes: usize) -> Result<()> {
    if file.metadata().context("size a file")?.len() < bytes as u64 {
        file.set_len(bytes as u64).context("make a file longer")?;
    }
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address that the kernel chooses.
    let start = unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, file, 0) };
    let region = Region { start: start.context("map a file")?.cast(), bytes };
    region.touch();
    Ok(())
}

/// Makes this process the first choice of the OOM killer.
fn prefer_as_oom_victim() -> Result<()> {
    fs::write("/proc/self/oom_score_adj", "1000").context("ask to be killed first")
}

fn child(mib: usize) -> Result<()> {
    let mut child = Command::new("/proc/self/exe")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .context("start a child")?;
    let mut out = io::stdout();
    writeln!(out, "child {}", child.id()).context("name the child")?;
    let mut steps = child.stdin.take().context("the child's input")?;
    writeln!(steps, "prefer\ntouch {mib}").context("tell the child")?;
    drop(steps);
    let status = child.wait().context("wait for the child")?;
    writeln!(out, "ended {}", status.signal().unwrap_or(0)).context("name its end")
}
