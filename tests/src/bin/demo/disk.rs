//! A pod fills nodefs with bytes or inodes. A neighbour that uses more of them is not evicted.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::fs::{StatVfs, statvfs};
use serde_json::json;
use tests::agent::Event;
use tests::death::DeathWatcher;
use tests::file_system::{FileSystem, Kind};
use tests::node::{MIB, PodSpec};
use tests::stamps::{Reached, Record, STEP};

use crate::hard::{MEMORY, PIDS};
use crate::pods::{self, Bystander};
use crate::testbed::{GUARD, Testbed};
use crate::timeline::Timeline;
use crate::variant::Variant;

const DISK: u64 = 1024 * MIB;

/// The resource that runs out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortage {
    signal: &'static str,
    unit: &'static str,
    /// How much a process may take before the threshold is met.
    headroom: u64,
    /// What each bystander takes; the first takes more than the runaway.
    bystander_amounts: [u64; 2],
    /// What the runaway takes per second.
    rate: u64,
    /// What it takes between two stamps.
    step: u64,
    available: fn(&StatVfs) -> u64,
    /// The mode of the workload, its options for the place and the amount, and the event at its end.
    mode: &'static str,
    place: (&'static str, &'static str),
    most: &'static str,
    event: &'static str,
}

impl Shortage {
    pub(crate) const BYTES: Self = Self {
        signal: "nodefs.available",
        unit: "bytes",
        headroom: 160 * MIB,
        bystander_amounts: [240 * MIB, 16 * MIB],
        rate: 256 * MIB,
        step: STEP,
        available: |stat| stat.f_bavail * stat.f_frsize,
        mode: "write",
        place: ("--file", "file"),
        most: "--size",
        event: "written",
    };
    pub(crate) const INODES: Self = Self {
        signal: "nodefs.inodesFree",
        unit: "inodes",
        headroom: 12_000,
        bystander_amounts: [16_000, 500],
        rate: 20_000,
        step: 1,
        available: |stat| stat.f_ffree,
        mode: "create",
        place: ("--dir", ""),
        most: "--max",
        event: "created",
    };

    fn available(&self, path: &Path) -> Result<u64> {
        let stat = statvfs(path).with_context(|| format!("read the file system of {}", path.display()))?;
        Ok((self.available)(&stat))
    }

    /// Returns the arguments of a process that takes `amount`, at `rate` per second.
    fn arguments(&self, volume: &Path, amount: u64, rate: u64) -> Vec<String> {
        let (option, name) = self.place;
        let place = volume.join(name).display().to_string();
        let [amount, rate] = [amount, rate].map(|number| number.to_string());
        [self.mode, option, &place, self.most, &amount, "--rate", &rate].map(str::to_owned).into()
    }
}

