//! Kernel kills of writers: the programs kill the process of the victim whose buffered write crosses the limit, once,
//! and no other process.

use std::os::unix::fs::MetadataExt as _;

use anyhow::Context as _;
use eviction_bpf::{ArmedDiskOrder, AttachWhen, KernelKillCause, LoadOptions};
use rustix::fs::statfs;
use tests::clock;
use tests::file_system::{FileSystem, Kind};

use super::{SECOND, assert_not_killed};
use crate::disk::{load, unlimited};
use crate::fixture::{Fixture, MIB, Stepper, need_bpf};
use crate::groups::Cgroup;

const HEADROOM: u64 = 32 * MIB;

/// A file system, the programs that count its usage, and an order on one of two pods.
struct Testbed {
    mounted: FileSystem,
    device: u64,
    victim: Cgroup,
    other: Cgroup,
    fixture: Fixture,
}

impl Testbed {
    /// Creates a testbed, or returns why there can be none here.
    fn new() -> anyhow::Result<Self> {
        let mounted = FileSystem::new(Kind::Ext4, 256 * MIB, "eviction-bpf-writers")
            .context("no ext4 can be mounted here")?;
        let disks = vec!["ext4".to_owned()];
        let options = LoadOptions { kernel_kill: true, disks, ..LoadOptions::default() };
        let mut fixture = load(&options).context("this kernel has no bpf_get_current_task_btf")?;
        fixture.attach(AttachWhen::NearDiskThreshold);
        let device = std::fs::metadata(mounted.path()).unwrap().dev();
        fixture.kernel.set_disk_threshold(unlimited(device), None).unwrap();
        assert!(fixture.kernel.can_kill_writers(device));
        Ok(Self { mounted, device, victim: Cgroup::new(), other: Cgroup::new(), fixture })
    }

    /// Arms an order on the victim that expires after `valid_ns`. Returns its number.
    fn arm(&mut self, valid_ns: u64) -> u64 {
        let order = ArmedDiskOrder {
            victim_id: self.victim.id(),
            device: self.device,
            expires_ns: clock::now() + valid_ns,
        };
        let since = self.fixture.kernel.disk_total(self.device).unwrap();
        self.fixture.kernel.arm_disk_kill(&order, since, HEADROOM).unwrap()
    }

    fn available(&self) -> u64 {
        let stat = statfs(self.mounted.path()).unwrap();
        stat.f_bavail * stat.f_bsize as u64
    }

    fn write(&self, name: &str) -> String {
        self.step("append", name)
    }

    fn step(&self, how: &str, name: &str) -> String {
        format!("file {how} {} {}", self.mounted.path().join(name).display(), 2 * HEADROOM)
    }
}

/// Makes a testbed, or ends the test.
macro_rules! testbed {
    () => {{
        need_bpf!();
        tests::or_skip!(Testbed::new())
    }};
}

/// This holds on every kernel: with kernel kill the verifier follows more paths.
#[test]
fn the_same_hooks_are_attached_with_and_without_kernel_kill() {
    need_bpf!();
    let attached = |kernel_kill| {
        let options = LoadOptions { kernel_kill, disks: vec!["ext4".to_owned()], ..LoadOptions::default() };
        let loaded = eviction_bpf::load(&options).unwrap();
        let sources = loaded.kernel.sources().iter();
        sources.map(|info| (info.source, info.backend)).collect::<Vec<_>>()
    };
    assert_eq!(attached(true), attached(false));
}

#[test]
fn only_one_writer_of_the_victim_is_killed_at_the_limit() {
    let mut testbed = testbed!();
    let container = testbed.victim.child("container");
    let mut writers = [(); 2].map(|()| Stepper::start(&container));
    let (number, before) = (testbed.arm(600 * SECOND), testbed.available());
    writers[0].send(&testbed.write("first"));
    assert_eq!(writers[0].ended_by(), Some(9));
    testbed.fixture.wait("the event", |reported| !reported.kernel_kills.is_empty());
    let kill = testbed.fixture.events.kernel_kills[0];
    assert_eq!((kill.order, kill.cause, kill.error), (number, KernelKillCause::Disk, None));
    assert_eq!((kill.victim_id, kill.leaf_id), (testbed.victim.id(), container.id()));
    assert_eq!(kill.tgid, writers[0].pid());
    assert!(kill.grown > HEADROOM && kill.grown <= HEADROOM + MIB, "{kill:?}");
    // A write checks for the signal after each folio of page cache, of 2 MiB at most.
    let taken = before - testbed.available();
    assert!((HEADROOM..HEADROOM + 3 * MIB).contains(&taken), "{taken}");
    writers[1].step(&testbed.write("second"));
    testbed.fixture.drain();
    assert_eq!(testbed.fixture.events.kernel_kills.len(), 1, "the order was carried out");
    assert!(testbed.fixture.kernel.disarm_disk_kill().unwrap());
}

#[test]
fn a_fault_in_a_mapped_file_counts_as_a_write() {
    let mut testbed = testbed!();
    let mut writer = Stepper::start(&testbed.victim);
    testbed.arm(600 * SECOND);
    writer.send(&testbed.step("map", "file"));
    assert_eq!(writer.ended_by(), Some(9));
    testbed.fixture.wait("the event", |reported| !reported.kernel_kills.is_empty());
    assert_eq!(testbed.fixture.events.kernel_kills[0].tgid, writer.pid());
}

#[test]
fn a_writer_of_another_pod_is_not_killed() {
    let mut testbed = testbed!();
    let mut writer = Stepper::start(&testbed.other);
    testbed.arm(600 * SECOND);
    writer.step(&testbed.write("file"));
    assert_not_killed(&mut testbed.fixture, "not_victim");
    assert!(!testbed.fixture.kernel.disarm_disk_kill().unwrap());
}

#[test]
fn write_back_of_what_was_reserved_before_is_not_taken() {
    let mut testbed = testbed!();
    let mut victim = Stepper::start(&testbed.victim);
    testbed.fixture.detach(AttachWhen::NearDiskThreshold);
    victim.step(&testbed.write("old"));
    testbed.fixture.attach(AttachWhen::NearDiskThreshold);
    testbed.arm(600 * SECOND);
    let mut other = Stepper::start(&testbed.other);
    let before = testbed.fixture.kernel.disk_total(testbed.device).unwrap();
    other.step(&testbed.step("sync", "old"));
    let after = testbed.fixture.kernel.disk_total(testbed.device).unwrap();
    assert!(after.bytes() - before.bytes() > HEADROOM as i64, "what was written back is counted: {after:?}");
    // Less than the headroom, so the threshold is not crossed.
    let little = format!("file append {} {}", testbed.mounted.path().join("new").display(), HEADROOM / 2);
    victim.step(&little);
    testbed.fixture.drain();
    assert_eq!(testbed.fixture.events.kernel_kills.len(), 0);
    victim.send(&testbed.write("new"));
    assert_eq!(victim.ended_by(), Some(9));
}

#[test]
fn an_expired_or_disarmed_order_is_not_carried_out() {
    let mut testbed = testbed!();
    let mut writer = Stepper::start(&testbed.victim);
    testbed.arm(600 * SECOND);
    assert!(!testbed.fixture.kernel.disarm_disk_kill().unwrap());
    writer.step(&testbed.write("disarmed"));
    testbed.arm(0);
    writer.step(&testbed.write("expired"));
    assert_not_killed(&mut testbed.fixture, "expired");
}
