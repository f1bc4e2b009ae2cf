//! Bytes and inodes of a file system, by statfs of a path.
//!
//! A reading takes 1 µs and reflects each write at once, long before write-back: on ext4, xfs, tmpfs and
//! overlay directly, on btrfs after subtracting what it has reserved for writers. No descriptor is kept: it
//! would keep the file system from being unmounted, and show it after another was mounted in its place.
#![forbid(unsafe_code)]

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::{OFlags, StatVfs, major, minor, statvfs};

use eviction_core::reading::{Reading, UnknownReason};
use eviction_core::snapshot::FsStats;
use eviction_core::time::nanos;

use crate::cgroup::hierarchy::Host;
use crate::clock::mono_ns;
use crate::file::{OpenFile, open_path, parse_number_line, read_once, retry, unreadable};
use crate::mountinfo::MountInfo;

/// How often a file system is read whose server may not respond, on a thread of its own.
const REMOTE_INTERVAL: Duration = Duration::from_secs(1);

/// The maximum age of its last reading.
const REMOTE_DEADLINE: Duration = Duration::from_secs(5);

/// The longest file of sysfs that is read, in bytes.
const SYSFS_LIMIT: usize = 256;

/// A file system whose statistics are read repeatedly.
#[derive(Debug)]
pub struct FileSystem {
    mount: MountInfo,
    /// The path by which it is read.
    path: PathBuf,
    /// Its `f_fsid`, which shows that another file system was mounted in its place; `None` if the call may
    /// hang.
    fs_id: Option<u64>,
    /// Another path on the same file system. A directory with a project quota shows the project's limit as if
    /// it were the file system.
    second_path: Option<PathBuf>,
    /// The reservations of a btrfs, if sysfs shows them.
    reserved_bytes: Option<ReservedBytes>,
    /// The last reading of a thread, if the call may hang.
    remote: Option<Arc<Mutex<RemoteReading>>>,
}

#[derive(Debug)]
struct RemoteReading {
    /// When the reading began.
    at_ns: u64,
    stats: Reading<FsStats>,
}

/// File system types whose allocations BPF programs can see.
const HOOKED: [&str; 2] = ["ext4", "xfs"];

impl FileSystem {
    /// Opens the file system of `path`. `other_paths` are paths that may be on it as well.
    ///
    /// # Errors
    /// If the path does not exist, or its mount cannot be determined.
    pub fn open(path: &Path, other_paths: &[&Path], host: &Host) -> Result<Self, UnknownReason> {
        let mount_of = |path: &Path| {
            let fd = open_path(path, OFlags::PATH).map_err(unreadable)?;
            MountInfo::of(fd.as_fd(), &host.proc)
        };
        let mount = mount_of(path)?;
        let path = path.to_owned();
        if mount.may_hang() {
            let remote = Some(read_on_a_thread(path.clone())?);
            return Ok(Self { mount, path, fs_id: None, second_path: None, reserved_bytes: None, remote });
        }
        // A file that is mounted, like `/etc/hosts` of a pod, is its own mount point.
        let is_second = |other: &&Path| {
            **other != path && mount_of(other).is_ok_and(|other| other.device == mount.device)
        };
        let mut others = std::iter::once(&*mount.mount_point).chain(other_paths.iter().copied());
        let second_path = others.find(is_second).map(Path::to_owned);
        let fs_id = Some(stat(&path)?.f_fsid);
        let is_btrfs = mount.fs_type == "btrfs";
        let reserved_bytes =
            is_btrfs.then(|| ReservedBytes::open(&host.root.join("sys"), &mount.source).ok()).flatten();
        Ok(Self { mount, path, fs_id, second_path, reserved_bytes, remote: None })
    }

    /// Returns the mount of the path.
    pub fn mount(&self) -> &MountInfo {
        &self.mount
    }

