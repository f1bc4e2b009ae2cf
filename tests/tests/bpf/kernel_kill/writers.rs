//! Kernel kill for writers: the process of the victim whose buffered write crosses the limit, once, and no other.

use std::os::unix::fs::MetadataExt as _;

use eviction_bpf::{ArmedDiskOrder, AttachWhen, DiskHeadroom, KernelKillCause, LoadOptions};
use rustix::fs::statfs;
use tests::file_system::{FileSystem, Kind};

use super::{SECOND, assert_not_killed, now_ns};
use crate::groups::Cgroup;
use crate::rig::{MIB, Rig, Stepper, need_bpf, report_skip};

const HEADROOM: u64 = 32 * MIB;

/// A file system, the programs that count what is taken of it, and an order on one of two pods.
struct Scene {
    mounted: FileSystem,
    device: u64,
    victim: Cgroup,
    other: Cgroup,
    rig: Rig,
}

impl Scene {
    /// Or why there is none here.
    fn new() -> Result<Self, String> {
        let mounted = FileSystem::new(Kind::Ext4, 256 * MIB, "eviction-bpf-writers")
            .map_err(|why| format!("no ext4 can be mounted here: {why:#}"))?;
        let disks = vec!["ext4".to_owned()];
        let mut rig = Rig::with(&LoadOptions { kernel_kill: true, disks, ..LoadOptions::default() });
        rig.attach(AttachWhen::NearDiskThreshold);
        let device = std::fs::metadata(mounted.path()).unwrap().dev();
        rig.kernel.set_disk_threshold(device, DiskHeadroom::default(), None).unwrap();
        assert!(rig.kernel.can_kill_writers(device));
        Ok(Self { mounted, device, victim: Cgroup::new(), other: Cgroup::new(), rig })
    }

    /// Arms an order on the victim that expires after so long. Returns its number.
    fn arm(&mut self, good_ns: u64) -> u64 {
        let order = ArmedDiskOrder {
            victim_id: self.victim.id(),
            device: self.device,
            expires_ns: now_ns() + good_ns,
        };
        let since = self.rig.kernel.disk_total(self.device).unwrap();
        self.rig.kernel.arm_disk_kill(&order, since, HEADROOM).unwrap().0
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

/// Makes a scene, or ends the test.
macro_rules! scene {
    () => {{
        need_bpf!();
        match Scene::new() {
            Ok(scene) => scene,
            Err(why) => {
                report_skip(&why);
                return;
            }
        }
    }};
}

/// On every kernel: the verifier follows more paths then.
#[test]
fn the_same_hooks_are_attached_with_kernel_kill_and_without() {
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
fn a_writer_of_the_victim_is_killed_at_the_limit_and_once() {
    let mut scene = scene!();
    let container = scene.victim.child("container");
    let mut writers = [(); 2].map(|()| Stepper::start(&container));
    let (number, before) = (scene.arm(600 * SECOND), scene.available());
    writers[0].tell(&scene.write("first"));
    assert_eq!(writers[0].ended_by(), Some(9));
    scene.rig.wait("the event", |told| !told.kernel_kills.is_empty());
    let kill = scene.rig.told.kernel_kills[0];
    assert_eq!((kill.order, kill.cause, kill.error), (number, KernelKillCause::Disk, None));
    assert_eq!((kill.victim_id, kill.leaf_id), (scene.victim.id(), container.id()));
    assert_eq!(kill.tgid, writers[0].pid());
    assert!(kill.grown > HEADROOM && kill.grown <= HEADROOM + MIB, "{kill:?}");
    // A write looks for the signal after each folio of page cache, of 2 MiB at most.
    let taken = before - scene.available();
    assert!((HEADROOM..HEADROOM + 3 * MIB).contains(&taken), "{taken}");
    writers[1].step(&scene.write("second"));
    scene.rig.drain();
    assert_eq!(scene.rig.told.kernel_kills.len(), 1, "the order was carried out");
    assert!(scene.rig.kernel.disarm_disk_kill().unwrap());
}

#[test]
fn a_fault_in_a_mapped_file_counts_as_a_write() {
    let mut scene = scene!();
    let mut writer = Stepper::start(&scene.victim);
    scene.arm(600 * SECOND);
    writer.tell(&scene.step("map", "file"));
    assert_eq!(writer.ended_by(), Some(9));
    scene.rig.wait("the event", |told| !told.kernel_kills.is_empty());
    assert_eq!(scene.rig.told.kernel_kills[0].tgid, writer.pid());
}

#[test]
fn a_writer_of_another_pod_is_not_killed() {
    let mut scene = scene!();
    let mut writer = Stepper::start(&scene.other);
    scene.arm(600 * SECOND);
    writer.step(&scene.write("file"));
    assert_not_killed(&mut scene.rig, "not_victim");
    assert!(!scene.rig.kernel.disarm_disk_kill().unwrap());
}

#[test]
fn an_order_that_has_expired_or_is_disarmed_is_not_carried_out() {
    let mut scene = scene!();
    let mut writer = Stepper::start(&scene.victim);
    scene.arm(600 * SECOND);
    assert!(!scene.rig.kernel.disarm_disk_kill().unwrap());
    writer.step(&scene.write("disarmed"));
    scene.arm(0);
    writer.step(&scene.write("expired"));
    assert_not_killed(&mut scene.rig, "expired");
}
