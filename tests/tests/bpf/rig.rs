//! Private memory cgroups, processes in them, and the programs loaded beside.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use eviction_agent::source::bpf::event::Alarm;
use eviction_agent::source::bpf::probe::{self, Lockdown};
use eviction_agent::source::bpf::{
    self, CgroupChange, Crossed, Event, Generation, Kernel, LoadOptions, Loaded, OomKill, Ring, Struck,
    TaskAlarm, When,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tests::process::HANG;

pub(crate) const MIB: u64 = 1 << 20;

/// Where the memory controller is.
pub(crate) fn mount() -> PathBuf {
    let v1 = Path::new("/sys/fs/cgroup/memory");
    match v1.is_dir() {
        true => v1.to_owned(),
        false => PathBuf::from("/sys/fs/cgroup"),
    }
}

/// Why the tests cannot run here, if they cannot.
pub(crate) fn obstacle() -> Option<&'static str> {
    static OBSTACLE: OnceLock<Option<String>> = OnceLock::new();
    OBSTACLE.get_or_init(|| find_obstacle().err()).as_deref()
}

/// Why those cannot that are about all programs.
pub(crate) fn obstacle_to_all() -> Option<&'static str> {
    static WITHHELD: OnceLock<Option<String>> = OnceLock::new();
    obstacle().or_else(|| WITHHELD.get_or_init(find_withheld).as_deref())
}

fn find_obstacle() -> Result<(), String> {
    let group = mount().join(format!("eviction-bpf-probe-{}", std::process::id()));
    let made = fs::create_dir(&group).and_then(|()| fs::remove_dir(&group));
    made.map_err(|error| format!("make a cgroup in {}: {error}", mount().display()))?;
    bpf::load(&LoadOptions::default()).map(drop).map_err(|refused| refused.to_string())
}

/// What the kernel keeps from every program by a lockdown; elsewhere nothing may be missing.
fn find_withheld() -> Option<String> {
    if probe::facts().lockdown != Lockdown::Confidentiality {
        return None;
    }
    let missing = bpf::load(&LoadOptions::default()).ok()?.missing;
    let names: Vec<_> = missing.iter().map(|info| info.source).collect();
    (!names.is_empty()).then(|| format!("lockdown=confidentiality withholds {}", names.join(", ")))
}