    /// Returns its type and `st_dev`, if there are BPF programs for that type.
    pub fn hooked_device(&self) -> Option<(&str, u64)> {
        let MountInfo { device, fs_type, .. } = &self.mount;
        let is_hooked = HOOKED.contains(&fs_type.as_str());
        is_hooked.then_some((fs_type.as_str(), *device))
    }

    /// Returns as text which path is read, and how.
    pub fn description(&self) -> String {
        let MountInfo { device, fs_type, .. } = &self.mount;
        let how = if self.remote.is_some() {
            ", asked once a second on a thread of its own"
        } else if fs_type == "btrfs" && self.reserved_bytes.is_none() {
            ", writes are seen when they are committed: /sys/fs/btrfs does not show it"
        } else {
            ""
        };
        let (path, major, minor) = (self.path.display(), major(*device), minor(*device));
        format!("{path} on {fs_type} {major}:{minor}{how}")
    }

    /// Reads the statistics. Never waits for a file system that may hang.
    pub fn read(&self) -> Reading<FsStats> {
        let Some(last) = &self.remote else { return self.read_at_once().into() };
        match last.try_lock() {
            Ok(last) if mono_ns().saturating_sub(last.at_ns) <= nanos(REMOTE_DEADLINE) => last.stats,
            // The lock is held for moments only, and the next sample is soon.
            Ok(_) | Err(_) => Reading::Unknown(UnknownReason::Stale),
        }
    }

    fn read_at_once(&self) -> Result<FsStats, UnknownReason> {
        let found = stat(&self.path)?;
        if self.fs_id.is_some_and(|fs_id| fs_id != found.f_fsid) {
            return Err(UnknownReason::Replaced);
        }
        let mut stats = checked_stats(&found)?;
        if let Some(second_path) = &self.second_path {
            check_same_file_system(&stats, &checked_stats(&stat(second_path)?)?)?;
        }
        if let Some(reserved) = &self.reserved_bytes {
            let reserved = reserved.read()?;
            stats.available = stats.available.map(|bytes| bytes.saturating_sub(reserved));
        }
        Ok(stats)
    }

    /// Returns whether both have the same size, as one file system has that is seen twice.
    pub fn is_as_large_as(&self, other: &Self) -> bool {
        match (self.read(), other.read()) {
            (Reading::Known(a), Reading::Known(b)) => {
                a.capacity == b.capacity && a.inodes.is_some() == b.inodes.is_some()
            }
            _ => false,
        }
    }
}

/// Reads in a loop on a thread, until the reading is not needed any more.
fn read_on_a_thread(path: PathBuf) -> Result<Arc<Mutex<RemoteReading>>, UnknownReason> {
    let stats = Reading::Unknown(UnknownReason::Absent);
    let last = Arc::new(Mutex::new(RemoteReading { at_ns: mono_ns(), stats }));
    let shared = Arc::downgrade(&last);
    let work = move || {
        loop {
            let at_ns = mono_ns();
            let stats = stat(&path).and_then(|found| checked_stats(&found)).into();
            let Some(last) = shared.upgrade() else { return };
            if let Ok(mut last) = last.lock() {
                *last = RemoteReading { at_ns, stats };
            }
            drop(last);
            std::thread::sleep(REMOTE_INTERVAL);
        }
    };
    let thread = std::thread::Builder::new().name("statfs".to_owned());
    thread.spawn(work).map_err(|_| UnknownReason::Failed)?;
    Ok(last)
}

fn stat(path: &Path) -> Result<StatVfs, UnknownReason> {
    retry(|| statvfs(path)).map_err(unreadable)
}

/// Converts the values as the kubelet does: capacity and available bytes in units of `f_frsize`, free inodes
/// including those reserved for root. No inodes at all means that there is no limit.
fn checked_stats(stat: &StatVfs) -> Result<FsStats, UnknownReason> {
    let bytes = |blocks: u64| blocks.checked_mul(stat.f_frsize).ok_or(UnknownReason::Implausible);
    let (capacity, available) = (bytes(stat.f_blocks)?, bytes(stat.f_bavail)?);
    if capacity == 0 || available > capacity || stat.f_ffree > stat.f_files {
        return Err(UnknownReason::Implausible);
    }
    let inodes = (stat.f_files > 0).then_some(stat.f_files);
    Ok(FsStats {
        available: Some(available),
        capacity: Some(capacity),
        inodes_free: inodes.map(|_| stat.f_ffree),
        inodes,
        ..FsStats::default()
    })
}

