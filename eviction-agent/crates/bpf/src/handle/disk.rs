//! Thresholds on file systems, and how much of them memory cgroups use.

use std::collections::BTreeMap;
use std::io;

use aya::Ebpf;
use aya::maps::{Array, HashMap as BpfHashMap, MapData, MapError};
use eviction_common::{DISKS, DiskResource, DiskThreshold, DiskTotal, DiskUsage, DiskUser, FireToken};
use eviction_node::fs::DeviceHeadroom;
use rustix::fs::{major, makedev, minor};

use super::{BpfHandle, take_map};
use crate::EventClass;
use crate::sys::MapEntry;

/// A memory cgroup and a file system that it uses: the key of what [`BpfHandle::read_disk_usage`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DiskUsageKey {
    /// The id of the memory cgroup.
    pub cgroup: u64,
    /// The file system, as `st_dev` of its files.
    pub device: u64,
}

/// The maps for disks, and the use of their slots.
pub(crate) struct DiskMaps {
    thresholds: Array<MapData, MapEntry<DiskThreshold>>,
    totals: Array<MapData, MapEntry<DiskTotal>>,
    usage: BpfHashMap<MapData, MapEntry<DiskUser>, MapEntry<DiskUsage>>,
    /// The file system of each slot, and the generation of its threshold.
    slots: [Option<(u64, u64)>; DISKS as usize],
}

impl DiskMaps {
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, MapError> {
        Ok(Self {
            thresholds: take_map(ebpf, "DISK_THRESHOLDS")?,
            totals: take_map(ebpf, "DISK_TOTALS")?,
            usage: take_map(ebpf, "DISK_USAGE")?,
            slots: [None; DISKS as usize],
        })
    }

    /// Returns the slot of a file system, or for `None` one that is free.
    fn slot_of(&self, device: Option<u64>) -> Option<u32> {
        let devices = self.slots.iter().map(|slot| slot.map(|(device, _)| device));
        (0_u32..).zip(devices).find(|(_, of)| *of == device).map(|(slot, _)| slot)
    }

    fn total(&self, slot: u32) -> Result<DiskTotal, MapError> {
        self.totals.get(&slot, 0).map(|MapEntry(total)| total)
    }
}

impl BpfHandle {
    /// Returns whether thresholds on disks can be set.
    pub fn has_disks(&self) -> bool {
        let counts = [EventClass::Disk, EventClass::DiskXfs].map(EventClass::name);
        self.sources().iter().any(|info| counts.contains(&info.source))
    }

    /// Returns what was taken of a file system so far. Must be called before the file system is read. Returns
    /// `None` without a threshold on it.
    pub fn disk_total(&self, device: u64) -> Option<DiskTotal> {
        let disks = &self.disks;
        disks.total(disks.slot_of(Some(device))?).ok()
    }

