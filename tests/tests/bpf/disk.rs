//! Blocks and inodes of ext4 and xfs: the count per cgroup matches du, and a threshold crossing is reported once.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use eviction_bpf::capabilities::{self, KernelFacts};
use eviction_bpf::{
    self, AttachWhen, Counter, DiskResource, DiskThresholdCrossed, DiskUsageKey, EventClass, LoadOptions,
};
use eviction_node::fs::DeviceHeadroom;
use rustix::fs::{statfs, syncfs};
use tests::file_system::{FileSystem, Kind};
use tests::random::Random;

use crate::fixture::{Fixture, MIB, Stepper, need_bpf};
use crate::groups::{Cgroup, mount};

const BLOCK: u64 = 4096;

/// Returns a headroom that is never used up: only the blocks and inodes are counted.
pub(crate) fn unlimited(device: u64) -> DeviceHeadroom {
    DeviceHeadroom { device, capacity: 0, bytes: None, inodes: None }
}

fn options() -> LoadOptions {
    LoadOptions { disks: vec!["ext4".to_owned(), "xfs".to_owned()], ..LoadOptions::default() }
}

/// Loads the programs, or ends the test.
macro_rules! load {
    () => {
        match load(&options()) {
            Some(fixture) => fixture,
            None => tests::skip!("this kernel has no bpf_get_current_task_btf"),
        }
    };
}

/// Loads the programs; `None` if the kernel lacks `bpf_get_current_task_btf`, which came with 5.11.
pub(crate) fn load(options: &LoadOptions) -> Option<Fixture> {
    let mut loaded = eviction_bpf::load(options).unwrap();
    if loaded.missing.iter().any(|info| info.reason.contains("invalid func unknown#158")) {
        return None;
    }
    // Most kernels have xfs as a module.
    loaded.missing.retain(|info| info.source != EventClass::DiskXfs.name());
    assert_eq!(loaded.missing, []);
    Some(Fixture::from_loaded(loaded))
}

/// Mounts a file system with blocks of 4 KiB, or ends the test.
macro_rules! mount {
    ($kind:expr) => {
        tests::or_skip!(
            FileSystem::new($kind, 1024 * MIB, "eviction-bpf-disk"),
            format!("no {} can be mounted here", $kind.name())
        )
    };
}

fn device(path: &Path) -> u64 {
    fs::metadata(path).unwrap().dev()
}

/// Returns bytes and inodes of a directory and all below it; a file with several names counts once.
fn du(path: &Path) -> (i64, i64) {
    fn walk(path: &Path, seen: &mut HashSet<u64>) -> u64 {
        let meta = fs::symlink_metadata(path).unwrap();
        let mut blocks = if seen.insert(meta.ino()) { meta.blocks() } else { 0 };
        if meta.is_dir() {
            blocks +=
                fs::read_dir(path).unwrap().map(|entry| walk(&entry.unwrap().path(), seen)).sum::<u64>();
        }
        blocks
    }
    let mut seen = HashSet::new();
    let blocks = walk(path, &mut seen);
    ((blocks * 512) as i64, seen.len() as i64)
}

/// Returns the bytes and inodes that a cgroup took on the device.
fn counted_usage(fixture: &Fixture, cgroup: u64, device: u64) -> (i64, i64) {
    let all = fixture.kernel.read_disk_usage().unwrap();
    let own = all.get(&DiskUsageKey { cgroup, device }).copied().unwrap_or_default();
    (own.bytes, own.inodes)
}

/// Returns the crossings of one threshold setting that have been reported so far.
fn crossings(fixture: &mut Fixture, generation: u64) -> Vec<DiskThresholdCrossed> {
    fixture.drain();
    let all = fixture.events.disk.iter();
    all.filter(|crossed| crossed.generation == generation).copied().collect()
}

/// A pod's cgroup, its process and its folder.
struct Pod {
    group: Cgroup,
    process: Stepper,
    folder: String,
    before: (i64, i64),
}

impl Pod {
    fn new(mounted: &FileSystem, name: &str) -> Self {
        let group = Cgroup::new();
        let folder = mounted.path().join(name);
        fs::create_dir(&folder).unwrap();
        let before = du(&folder);
        let process = Stepper::start(&group);
        Self { group, process, folder: folder.display().to_string(), before }
    }

    fn file(&mut self, what: &str, name: &str, bytes: u64) {
        self.process.step(&format!("file {what} {}/{name} {bytes}", self.folder));
    }

    /// Returns the growth since the beginning, as du finds it.
    fn grown(&self) -> (i64, i64) {
        let (bytes, inodes) = du(Path::new(&self.folder));
        (bytes - self.before.0, inodes - self.before.1)
    }
}