/// Returns an error if the two are not of one file system. xfs has more inodes the more bytes are free.
fn check_same_file_system(stats: &FsStats, other: &FsStats) -> Result<(), UnknownReason> {
    const TOLERANCE: u64 = 64;
    let inodes = |stats: &FsStats| stats.inodes.unwrap_or(0);
    let (ours, theirs) = (inodes(stats), inodes(other));
    let agree = stats.capacity == other.capacity && ours.abs_diff(theirs) <= ours.max(theirs) / TOLERANCE;
    if agree { Ok(()) } else { Err(UnknownReason::Implausible) }
}

/// The bytes that a btrfs has promised to writers (`bytes_may_use`), or given to them by write-back
/// (`bytes_reserved`). statfs does not show them until the next commit, up to 30 seconds later.
///
/// These are the files with them: `bytes_reserved` and `bytes_may_use` of the data, `bytes_may_use` of the metadata, and
/// `global_rsv_reserved`. Each has its path, because a descriptor stays invalid after the file system is unmounted,
/// even if it is mounted again.
#[derive(Debug)]
struct ReservedBytes([(OpenFile, PathBuf); 4]);

impl ReservedBytes {
    /// Finds the file system among those in `/sys/fs/btrfs` by one of its devices, for instance `/dev/sda1`.
    ///
    /// # Errors
    /// If sysfs does not show it.
    fn open(sys: &Path, source: &Path) -> Result<Self, UnknownReason> {
        let found = entries(&sys.join("fs/btrfs"))?.find(|file_system| has_device(file_system, source));
        let allocation = found.ok_or(UnknownReason::Absent)?.join("allocation");
        let open = |file: &str| {
            let path = allocation.join(file);
            Ok::<_, UnknownReason>((OpenFile::open(&path)?, path))
        };
        Ok(Self([
            open("data/bytes_reserved")?,
            open("data/bytes_may_use")?,
            open("metadata/bytes_may_use")?,
            open("global_rsv_reserved")?,
        ]))
    }

    /// Reads the bytes that writers have reserved. Must be called after statfs: bytes move from `bytes_may_use` to
    /// `bytes_reserved` and then to what statfs shows, and none may be counted twice.
    fn read(&self) -> Result<u64, UnknownReason> {
        let [allocated, data, metadata, global_reserve] = &self.0;
        let allocated = read_number(allocated)?;
        // The metadata's bytes always include the global reserve, up to 512 MiB. It is in the space of the
        // metadata, which statfs does not show as available.
        let metadata = read_number(metadata)?.saturating_sub(read_number(global_reserve)?);
        Ok(allocated.saturating_add(read_number(data)?).saturating_add(metadata))
    }
}

/// Returns whether a device of the file system has this name, or is a device mapper device of this name.
fn has_device(file_system: &Path, source: &Path) -> bool {
    let Some(name) = source.file_name() else { return false };
    let matches_source = |device: PathBuf| {
        let mapped = read_once(&device.join("dm/name"), SYSFS_LIMIT).unwrap_or_default();
        device.file_name() == Some(name) || mapped.trim_ascii_end() == name.as_encoded_bytes()
    };
    entries(&file_system.join("devices")).is_ok_and(|mut devices| devices.any(matches_source))
}

fn read_number((file, path): &(OpenFile, PathBuf)) -> Result<u64, UnknownReason> {
    let read = |file: &OpenFile| parse_number_line(file.read(&mut [0; SYSFS_LIMIT])?);
    read(file).or_else(|_| read(&OpenFile::open(path)?))
}

