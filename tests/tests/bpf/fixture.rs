//! Test fixtures: processes in the cgroups of a test, and the loaded BPF programs.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::fd::AsFd as _,
    process::{ChildStdin, ChildStdout, Command, Stdio},
    sync::OnceLock,
    time::Instant,
};

use aya::maps::{MapData, MapInfo};
use aya::programs::ProgramInfo;
use eviction_bpf::capabilities::{self, Lockdown};
use eviction_bpf::event::Alarm;
use eviction_bpf::{
    self, AttachWhen, BpfHandle, Counter, DiskThresholdCrossed, Event, EventClass, KernelKill,
    KernelThreshold, LoadOptions, Loaded, OomKill, ReclaimTime, Ring, TaskAlarm, TaskStats, ThresholdCrossed,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tests::process::{HANG, Process};

use crate::groups::{Cgroup, mount};

pub(crate) use tests::node::MIB;

/// Returns why the tests cannot run here; `None` if they can.
pub(crate) fn skip_reason() -> Option<&'static str> {
    static REASON: OnceLock<Option<String>> = OnceLock::new();
    REASON.get_or_init(|| find_skip_reason().err()).as_deref()
}

/// Returns why the tests that need all programs cannot run here; `None` if they can.
pub(crate) fn skip_reason_for_all_programs() -> Option<&'static str> {
    static REASON: OnceLock<Option<String>> = OnceLock::new();
    skip_reason().or_else(|| REASON.get_or_init(find_missing_sources).as_deref())
}

fn find_skip_reason() -> Result<(), String> {
    let group = mount().join(format!("eviction-bpf-probe-{}", std::process::id()));
    let made = fs::create_dir(&group).and_then(|()| fs::remove_dir(&group));
    made.map_err(|error| format!("make a cgroup in {}: {error}", mount().display()))?;
    eviction_bpf::load(&LoadOptions::default()).map(drop).map_err(|refused| refused.to_string())
}

/// Returns an error with the sources that a lockdown in confidentiality mode withholds. Without such a lockdown no
/// source may be missing.
fn find_missing_sources() -> Option<String> {
    if capabilities::facts().lockdown != Lockdown::Confidentiality {
        return None;
    }
    let missing = eviction_bpf::load(&LoadOptions::default()).ok()?.missing;
    let names: Vec<_> = missing.iter().map(|info| info.source).collect();
    (!names.is_empty()).then(|| format!("lockdown=confidentiality withholds {}", names.join(", ")))
}