fn serial() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A memory cgroup. Dropping it kills what is in it and removes it with all below it.
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    pub(crate) fn new() -> Self {
        let name = format!("eviction-bpf-{}-{}", std::process::id(), serial());
        let group = Self { path: mount().join(name) };
        group.make();
        group
    }

    pub(crate) fn child(&self, name: &str) -> Self {
        let group = Self { path: self.path.join(name) };
        group.make();
        group
    }

    fn make(&self) {
        let control = self.path.parent().unwrap().join("cgroup.subtree_control");
        if control.exists() {
            let _ = fs::write(&control, "+memory");
            let _ = fs::write(control, "+pids");
        }
        fs::create_dir(&self.path).unwrap();
    }

    pub(crate) fn id(&self) -> u64 {
        fs::metadata(&self.path).unwrap().ino()
    }

    /// Its directory.
    pub(crate) fn folder(&self) -> &Path {
        &self.path
    }

    /// Moves a process into it.
    pub(crate) fn add(&self, process: &Stepper) {
        fs::write(self.path.join("cgroup.procs"), process.pid().to_string()).unwrap();
    }

    /// The path below the mount, as records have it.
    pub(crate) fn path(&self) -> String {
        format!("/{}", self.path.strip_prefix(mount()).unwrap().display())
    }

    pub(crate) fn limit(&self, bytes: u64) {
        let v1 = self.path.join("memory.limit_in_bytes");
        let file = if v1.exists() { v1 } else { self.path.join("memory.max") };
        fs::write(file, bytes.to_string()).unwrap();
    }

    pub(crate) fn usage(&self) -> u64 {
        let v1 = self.path.join("memory.usage_in_bytes");
        let file = if v1.exists() { v1 } else { self.path.join("memory.current") };
        fs::read_to_string(file).unwrap().trim().parse().unwrap()
    }

    /// The most that was charged to it since the last reset; version 2 tells it from 5.19 on.
    pub(crate) fn peak(&self) -> Option<u64> {
        let files = ["memory.max_usage_in_bytes", "memory.peak"].map(|name| self.path.join(name));
        let text = fs::read_to_string(files.iter().find(|file| file.exists())?).unwrap();
        Some(text.trim().parse().unwrap())
    }

    /// Where the kernel can (version 1), the peak is counted anew.
    pub(crate) fn reset_peak(&self) {
        let v1 = self.path.join("memory.max_usage_in_bytes");
        if v1.exists() {
            fs::write(v1, "0").unwrap();
        }
    }

    /// Moves a process into it.
    pub(crate) fn take(&self, pid: u32) {
        fs::write(self.path.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// How many of its processes the kernel killed, as the kernel itself counts it.
    pub(crate) fn oom_kills(&self) -> u64 {
        let v1 = self.path.join("memory.oom_control");
        let file = if v1.exists() { v1 } else { self.path.join("memory.events") };
        let text = fs::read_to_string(file).unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.unwrap().parse().unwrap()
    }

    /// Removes it, which the kernel refuses for a moment after its last process ended.
    pub(crate) fn remove(&self) {
        let start = Instant::now();
        while let Err(error) = remove_tree(&self.path) {
            assert!(start.elapsed() < HANG, "remove {}: {error}", self.path.display());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The same group in the hierarchy of the pids controller: another directory on v1.
pub(crate) struct Pids {
    path: PathBuf,
    is_apart: bool,
}

impl Pids {
    pub(crate) fn of(group: &Cgroup) -> Self {
        let v1 = Path::new("/sys/fs/cgroup/pids");
        let is_apart = v1.is_dir();
        let path = match is_apart {
            true => v1.join(group.path.strip_prefix(mount()).unwrap()),
            false => group.path.clone(),
        };
        if is_apart {
            fs::create_dir_all(&path).unwrap();
        }
        Self { path, is_apart }
    }

    pub(crate) fn id(&self) -> u64 {
        fs::metadata(&self.path).unwrap().ino()
    }

    pub(crate) fn limit(&self, tasks: u64) {
        fs::write(self.path.join("pids.max"), tasks.to_string()).unwrap();
    }

    pub(crate) fn add(&self, process: &Stepper) {
        fs::write(self.path.join("cgroup.procs"), process.pid().to_string()).unwrap();
    }

    pub(crate) fn current(&self) -> i64 {
        fs::read_to_string(self.path.join("pids.current")).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Pids {
    fn drop(&mut self) {
        let start = Instant::now();
        while self.is_apart && remove_tree(&self.path).is_err() && start.elapsed() < HANG {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if self.path.exists() {
            self.remove();
        }
    }
}

fn remove_tree(path: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(path)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    for pid in fs::read_to_string(path.join("cgroup.procs"))?.lines() {
        if let Some(pid) = pid.parse().ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    fs::remove_dir(path)
}

/// A process in a cgroup that does what it is told.
pub(crate) struct Stepper {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Stepper {
    pub(crate) fn start(group: &Cgroup) -> Self {
        let mut child = Command::new(tests::binary::find("stepper").unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        fs::write(group.path.join("cgroup.procs"), child.id().to_string()).unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input, output }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Does a step and waits until it is done.
    pub(crate) fn step(&mut self, step: &str) {
        self.tell(step);
        assert_eq!(self.answer(), "ok", "after {step}");
    }

    /// Tells a step that may be its last.
    pub(crate) fn tell(&mut self, step: &str) {
        writeln!(self.input, "{step}").unwrap();
    }

    /// One line of its output; empty at the end.
    pub(crate) fn answer(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Waits for its end, and gives the signal that ended it.
    pub(crate) fn ended_by(&mut self) -> Option<i32> {
        assert_eq!(self.answer(), "", "it should have ended");
        std::os::unix::process::ExitStatusExt::signal(&self.child.wait().unwrap())
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Lets it end.
    pub(crate) fn end(mut self) {
        drop(std::mem::replace(&mut self.input, dead_input()));
        self.child.wait().unwrap();
    }
}

/// The input of a process that has ended.
fn dead_input() -> ChildStdin {
    let mut child = Command::new("true").stdin(Stdio::piped()).spawn().unwrap();
    let input = child.stdin.take().unwrap();
    child.wait().unwrap();
    input
}

impl Drop for Stepper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the kernel told so far.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) crossed: Vec<Crossed>,
    pub(crate) kills: Vec<OomKill>,
    pub(crate) marks: Vec<OomKill>,
    pub(crate) made: Vec<Change>,
    pub(crate) gone: Vec<Change>,
    pub(crate) alarms: Vec<TaskAlarm>,
    pub(crate) struck: Vec<Struck>,
    pub(crate) events: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) id: u64,
    pub(crate) path: String,
    pub(crate) cut: bool,
    pub(crate) level: u32,
}

impl Change {
    fn of(change: &CgroupChange<'_>) -> Self {
        Self {
            id: change.id,
            path: String::from_utf8_lossy(change.path).into_owned(),
            cut: change.cut,
            level: change.level,
        }
    }
}

/// The programs, loaded.
pub(crate) struct Rig {
    pub(crate) kernel: Kernel,
    pub(crate) ring: Ring,
    pub(crate) told: Told,
}

impl Rig {
    pub(crate) fn load() -> Self {
        Self::with(&LoadOptions::default())
    }

    pub(crate) fn with(options: &LoadOptions) -> Self {
        let loaded = bpf::load(options).unwrap();
        assert_eq!(loaded.missing, [], "every family is attached");
        Self::of(loaded)
    }

    pub(crate) fn of(loaded: Loaded) -> Self {
        Self { kernel: loaded.kernel, ring: loaded.ring, told: Told::default() }
    }

    /// Attaches the hook for a time that is good for this, which there is.
    pub(crate) fn attach(&mut self, when: When) {
        self.kernel.ask(when, true).unwrap();
        wait_until("a hook that is attached", || self.kernel.is_attached(when));
    }

    /// Takes it off.
    pub(crate) fn detach(&mut self, when: When) {
        self.kernel.ask(when, false).unwrap();
        wait_until("a hook that is taken off", || !self.kernel.is_attached(when));
    }

    /// Takes in what is there.
    pub(crate) fn drain(&mut self) {
        let told = &mut self.told;
        let drained = self.ring.drain(|event| match event {
            Event::Crossed(crossed) => told.crossed.push(crossed),
            Event::OomKill(kill) => told.kills.push(kill),
            Event::OomMark(mark) => told.marks.push(mark),
            Event::CgroupMade(change) => told.made.push(Change::of(&change)),
            Event::CgroupGone(change) => told.gone.push(Change::of(&change)),
            Event::TaskAlarm(alarm) => told.alarms.push(alarm),
            Event::Struck(struck) => told.struck.push(struck),
        });
        assert_eq!((drained.malformed, drained.why), (0, None));
        told.events += drained.events;
    }

    /// Waits for what must come; woken by the ring.
    pub(crate) fn wait(&mut self, what: &str, found: impl Fn(&Told) -> bool) {
        let start = Instant::now();
        loop {
            self.drain();
            if found(&self.told) {
                return;
            }
            assert!(start.elapsed() < HANG, "waited in vain for {what}");
            let timeout = Timespec { tv_sec: 1, tv_nsec: 0 };
            let ring = self.ring.as_fd();
            let mut descriptors = [PollFd::new(&ring, PollFlags::IN)];
            let _ = poll(&mut descriptors, Some(&timeout));
        }
    }

    /// The crossings of one arming that came so far.
    pub(crate) fn crossings(&mut self, generation: Generation) -> Vec<Crossed> {
        self.drain();
        let ours = self.told.crossed.iter();
        ours.filter(|crossed| crossed.generation == generation.0).copied().collect()
    }

    /// How often the programs ran while the kernel counted it.
    pub(crate) fn firings(&self) -> u64 {
        let ours = self.kernel.program_ids();
        let loaded = aya::programs::loaded_programs().filter_map(Result::ok);
        loaded.filter(|program| ours.contains(&program.id())).map(|program| program.run_count()).sum()
    }

    /// The alarms with this key that came so far.
    pub(crate) fn alarms(&mut self, alarm: Alarm, key_id: u64) -> Vec<TaskAlarm> {
        self.drain();
        let ours = self.told.alarms.iter().filter(|told| (told.alarm, told.key_id) == (alarm, key_id));
        ours.copied().collect()
    }

    /// The kill of this process.
    pub(crate) fn kill_of(&mut self, tgid: u32) -> OomKill {
        self.wait("an out-of-memory kill", |told| told.kills.iter().any(|kill| kill.tgid == tgid));
        self.told.kills.iter().find(|kill| kill.tgid == tgid).unwrap().clone()
    }
}

/// Waits for what must become true.
pub(crate) fn wait_until(what: &str, mut found: impl FnMut() -> bool) {
    let start = Instant::now();
    while !found() {
        assert!(start.elapsed() < HANG, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Prints what the task that runs the tests counts, past the harness's capture.
pub(crate) fn report_skip(reason: &str) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("unnamed");
    let line = format!("SKIPPED {name}: {}\n", reason.replace('\n', " "));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Ends a test that this machine cannot run.
macro_rules! need_bpf {
    () => {
        if let Some(why) = crate::rig::obstacle_to_all() {
            crate::rig::report_skip(why);
            return;
        }
    };
}
pub(crate) use need_bpf;

/// The same for a test that takes what there is.
macro_rules! need_some_bpf {
    () => {
        if let Some(why) = crate::rig::obstacle() {
            crate::rig::report_skip(why);
            return;
        }
    };
}
pub(crate) use need_some_bpf;
