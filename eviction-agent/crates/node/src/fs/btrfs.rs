//! Bytes that btrfs has reserved for writers. statfs does not show them until the next commit, up to 30 seconds
//! later.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use eviction_core::reading::UnknownReason;

use crate::file::{OpenFile, read_once};
use crate::kv_file::parse_number_line;

const LIMIT: usize = 256;

/// The `bytes_may_use` of the data and of the metadata of a btrfs.
#[derive(Debug)]
pub(super) struct BytesMayUse([OpenFile; 2]);

impl BytesMayUse {
    /// Finds the file system among those in `/sys/fs/btrfs` by one of its devices, for instance `/dev/sda1`.
    ///
    /// # Errors
    /// If sysfs does not show it.
    pub(super) fn open(sys: &Path, source: &Path) -> Result<Self, UnknownReason> {
        let found = entries(&sys.join("fs/btrfs"))?.find(|file_system| has_device(file_system, source));
        let allocation = found.ok_or(UnknownReason::Absent)?.join("allocation");
        let open = |part| OpenFile::open(&allocation.join(part).join("bytes_may_use"));
        Ok(Self([open("data")?, open("metadata")?]))
    }

    /// Reads the sum of both, in bytes.
    pub(super) fn read(&self) -> Result<u64, UnknownReason> {
        let [data, metadata] = &self.0;
        Ok(read_number(data)?.saturating_add(read_number(metadata)?))
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

fn read_number(file: &OpenFile) -> Result<u64, UnknownReason> {
    parse_number_line(file.read(&mut [0; LIMIT])?)
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
        sys
    }

    #[test]
    fn data_and_metadata_are_summed_for_any_device_of_the_file_system() {
        let sys = sys(&["sda1", "dm-3"], "20971520\n");
        let mapped = sys.path().join("fs/btrfs/ef6dc219/devices/dm-3/dm/name");
        std::fs::write(mapped, "vg-kubelet\n").unwrap();
        for source in ["/dev/sda1", "/dev/mapper/vg-kubelet"] {
            let found = BytesMayUse::open(sys.path(), Path::new(source)).unwrap();
            assert_eq!(found.read(), Ok(21 << 20), "{source}");
        }
    }

    #[test]
    fn missing_file_system_and_invalid_number_are_errors() {
        let sys = sys(&["sda1"], "-5\n");
        let open = |source: &str| BytesMayUse::open(sys.path(), Path::new(source));
        assert_eq!(open("/dev/sda2").unwrap_err(), UnknownReason::Absent);
        assert_eq!(open("/dev/sda1").unwrap().read(), Err(UnknownReason::Implausible));
        let nowhere = BytesMayUse::open(&sys.path().join("x"), Path::new("/dev/sda1"));
        assert_eq!(nowhere.unwrap_err(), UnknownReason::Unreadable(2));
    }
}
