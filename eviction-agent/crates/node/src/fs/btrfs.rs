//! Bytes that btrfs has promised to writers (`bytes_may_use`), or given to them by write-back (`bytes_reserved`).
//! statfs does not show them until the next commit, up to 30 seconds later.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use eviction_core::reading::UnknownReason;

use crate::file::{OpenFile, read_once};
use crate::kv_file::parse_number_line;

const LIMIT: usize = 256;

/// The files of a btrfs: `bytes_reserved` and `bytes_may_use` of the data, `bytes_may_use` of the metadata, and
/// `global_rsv_reserved`. Each has its path, because a descriptor stays invalid after the file system is unmounted,
/// even if it is mounted again.
#[derive(Debug)]
pub(super) struct ReservedBytes([(OpenFile, PathBuf); 4]);

impl ReservedBytes {
    /// Finds the file system among those in `/sys/fs/btrfs` by one of its devices, for instance `/dev/sda1`.
    ///
    /// # Errors
    /// If sysfs does not show it.
    pub(super) fn open(sys: &Path, source: &Path) -> Result<Self, UnknownReason> {
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
    pub(super) fn read(&self) -> Result<u64, UnknownReason> {
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
        let mapped = read_once(&device.join("dm/name"), LIMIT).unwrap_or_default();
        device.file_name() == Some(name) || mapped.trim_ascii_end() == name.as_encoded_bytes()
    };
    entries(&file_system.join("devices")).is_ok_and(|mut devices| devices.any(matches_source))
}

fn read_number((file, path): &(OpenFile, PathBuf)) -> Result<u64, UnknownReason> {
    let read = |file: &OpenFile| parse_number_line(file.read(&mut [0; LIMIT])?);
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