    /// Sets a threshold on a file system, in place of the one before. It is crossed when the headroom was used up
    /// since `since` (since now if that is `None`), and reported once for bytes and once for inodes. A crossing
    /// before the call returned may still be reported, with an earlier generation. The capacity is not used.
    /// From the first call on the file system's blocks and inodes are counted per cgroup
    /// ([`BpfHandle::read_disk_usage`]).
    ///
    /// Returns the generation of the setting, which is greater than that of every earlier one. A threshold with
    /// the same limits that was not crossed stays, with its generation.
    ///
    /// # Errors
    /// If no program for disks is attached, if thresholds on other file systems take up all slots, or if a map cannot
    /// be read or written.
    pub fn set_disk_threshold(
        &mut self,
        headroom: DeviceHeadroom,
        since: Option<DiskTotal>,
    ) -> io::Result<u64> {
        let DeviceHeadroom { device, bytes, inodes, capacity: _ } = headroom;
        if !self.has_disks() {
            return Err(io::Error::other("no program for disks is attached"));
        }
        let key = kernel_device(device);
        let disks = &mut self.disks;
        // A slot that is free was never in use: its counts are 0.
        let slot = disks.slot_of(Some(device)).or_else(|| disks.slot_of(None));
        let full = || io::Error::other(format!("thresholds on {DISKS} file systems are set already"));
        let slot = slot.ok_or_else(full)?;
        let since = since.map_or_else(|| disks.total(slot), Ok).map_err(io::Error::other)?;
        let limit = |taken: i64, headroom: Option<u64>| {
            headroom.map_or(i64::MAX, |more| taken.saturating_add_unsigned(more))
        };
        let limits = [limit(since.bytes(), bytes), limit(since.inodes, inodes)];
        if let Some((_, generation)) = disks.slots[slot as usize] {
            let MapEntry(present) = disks.thresholds.get(&slot, 0).map_err(io::Error::other)?;
            // A token is missing if the threshold was crossed. One that cannot be read counts as missing as well.
            let has_token = |token| self.fire_tokens.get(&token, 0).is_ok();
            let is_armed =
                present.generation == generation && tokens(key, generation).into_iter().all(has_token);
            if is_armed && [present.bytes_limit, present.inodes_limit] == limits {
                return Ok(generation);
            }
        }
        self.generation += 1;
        let generation = self.generation;
        let before = disks.slots[slot as usize].replace((device, generation));
        // The tokens first: a resource that fires without one would not be reported.
        for token in tokens(key, generation) {
            self.fire_tokens.insert(token, 1, 0).map_err(io::Error::other)?;
        }
        let [bytes_limit, inodes_limit] = limits;
        let threshold = DiskThreshold { generation, bytes_limit, inodes_limit, device: key, pad: 0 };
        self.disks.thresholds.set(slot, MapEntry(threshold), 0).map_err(io::Error::other)?;
        if let Some((_, before)) = before {
            for token in tokens(key, before) {
                // The token is missing if it was taken, that is, if the threshold was crossed.
                let _ = self.fire_tokens.remove(&token);
            }
        }
        Ok(generation)
    }

    /// Returns the file systems with a threshold, as `st_dev`.
    pub fn disks(&self) -> impl Iterator<Item = u64> + '_ {
        self.disks.slots.iter().flatten().map(|(device, _)| *device)
    }

    /// Reads what the tasks of each memory cgroup took of each file system less what they freed, since the first
    /// threshold on it. Bytes are negative if they freed what others had taken.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn read_disk_usage(&self) -> Result<BTreeMap<DiskUsageKey, DiskUsage>, MapError> {
        // Iterating over a map that changes may return an entry twice.
        let mut all = BTreeMap::new();
        for entry in self.disks.usage.iter() {
            let (MapEntry(user), MapEntry(usage)) = entry?;
            if let Some(Some((device, _))) = self.disks.slots.get(user.slot as usize) {
                all.insert(DiskUsageKey { cgroup: user.id, device: *device }, usage);
            }
        }
        Ok(all)
    }
}

fn tokens(device: u32, generation: u64) -> [MapEntry<FireToken>; 2] {
    [DiskResource::Bytes, DiskResource::Inodes]
        .map(|resource| MapEntry(FireToken { id: device.into(), generation, edge: resource as u32, pad: 0 }))
}

/// Bits of the minor number in the kernel's own device numbers (`MINORBITS` in linux/kdev_t.h).
const MINOR_BITS: u32 = 20;

/// Returns the kernel's number of a device.
pub(super) fn kernel_device(device: u64) -> u32 {
    major(device) << MINOR_BITS | minor(device) & ((1 << MINOR_BITS) - 1)
}

/// Returns `st_dev` of a device.
pub(crate) fn user_device(device: u32) -> u64 {
    makedev(device >> MINOR_BITS, device & ((1 << MINOR_BITS) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_number_converts_to_the_kernel_form_and_back() {
        for (high, low, kernel) in [(7, 3, 0x70_0003), (259, 65_537, 0x1031_0001), (8, 0, 0x80_0000)] {
            assert_eq!(kernel_device(makedev(high, low)), kernel);
            assert_eq!(user_device(kernel), makedev(high, low));
        }
    }
}
