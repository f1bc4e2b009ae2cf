//! Processes in the groups of a test, and the programs loaded beside.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::fd::AsFd as _,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use eviction_bpf::capabilities::{self, Lockdown};
use eviction_bpf::event::Alarm;
use eviction_bpf::{
    self, AttachWhen, BpfHandle, CgroupChange, DiskThresholdCrossed, Event, EventClass, Generation,
    KernelKill, KernelThreshold, LoadOptions, Loaded, OomKill, Ring, TaskAlarm, ThresholdCrossed,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tests::process::HANG;

use crate::groups::{Cgroup, mount};

pub(crate) const MIB: u64 = 1 << 20;

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
    eviction_bpf::load(&LoadOptions::default()).map(drop).map_err(|refused| refused.to_string())
}

/// What the kernel keeps from every program by a lockdown; elsewhere nothing may be missing.
fn find_withheld() -> Option<String> {
    if capabilities::facts().lockdown != Lockdown::Confidentiality {
        return None;
    }
    let missing = eviction_bpf::load(&LoadOptions::default()).ok()?.missing;
    let names: Vec<_> = missing.iter().map(|info| info.source).collect();
    (!names.is_empty()).then(|| format!("lockdown=confidentiality withholds {}", names.join(", ")))
}

/// A process in a cgroup that does what its input says.
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
        group.take(child.id());
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input, output }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Does a step and waits until it is done.
    pub(crate) fn step(&mut self, step: &str) {
        self.send(step);
        assert_eq!(self.answer(), "ok", "after {step}");
    }

    /// Tells a step that may be its last.
    pub(crate) fn send(&mut self, step: &str) {
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

/// What the kernel reported so far.
#[derive(Default)]
pub(crate) struct KernelEvents {
    pub(crate) crossed: Vec<ThresholdCrossed>,
    pub(crate) kills: Vec<OomKill>,
    pub(crate) marks: Vec<OomKill>,
    pub(crate) made: Vec<CgroupChange>,
    pub(crate) gone: Vec<CgroupChange>,
    pub(crate) alarms: Vec<TaskAlarm>,
    pub(crate) kernel_kills: Vec<KernelKill>,
    pub(crate) disk: Vec<DiskThresholdCrossed>,
    pub(crate) events: u64,
}

/// The programs, loaded.
pub(crate) struct Fixture {
    pub(crate) kernel: BpfHandle,
    pub(crate) ring: Ring,
    pub(crate) events: KernelEvents,
}

impl Fixture {
    pub(crate) fn load() -> Self {
        Self::with(&LoadOptions::default())
    }

    pub(crate) fn with(options: &LoadOptions) -> Self {
        let loaded = eviction_bpf::load(options).unwrap();
        assert_eq!(loaded.missing, [], "every family is attached");
        Self::of(loaded)
    }

    /// The same where a lockdown may withhold other families than this one.
    pub(crate) fn with_some(family: EventClass, options: &LoadOptions) -> Self {
        let loaded = eviction_bpf::load(options).unwrap();
        let missing = loaded.missing.iter().find(|info| info.source == family.name());
        assert_eq!(missing, None);
        Self::of(loaded)
    }

    pub(crate) fn of(loaded: Loaded) -> Self {
        Self { kernel: loaded.kernel, ring: loaded.ring, events: KernelEvents::default() }
    }

    /// Attaches the hook for a time that is good for this, which there is.
    pub(crate) fn attach(&mut self, when: AttachWhen) {
        self.kernel.request_probe(when, true).unwrap();
        wait_until("a hook that is attached", || self.kernel.is_attached(when));
    }

    /// Takes it off.
    pub(crate) fn detach(&mut self, when: AttachWhen) {
        self.kernel.request_probe(when, false).unwrap();
        wait_until("a hook that is taken off", || !self.kernel.is_attached(when));
    }

    /// Takes in what is there.
    pub(crate) fn drain(&mut self) {
        let reported = &mut self.events;
        let drained = self.ring.drain(|event| match event {
            Event::ThresholdCrossed(crossed) => reported.crossed.push(crossed),
            Event::OomKill(kill) => reported.kills.push(kill),
            Event::OomMark(mark) => reported.marks.push(mark),
            Event::CgroupCreated(change) => reported.made.push(change),
            Event::CgroupRemoved(change) => reported.gone.push(change),
            Event::TaskAlarm(alarm) => reported.alarms.push(alarm),
            Event::KernelKill(kill) => reported.kernel_kills.push(kill),
            Event::DiskThresholdCrossed(crossed) => reported.disk.push(crossed),
        });
        assert_eq!((drained.malformed, drained.why), (0, None));
        reported.events += drained.events;
    }

    /// Waits for what must come; woken by the ring.
    pub(crate) fn wait(&mut self, what: &str, found: impl Fn(&KernelEvents) -> bool) {
        let start = Instant::now();
        loop {
            self.drain();
            if found(&self.events) {
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
    pub(crate) fn crossings(&mut self, generation: Generation) -> Vec<ThresholdCrossed> {
        self.drain();
        let ours = self.events.crossed.iter();
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
        let ours =
            self.events.alarms.iter().filter(|reported| (reported.alarm, reported.key_id) == (alarm, key_id));
        ours.copied().collect()
    }

    /// The kill of this process.
    pub(crate) fn kill_of(&mut self, tgid: u32) -> OomKill {
        self.wait("an out-of-memory kill", |reported| reported.kills.iter().any(|kill| kill.tgid == tgid));
        self.events.kills.iter().find(|kill| kill.tgid == tgid).unwrap().clone()
    }
}

/// So much usage is to be reported, once.
pub(crate) fn above(bytes: u64) -> KernelThreshold {
    KernelThreshold { usage_above: Some(bytes), ..KernelThreshold::default() }
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
        if let Some(why) = crate::fixture::obstacle_to_all() {
            crate::fixture::report_skip(why);
            return;
        }
    };
}
pub(crate) use need_bpf;

/// The same for a test that takes what there is.
macro_rules! need_some_bpf {
    () => {
        if let Some(why) = crate::fixture::obstacle() {
            crate::fixture::report_skip(why);
            return;
        }
    };
}
pub(crate) use need_some_bpf;