/// A process in a cgroup that runs the steps written to its input.
pub(crate) struct Stepper {
    process: Process,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Stepper {
    pub(crate) fn start(group: &Cgroup) -> Self {
        let mut command = Command::new(tests::binary::find("stepper").unwrap());
        let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped())).unwrap();
        group.add_pid(process.pid());
        let input = process.child().stdin.take().unwrap();
        let output = BufReader::new(process.child().stdout.take().unwrap());
        Self { process, input, output }
    }

    /// Starts a process, and waits until it has touched so many MiB.
    pub(crate) fn with_memory(group: &Cgroup, mib: u64) -> Self {
        let mut process = Self::start(group);
        process.step(&format!("touch {mib}"));
        process
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Runs a step and waits until it is done.
    pub(crate) fn step(&mut self, step: &str) {
        self.send(step);
        assert_eq!(self.answer(), "ok", "after {step}");
    }

    /// Sends a step that may end the process.
    pub(crate) fn send(&mut self, step: &str) {
        writeln!(self.input, "{step}").unwrap();
    }

    /// Returns one line of the process's output; empty at the end of the output.
    pub(crate) fn answer(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Waits for the process to end, and returns the signal that ended it.
    pub(crate) fn ended_by(&mut self) -> Option<i32> {
        assert_eq!(self.answer(), "", "it should have ended");
        std::os::unix::process::ExitStatusExt::signal(&self.process.child().wait().unwrap())
    }

    /// Kills the process.
    pub(crate) fn kill(&mut self) {
        self.process.child().kill().unwrap();
        self.process.child().wait().unwrap();
    }

    /// Closes the input, so that the process ends, and waits for that.
    pub(crate) fn end(mut self) {
        drop(self.input);
        self.process.child().wait().unwrap();
    }
}

/// The events that the BPF programs have reported so far.
#[derive(Default)]
pub(crate) struct KernelEvents {
    pub(crate) crossed: Vec<ThresholdCrossed>,
    pub(crate) kills: Vec<OomKill>,
    pub(crate) marks: Vec<OomKill>,
    /// The ids of cgroups that were created.
    pub(crate) created: Vec<u64>,
    /// The ids of cgroups that were removed.
    pub(crate) removed: Vec<u64>,
    pub(crate) alarms: Vec<TaskAlarm>,
    pub(crate) kernel_kills: Vec<KernelKill>,
    pub(crate) disk: Vec<DiskThresholdCrossed>,
    pub(crate) events: u64,
    /// Whether a drain showed that events may have been lost before.
    pub(crate) may_have_lost: bool,
}

/// The loaded programs, their ring buffer and their events.
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
        assert_eq!(loaded.missing, [], "every event class is attached");
        Self::from_loaded(loaded)
    }

    /// Loads the programs where a lockdown may withhold other event classes than `class`.
    pub(crate) fn with_class(class: EventClass, options: &LoadOptions) -> Self {
        let loaded = eviction_bpf::load(options).unwrap();
        let missing = loaded.missing.iter().find(|info| info.source == class.name());
        assert_eq!(missing, None);
        Self::from_loaded(loaded)
    }

    pub(crate) fn from_loaded(loaded: Loaded) -> Self {
        Self { kernel: loaded.kernel, ring: loaded.ring, events: KernelEvents::default() }
    }

    /// Attaches the on-demand probe for `when`, which must exist.
    pub(crate) fn attach(&mut self, when: AttachWhen) {
        self.kernel.request_probe(when, true).unwrap();
        wait_until("a hook that is attached", || self.kernel.is_attached(when));
    }

    /// Detaches the on-demand probe for `when`.
    pub(crate) fn detach(&mut self, when: AttachWhen) {
        self.kernel.request_probe(when, false).unwrap();
        wait_until("a hook that is taken off", || !self.kernel.is_attached(when));
    }

    /// Reads the events that are in the ring buffer.
    pub(crate) fn drain(&mut self) {
        let reported = &mut self.events;
        let drained = self.ring.drain(|event| match event {
            Event::ThresholdCrossed(crossed) => reported.crossed.push(crossed),
            Event::OomKill(kill) => reported.kills.push(kill),
            Event::OomMark(mark) => reported.marks.push(mark),
            Event::CgroupCreated(id) => reported.created.push(id),
            Event::CgroupRemoved(id) => reported.removed.push(id),
            Event::TaskAlarm(alarm) => reported.alarms.push(alarm),
            Event::KernelKill(kill) => reported.kernel_kills.push(kill),
            Event::DiskThresholdCrossed(crossed) => reported.disk.push(crossed),
        });
        assert_eq!((drained.malformed, drained.why), (0, None));
        reported.events += drained.events;
        reported.may_have_lost |= drained.may_have_lost;
    }

    /// Waits until `found` holds for the events so far. The ring buffer wakes this function.
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

    /// Waits for a moment in which every record was read, or counted as lost by the programs.
    pub(crate) fn wait_until_all_records_are_known(&mut self) {
        wait_until("every record to be read or counted as lost", || {
            let lost = self.kernel.lost().unwrap();
            self.drain();
            lost.get(Counter::Records) == self.events.events + lost.records_lost()
        });
    }

    /// Returns the crossings of one threshold setting that have been reported so far.
    pub(crate) fn crossings(&mut self, generation: u64) -> Vec<ThresholdCrossed> {
        self.drain();
        let ours = self.events.crossed.iter();
        ours.filter(|crossed| crossed.generation == generation).copied().collect()
    }

    /// Returns the only crossing of one threshold setting that has been reported so far; `what` is the case.
    pub(crate) fn only_crossing(&mut self, generation: u64, what: &str) -> ThresholdCrossed {
        let crossings = self.crossings(generation);
        let [crossed] = crossings.as_slice() else { panic!("{what}: one crossing, not {crossings:?}") };
        *crossed
    }

    /// Returns what the kernel reports about each of the programs.
    pub(crate) fn programs(&self) -> impl Iterator<Item = ProgramInfo> {
        let ours = self.kernel.program_ids();
        let loaded = aya::programs::loaded_programs().filter_map(Result::ok);
        loaded.filter(move |program| ours.contains(&program.id()))
    }

    /// Takes the ids of the memory cgroups that charged since the last call.
    pub(crate) fn take_charged(&self) -> Vec<u64> {
        let mut charged = Vec::new();
        self.kernel.take_charged(|id| charged.push(id)).unwrap();
        charged
    }

    /// Sets a threshold on a cgroup that no charge reaches, so that its charges are counted from now on.
    pub(crate) fn count_gross_charges(&mut self, id: u64) {
        let far = KernelThreshold { gross: Some(1 << 50), ..KernelThreshold::default() };
        self.kernel.set_threshold(id, far).unwrap();
    }

    /// Returns how many bytes were charged to a cgroup whose charges are counted.
    pub(crate) fn gross_bytes(&self, id: u64) -> u64 {
        self.kernel.read_threshold(id).unwrap().gross * rustix::param::page_size() as u64
    }

    /// Returns what the tasks of a memory cgroup did since the programs were attached.
    pub(crate) fn task_count(&self, id: u64) -> TaskStats {
        let mut counts = Vec::new();
        self.kernel.task_counts(&mut counts).unwrap();
        counts.into_iter().find(|(of, _)| *of == id).map(|(_, count)| count).unwrap_or_default()
    }

    /// Returns what the tasks of a memory cgroup spent in reclaim since the programs were attached.
    pub(crate) fn reclaim_time(&self, id: u64) -> ReclaimTime {
        let mut times = Vec::new();
        self.kernel.reclaim_times(&mut times).unwrap();
        times.into_iter().find(|(of, _)| *of == id).map(|(_, time)| time).unwrap_or_default()
    }

    /// Returns how often the programs ran while the kernel counted it.
    pub(crate) fn program_runs(&self) -> u64 {
        self.programs().map(|program| program.run_count()).sum()
    }

    /// Returns a map of these programs: another test may have loaded one of the same name.
    pub(crate) fn map(&self, name: &str) -> MapData {
        let mut ids = self.programs().flat_map(|program| program.map_ids().unwrap().unwrap());
        let named = |id: &u32| MapInfo::from_id(*id).unwrap().name_as_str() == Some(name);
        MapData::from_id(ids.find(named).unwrap()).unwrap()
    }

    /// Returns the alarms with this key that have been reported so far.
    pub(crate) fn alarms(&mut self, alarm: Alarm, key_id: u64) -> Vec<TaskAlarm> {
        self.drain();
        let ours =
            self.events.alarms.iter().filter(|reported| (reported.alarm, reported.key_id) == (alarm, key_id));
        ours.copied().collect()
    }

    /// Waits for the OOM kill of this process, and returns it.
    pub(crate) fn wait_for_oom_kill(&mut self, tgid: u32) -> OomKill {
        self.wait("an out-of-memory kill", |reported| reported.kills.iter().any(|kill| kill.tgid == tgid));
        self.events.kills.iter().find(|kill| kill.tgid == tgid).unwrap().clone()
    }
}

/// Returns a threshold that reports usage above `bytes`, once.
pub(crate) fn above(bytes: u64) -> KernelThreshold {
    KernelThreshold { usage_above: Some(bytes), ..KernelThreshold::default() }
}

/// Waits until `found` returns true.
pub(crate) fn wait_until(what: &str, found: impl FnMut() -> bool) {
    tests::process::wait_until(what, found).unwrap();
}

/// Ends a test that needs all programs if this machine cannot run it.
macro_rules! need_bpf {
    () => {
        if let Some(why) = crate::fixture::skip_reason_for_all_programs() {
            tests::skip!("{why}");
        }
    };
}
pub(crate) use need_bpf;

/// Ends the test if this machine cannot load programs at all; for tests that do not need all of them.
macro_rules! need_some_bpf {
    () => {
        if let Some(why) = crate::fixture::skip_reason() {
            tests::skip!("{why}");
        }
    };
}
pub(crate) use need_some_bpf;