/// Applies a random change to a file of the pod, and updates the list of its files.
fn apply_random_change(pod: &mut Pod, random: &mut Random, files: &mut Vec<String>, serial: u64) {
    let what =
        ["append", "append", "append", "rewrite", "truncate", "unlink", "fallocate", "map", "sync", "mkdir"];
    let what = what[random.below(what.len() as u64) as usize];
    let bytes = 1 + random.below(2 * MIB);
    if what == "mkdir" {
        return pod.file(what, &format!("dir{serial}"), 0);
    }
    let place = random.below(files.len() as u64 + 3) as usize;
    let name = files.get(place).cloned().unwrap_or_else(|| format!("file{serial}"));
    if what == "unlink" && place < files.len() {
        files.remove(place);
        return pod.file(what, &name, 0);
    }
    pod.file(if what == "unlink" { "append" } else { what }, &name, bytes);
    if place >= files.len() {
        files.push(name);
    }
}

#[test]
fn the_counts_per_cgroup_equal_those_of_du() {
    need_bpf!();
    let mounted = mount!(Kind::Ext4);
    let device = device(mounted.path());
    let free = || statfs(mounted.path()).unwrap().f_bfree;
    let mut pods = ["a", "b", "c"].map(|name| Pod::new(&mounted, name));
    let mut fixture = load!();
    fixture.kernel.set_disk_threshold(unlimited(device), None).unwrap();
    fixture.attach(AttachWhen::NearDiskThreshold);
    let before = free();
    let [pod, ..] = &mut pods;
    pod.file("append", "first", 8 * MIB);
    pod.file("fallocate", "first", 16 * MIB);
    assert_eq!(
        counted_usage(&fixture, pod.group.id(), device),
        pod.grown(),
        "blocks that are reserved already"
    );
    let mut random = Random(31);
    let mut files = [const { Vec::new() }; 3];
    for serial in 0..400 {
        for (pod, files) in pods.iter_mut().zip(&mut files) {
            apply_random_change(pod, &mut random, files, serial);
        }
        if serial % 100 == 99 {
            assert_counts_match_du(&fixture, &pods, device);
        }
    }
    assert_counts_match_du(&fixture, &pods, device);
    let total = fixture.kernel.disk_total(device).unwrap();
    assert_eq!(total.bytes(), ((before - free()) * BLOCK) as i64, "equal to statfs");
    assert_eq!(fixture.kernel.lost().unwrap().get(Counter::DiskUsageFull), 0);

    // du does not find a deleted file that is still open.
    let [pod, ..] = &mut pods;
    let (bytes, inodes) = counted_usage(&fixture, pod.group.id(), device);
    pod.file("keep", "deleted", 100 * MIB);
    let held = (bytes + 100 * MIB as i64, inodes + 1);
    assert_is_close(counted_usage(&fixture, pod.group.id(), device), held);
    pod.process.step("close 0");
    assert_is_close(counted_usage(&fixture, pod.group.id(), device), (bytes, inodes));
}

/// Asserts that inodes are equal and bytes nearly so: the block map of a fragmented file takes some blocks as well.
fn assert_is_close(found: (i64, i64), expected: (i64, i64)) {
    assert_eq!(found.1, expected.1);
    assert!(found.0.abs_diff(expected.0) <= 16 * BLOCK, "{found:?} is not {expected:?}");
}

/// Asserts that each pod has what du finds, and that nothing is counted twice or lost. Kernel workers allocate and
/// free block maps of fragmented files: on cgroup v1 nothing reports the owner of these blocks, so they count for the
/// root cgroup.
fn assert_counts_match_du(fixture: &Fixture, pods: &[Pod], device: u64) {
    let (root, _) = counted_usage(fixture, fs::metadata(mount()).unwrap().ino(), device);
    let (mut found, mut counted) = ((0, 0), root);
    for pod in pods {
        let (own, grown) = (counted_usage(fixture, pod.group.id(), device), pod.grown());
        assert_is_close(own, grown);
        counted += own.0;
        found = (found.0 + grown.0, found.1 + grown.1);
    }
    let total = fixture.kernel.disk_total(device).unwrap();
    assert_eq!((total.bytes(), total.inodes), found);
    assert_eq!(counted, found.0);
}