pub(crate) fn run(testbed: &mut Testbed<'_>, shortage: Shortage, variant: Variant) -> Result<()> {
    let disk = disk(testbed)?;
    let mut node = testbed.node(MEMORY, PIDS)?;
    let with_volume = |spec: PodSpec| PodSpec { volume: Some("scratch"), ..spec };
    let checkout = node.add(with_volume(PodSpec { storage_request_mib: 400, ..pods::checkout() }))?;
    let etcd = node.add(with_volume(pods::etcd()))?;
    let report = node.add(with_volume(PodSpec { storage_request_mib: 16, ..pods::report() }))?;
    let volumes = node.pods.iter().map(|pod| pod.create_volume(&disk)).collect::<Result<Vec<_>>>()?;
    let mut bystanders = Vec::new();
    for (index, amount) in [checkout, etcd].into_iter().zip(shortage.bystander_amounts) {
        let arguments = shortage.arguments(&volumes[index], amount, 0);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let pod = &node.pods[index];
        let process = testbed.start_and_wait(pod.first()?, &arguments, shortage.event)?;
        bystanders.push(Bystander::new(pod, process));
    }
    let threshold = shortage.available(disk.path())?.saturating_sub(shortage.headroom);
    describe(testbed, shortage, threshold);
    let config = json!({"evictionHard": {shortage.signal: threshold.to_string()}});
    let options = testbed.options(&node, &config)?.on_disk(&disk);
    let mut agent = testbed.start(&options, "nodefs")?;
    let active_variant = variant.begin(testbed, &node)?;
    let kills_before = node.oom_kills()?;

    let stamps = node.file("stamps-disk");
    let mut arguments = shortage.arguments(&volumes[report], 2 * shortage.headroom, shortage.rate);
    arguments.extend(["--stamps".to_owned(), stamps.display().to_string()]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let pod = &node.pods[report];
    let mut runaway = testbed.process(pod.first()?, &arguments)?;
    let before = shortage.available(disk.path())?;
    let death = DeathWatcher::start(&pod.group, runaway.pid())?;
    runaway.go()?;
    let Some(decision) = testbed.wait_for_eviction(&mut agent, shortage.signal, pod)? else {
        return Ok(());
    };
    let dead = death.wait(testbed.interrupt, GUARD)?;
    active_variant.end(testbed)?;
    record(testbed, shortage, &Record::read(&stamps)?, before - threshold, &decision, dead)?;
    let seen = decision.number("available").context("the decision has no available amount")?;
    testbed.check("the agent found less than the threshold", seen < threshold, format_args!("{seen}"));

    // The kubelet removes the volumes of a pod that has ended.
    fs::remove_dir_all(&volumes[report]).context("remove the volume of the pod that has ended")?;
    let available = shortage.available(disk.path())?;
    let expected = format!("nodefs has its {} back", shortage.unit);
    testbed.check(expected, available >= threshold, format_args!("{available} of {threshold}"));

    let reasons = ["it uses more, within its request", "critical, being static"];
    pods::check_one_decision(testbed, &mut agent, &mut bystanders, reasons)?;
    pods::check_one_eviction(testbed, &node, kills_before, agent, (shortage.signal, report))
}

/// Returns an ext4 on a loop device, or a tmpfs where that cannot be mounted.
fn disk(testbed: &mut Testbed<'_>) -> Result<FileSystem> {
    testbed.interrupt.check()?;
    let disk = match FileSystem::new(Kind::Ext4, DISK, "eviction-demo-disk") {
        Ok(disk) => disk,
        Err(error) => {
            testbed
                .printer
                .line("disk", format_args!("a tmpfs stands for nodefs: no loop mount here: {error:#}"));
            FileSystem::new(Kind::Tmpfs, DISK, "eviction-demo-disk").map_err(|error| {
                crate::testbed::Skip(format!("no file system can be mounted here: {error:#}"))
            })?
        }
    };
    testbed.value("file_system", disk.kind().name());
    Ok(disk)
}

fn describe(testbed: &Testbed<'_>, shortage: Shortage, threshold: u64) {
    let (signal, unit, headroom) = (shortage.signal, shortage.unit, shortage.headroom);
    testbed
        .printer
        .line("node", format_args!("{signal} is below {threshold} once {headroom} {unit} are taken"));
    let [checkout, etcd] = shortage.bystander_amounts;
    testbed.printer.line("pod", format_args!("shop/checkout     {checkout} {unit}, 400Mi requested"));
    testbed.printer.line("pod", format_args!("kube-system/etcd  {etcd} {unit}: critical, being static"));
    let rate = shortage.rate;
    testbed
        .printer
        .line("pod", format_args!("batch/report      takes {rate} {unit} a second, 16Mi requested"));
}

fn record(
    testbed: &mut Testbed<'_>,
    shortage: Shortage,
    record: &Record,
    headroom: u64,
    decision: &Event,
    dead: u64,
) -> Result<()> {
    let unit = shortage.unit;
    // The agent may stop the runaway between the write that crosses the threshold and its stamp.
    let reached = record.reached_by_steps(headroom + 1, shortage.step);
    let reached = reached.with_context(|| format!("the threshold was never crossed: {:?}", record.last()))?;
    let what = match reached {
        Reached::ByStamp(_) => "the threshold was crossed, by the runaway's own statfs",
        Reached::AfterStamp(_) => {
            "the step that crossed the threshold was next; the runaway was stopped within it"
        }
    };
    let crossed = reached.ns();
    testbed.timeline = Timeline::crossed(crossed, what);
    testbed.mark_decision(decision);
    testbed.timeline.mark("dead", dead, "its last process was gone");
    testbed.printer.timeline(testbed);
    let decided = decision.number("decided_mono_ns").context("the decision has no time")?;
    // The agent may decide within the step that crosses the threshold.
    let began = record.step_to(headroom).unwrap_or(crossed);
    let overshoot = record.bytes_at(decided).saturating_sub(headroom);
    testbed.check(
        "after the crossing, not before",
        decided >= began,
        format_args!("{} µs too early", began.saturating_sub(decided) / 1000),
    );
    testbed.value("victim", decision.pod());
    testbed.value(&format!("overshoot_at_decision_{unit}"), overshoot);
    Ok(())
}