fn entries(folder: &Path) -> Result<impl Iterator<Item = PathBuf>, UnknownReason> {
    let entries = std::fs::read_dir(folder)
        .map_err(|error| error.raw_os_error().map_or(UnknownReason::Failed, UnknownReason::Unreadable))?;
    Ok(entries.flatten().map(|entry| entry.path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn statistics(blocks: u64, available: u64, inodes: u64) -> StatVfs {
        StatVfs {
            f_bsize: 1 << 20,
            f_frsize: 4096,
            f_blocks: blocks,
            f_bfree: available,
            f_bavail: available,
            f_files: inodes,
            f_ffree: inodes / 2,
            f_favail: inodes / 2,
            f_fsid: 1,
            f_flag: rustix::fs::StatVfsMountFlags::empty(),
            f_namemax: 255,
        }
    }

    fn open(path: &Path) -> FileSystem {
        FileSystem::open(path, &[], &Host::default()).unwrap()
    }

    #[test]
    fn block_counts_are_multiplied_by_the_fragment_size() {
        let stats = checked_stats(&statistics(100, 10, 50)).unwrap();
        assert_eq!((stats.capacity, stats.available), (Some(409_600), Some(40_960)));
        assert_eq!((stats.inodes, stats.inodes_free), (Some(50), Some(25)));
    }

    #[test]
    fn zero_inodes_mean_no_inode_limit() {
        let stats = checked_stats(&statistics(100, 10, 0)).unwrap();
        assert_eq!((stats.inodes, stats.inodes_free, stats.available), (None, None, Some(40_960)));
    }

    #[test]
    fn implausible_statistics_are_refused() {
        for impossible in
            [statistics(0, 0, 0), statistics(0, 0, 100), statistics(10, 11, 0), statistics(u64::MAX, 1, 0)]
        {
            assert_eq!(
                checked_stats(&impossible),
                Err(UnknownReason::Implausible),
                "{}",
                impossible.f_blocks
            );
        }
        let more_free = StatVfs { f_ffree: 51, ..statistics(100, 10, 50) };
        assert_eq!(checked_stats(&more_free), Err(UnknownReason::Implausible));
    }

    #[test]
    fn project_quota_is_not_mistaken_for_the_file_system() {
        let of = |blocks, inodes| checked_stats(&statistics(blocks, 10, inodes)).unwrap();
        let whole = of(76_800, 6_400);
        for project in [of(2_560, 6_400), of(76_800, 100), of(76_800, 0)] {
            assert_eq!(
                check_same_file_system(&whole, &project),
                Err(UnknownReason::Implausible),
                "{project:?}"
            );
        }
        assert_eq!(check_same_file_system(&whole, &of(76_800, 6_390)), Ok(()), "xfs has some more or less");
    }

    #[test]
    fn temporary_directory_is_read_and_procfs_is_implausible() {
        let stats = open(Path::new("/proc/self")).read();
        assert_eq!(stats, Reading::Unknown(UnknownReason::Implausible), "capacity 0");
        let folder = tempfile::tempdir().unwrap();
        let file_system = open(folder.path());
        let Reading::Known(before) = file_system.read() else { panic!("{:?}", file_system.read()) };
        assert!(before.capacity.unwrap() > MIB && before.available <= before.capacity);
        assert!(file_system.is_as_large_as(&open(folder.path())));
        assert!(file_system.description().starts_with(&format!("{} on ", folder.path().display())));
    }

    /// A path that was compared with itself would never reveal a project quota.
    #[test]
    fn mount_point_is_compared_with_another_path() {
        let second_path = |path: &str, others: &[&Path]| {
            let found = FileSystem::open(Path::new(path), others, &Host::default()).unwrap();
            found.second_path.clone()
        };
        let below = Path::new("/proc/self/fd");
        assert_eq!(second_path("/proc", &[Path::new("/"), below]), Some(below.to_owned()));
        assert_eq!(second_path("/proc", &[]), None);
        assert_eq!(second_path("/proc/self/fd", &[]), Some("/proc".into()));
    }

    #[test]
    fn missing_path_is_an_error() {
        let path = Path::new("/nonexistent/eviction-agent");
        let error = FileSystem::open(path, &[], &Host::default()).unwrap_err();
        assert_eq!(error, UnknownReason::Unreadable(2));
    }

    #[test]
    fn remote_reading_never_blocks_and_is_stale_when_too_old() {
        let folder = tempfile::tempdir().unwrap();
        let last = read_on_a_thread(folder.path().to_owned()).unwrap();
        let file_system = FileSystem { remote: Some(Arc::clone(&last)), ..open(folder.path()) };
        while last.lock().unwrap().stats == Reading::Unknown(UnknownReason::Absent) {
            std::thread::yield_now();
        }
        assert!(file_system.read().known().is_some());
        let mut held = last.lock().unwrap();
        assert_eq!(
            file_system.read(),
            Reading::Unknown(UnknownReason::Stale),
            "the control loop never waits"
        );
        held.at_ns = 0;
        drop(held);
        assert_eq!(file_system.read(), Reading::Unknown(UnknownReason::Stale));
    }

    fn sys(devices: &[&str], data: &str) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        let file_system = sys.path().join("fs/btrfs/ef6dc219");
        for device in devices {
            std::fs::create_dir_all(file_system.join("devices").join(device).join("dm")).unwrap();
        }
        for (part, text) in [("data", data), ("metadata", "1048576\n")] {
            std::fs::create_dir_all(file_system.join("allocation").join(part)).unwrap();
            std::fs::write(file_system.join("allocation").join(part).join("bytes_may_use"), text).unwrap();
        }
        std::fs::write(file_system.join("allocation/data/bytes_reserved"), "4096\n").unwrap();
        std::fs::write(file_system.join("allocation/global_rsv_reserved"), "524288\n").unwrap();
        sys
    }

    #[test]
    fn data_and_metadata_without_the_reserve_are_summed_for_any_device_of_the_file_system() {
        let sys = sys(&["sda1", "dm-3"], "20971520\n");
        let mapped = sys.path().join("fs/btrfs/ef6dc219/devices/dm-3/dm/name");
        std::fs::write(mapped, "vg-kubelet\n").unwrap();
        for source in ["/dev/sda1", "/dev/mapper/vg-kubelet"] {
            let found = ReservedBytes::open(sys.path(), Path::new(source)).unwrap();
            assert_eq!(found.read(), Ok((20 << 20) + (512 << 10) + 4096), "{source}");
        }
    }

    /// The kernel removes the files when the file system is unmounted, and makes new ones when it is mounted.
    #[test]
    fn file_system_that_was_mounted_again_is_read() {
        let sys = sys(&["sda1"], "0\n");
        let found = ReservedBytes::open(sys.path(), Path::new("/dev/sda1")).unwrap();
        let file = sys.path().join("fs/btrfs/ef6dc219/allocation/data/bytes_may_use");
        // A descriptor of a file that sysfs has removed fails; here it reads an empty text.
        std::fs::write(&file, "").unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(found.read(), Err(UnknownReason::Unreadable(2)));
        std::fs::write(&file, "4096\n").unwrap();
        assert_eq!(found.read(), Ok(4096 + (512 << 10) + 4096));
    }

    #[test]
    fn missing_file_system_and_invalid_number_are_errors() {
        let sys = sys(&["sda1"], "-5\n");
        let open = |source: &str| ReservedBytes::open(sys.path(), Path::new(source));
        assert_eq!(open("/dev/sda2").unwrap_err(), UnknownReason::Absent);
        assert_eq!(open("/dev/sda1").unwrap().read(), Err(UnknownReason::Implausible));
        let nowhere = ReservedBytes::open(&sys.path().join("x"), Path::new("/dev/sda1"));
        assert_eq!(nowhere.unwrap_err(), UnknownReason::Unreadable(2));
    }
}