#[test]
fn a_byte_threshold_is_reported_once_at_the_block_that_crosses_it() {
    need_bpf!();
    let mounted = mount!(Kind::Ext4);
    let device = device(mounted.path());
    let mut pod = Pod::new(&mounted, "pod");
    pod.file("append", "log", BLOCK);
    let mut fixture = load!();
    fixture.kernel.set_disk_threshold(unlimited(device), None).unwrap();
    fixture.attach(AttachWhen::NearDiskThreshold);
    for (what, beyond) in [("append", BLOCK), ("map", BLOCK), ("fallocate", 32 * MIB)] {
        let headroom = DeviceHeadroom { bytes: Some(32 * MIB), ..unlimited(device) };
        let set = fixture.kernel.set_disk_threshold(headroom, None).unwrap();
        pod.file("append", &format!("{what}-below"), 32 * MIB - BLOCK);
        assert_eq!(crossings(&mut fixture, set), [], "{what}: not before");
        pod.file(what, what, 32 * MIB);
        pod.file("append", "log", MIB);
        let all = crossings(&mut fixture, set);
        let [crossed] = all.as_slice() else { panic!("one crossing by {what}, not {all:?}") };
        assert_eq!((crossed.device, crossed.resource), (device, DiskResource::Bytes));
        assert_eq!((crossed.leaf_id, crossed.tgid), (pod.group.id(), pod.process.pid()));
        assert!(crossed.beyond < beyond, "{what}: {crossed:?}");
    }
    // Writes during a sample count.
    let since = fixture.kernel.disk_total(device);
    pod.file("append", "since", 8 * MIB);
    let headroom = DeviceHeadroom { bytes: Some(16 * MIB), ..unlimited(device) };
    let set = fixture.kernel.set_disk_threshold(headroom, since).unwrap();
    pod.file("append", "since", 4 * MIB);
    assert_eq!(crossings(&mut fixture, set), []);
    assert_eq!(fixture.kernel.set_disk_threshold(headroom, since).unwrap(), set, "it stays");
    pod.file("append", "since", 4 * MIB);
    assert_eq!(crossings(&mut fixture, set).len(), 1);
    assert!(fixture.kernel.set_disk_threshold(headroom, since).unwrap() > set, "it was crossed");
}

#[test]
fn an_inode_threshold_is_reported_once_at_the_inode_that_crosses_it() {
    need_bpf!();
    let mounted = mount!(Kind::Ext4);
    let device = device(mounted.path());
    let mut pod = Pod::new(&mounted, "pod");
    let mut fixture = load!();
    let headroom = DeviceHeadroom { inodes: Some(20), ..unlimited(device) };
    let set = fixture.kernel.set_disk_threshold(headroom, None).unwrap();
    for serial in 0..19 {
        pod.file("mkdir", &serial.to_string(), 0);
    }
    assert_eq!(crossings(&mut fixture, set), []);
    for serial in 19..23 {
        pod.file("append", &serial.to_string(), 0);
    }
    let all = crossings(&mut fixture, set);
    let [crossed] = all.as_slice() else { panic!("one crossing, not {all:?}") };
    assert_eq!((crossed.resource, crossed.beyond), (DiskResource::Inodes, 0));
    for inodes in [20, 30] {
        let headroom = DeviceHeadroom { inodes: Some(inodes), ..unlimited(device) };
        fixture.kernel.set_disk_threshold(headroom, None).unwrap();
    }
    let (_, tokens) = fixture.kernel.threshold_entries().unwrap();
    assert_eq!(tokens, 2, "those of the thresholds before are removed");
}

/// Writes the data of a pod's file to the disk. On cgroup v2 a process outside the pod requests it and kernel workers
/// do it: the owner is that of the inode's write-back, not the current process. On v1 nothing reports the owner, so the
/// pod does it.
fn write_back(mounted: &FileSystem, pod: &mut Pod, name: &str) {
    if mount().ends_with("memory") {
        pod.file("sync", name, 0);
    } else {
        syncfs(File::open(mounted.path()).unwrap()).unwrap();
    }
}

#[test]
fn written_back_data_counts_once_without_the_near_threshold_probe() {
    need_bpf!();
    let mounted = mount!(Kind::Ext4);
    let device = device(mounted.path());
    let mut pod = Pod::new(&mounted, "pod");
    let mut fixture = load!();
    fixture.kernel.set_disk_threshold(unlimited(device), None).unwrap();
    pod.file("append", "before", 16 * MIB);
    assert!(counted_usage(&fixture, pod.group.id(), device).0 <= BLOCK as i64, "it is not on the disk yet");
    write_back(&mounted, &mut pod, "before");
    assert_eq!(counted_usage(&fixture, pod.group.id(), device), pod.grown());
    fixture.attach(AttachWhen::NearDiskThreshold);
    pod.file("append", "near", 16 * MIB);
    assert_eq!(counted_usage(&fixture, pod.group.id(), device), pod.grown());
    fixture.detach(AttachWhen::NearDiskThreshold);
    write_back(&mounted, &mut pod, "near");
    assert_eq!(
        counted_usage(&fixture, pod.group.id(), device),
        pod.grown(),
        "it was counted when it was reserved"
    );
}

#[test]
fn usage_of_a_removed_cgroup_moves_to_its_parent_on_that_device_only() {
    need_bpf!();
    let mounted = mount!(Kind::Ext4);
    let device = device(mounted.path());
    let pod = Cgroup::new();
    let container = pod.child("container");
    let mut process = Stepper::start(&container);
    let mut fixture = load!();
    fixture.kernel.set_disk_threshold(unlimited(device), None).unwrap();
    let volume = mounted.path().join("volume").display().to_string();
    process.step(&format!("file fallocate {volume} {}", 4 * MIB));
    let beside = mounted.outside().join("beside").display().to_string();
    process.step(&format!("file fallocate {beside} {MIB}"));
    let held = (4 * MIB as i64, 1);
    assert_eq!(counted_usage(&fixture, container.id(), device), held);
    let (id, parent) = (container.id(), pod.id());
    process.end();
    container.remove();
    fixture.wait("the removal", |reported| reported.removed.contains(&id));
    assert_eq!(
        (counted_usage(&fixture, id, device), counted_usage(&fixture, parent, device)),
        ((0, 0), held)
    );
    let all = fixture.kernel.read_disk_usage().unwrap();
    assert!(all.keys().all(|usage| usage.device == device));
}

#[test]
fn disk_programs_are_loaded_only_on_request() {
    need_bpf!();
    let mut fixture = Fixture::load();
    let disk_classes = EventClass::ALL.into_iter().filter(|class| class.file_system().is_some());
    for class in disk_classes {
        assert!(fixture.kernel.sources().iter().all(|info| info.source != class.name()));
    }
    let error = fixture.kernel.set_disk_threshold(unlimited(1), None).unwrap_err();
    assert_eq!(error.to_string(), "no program for disks is attached");
}

#[test]
fn the_disk_programs_for_other_kernels_pass_the_verifier() {
    need_bpf!();
    drop(load!());
    let options = options();
    let backend = |facts: &KernelFacts, class: EventClass| {
        let loaded = eviction_bpf::load::load_on(facts, &options).unwrap();
        assert!(loaded.missing.iter().all(|info| info.source == EventClass::DiskXfs.name()));
        loaded.kernel.sources().iter().find(|info| info.source == class.name()).unwrap().backend
    };
    // Up to 6.1 each reservation is one block.
    let mut facts = capabilities::facts();
    let btf = facts.btf.as_mut().unwrap();
    btf.tracepoints.get_mut("ext4_da_reserve_space").unwrap().truncate(1);
    let reserve = backend(&facts, EventClass::DiskNear);
    assert_eq!(reserve, "tp_btf ext4_da_reserve_space(inode), ext4_da_release_space");
    // On cgroup v2 the program reads the owner of a write-back.
    facts.hierarchy = Ok(0);
    assert!(backend(&facts, EventClass::Disk).starts_with("tp_btf ext4_allocate_blocks"));
}

#[test]
fn xfs_thresholds_are_reported_once_and_xfs_counts_are_upper_bounds() {
    need_bpf!();
    let mounted = mount!(Kind::Xfs);
    let device = device(mounted.path());
    let mut pod = Pod::new(&mounted, "pod");
    let loaded = eviction_bpf::load(&options()).unwrap();
    if let Some(info) = loaded.missing.iter().find(|info| info.source == EventClass::DiskXfs.name()) {
        tests::skip!("{}", info.reason);
    }
    let mut fixture = Fixture::from_loaded(loaded);
    let method = fixture.kernel.sources().iter().find(|info| info.source == EventClass::DiskXfs.name());
    // Up to 6.1 no tracepoint reports blocks that are allocated without a reservation.
    let allocated = if method.unwrap().backend.contains("xfs_alloc_vextent_finish") { 60 * MIB } else { 0 };
    let headroom = DeviceHeadroom { bytes: Some(allocated + 4 * MIB), inodes: Some(20), ..unlimited(device) };
    let set = fixture.kernel.set_disk_threshold(headroom, None).unwrap();
    for serial in 0..15 {
        pod.file("mkdir", &serial.to_string(), 0);
    }
    if allocated > 0 {
        pod.file("fallocate", "below", allocated);
    }
    assert_eq!(crossings(&mut fixture, set), [], "not before");
    pod.file("append", "buffered", 8 * MIB);
    for serial in 20..30 {
        pod.file("mkdir", &serial.to_string(), 0);
    }
    let all = crossings(&mut fixture, set);
    let resources: Vec<_> = all.iter().map(|crossed| crossed.resource).collect();
    assert_eq!(resources, [DiskResource::Bytes, DiskResource::Inodes], "{all:?}");
    assert!(all.iter().all(|crossed| crossed.leaf_id == pod.group.id()), "{all:?}");
    let (bytes, inodes) = counted_usage(&fixture, pod.group.id(), device);
    let (found_bytes, found_inodes) = pod.grown();
    assert!(bytes >= found_bytes && bytes <= found_bytes + 16 * MIB as i64, "{bytes} of {found_bytes}");
    assert_eq!(inodes, found_inodes);
}
