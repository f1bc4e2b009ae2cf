//! Thresholds on file systems, and what memory cgroups take of them.

use aya::Ebpf;
use aya::maps::{Array, HashMap as BpfHashMap, MapData, MapError};
use eviction_common::{
    DISKS, DiskResource, DiskThreshold, DiskTotal, DiskUsage as CountedUsage, DiskUser, FireToken,
};
use rustix::fs::{major, makedev, minor};
use thiserror::Error;

use super::{BpfHandle, Generation};
use crate::EventClass;
use crate::sys::MapEntry;

/// What may be taken of a file system before it is reported; `None` never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskHeadroom {
    /// Bytes.
    pub bytes: Option<u64>,
    /// Inodes.
    pub inodes: Option<u64>,
}

/// What the tasks of a memory cgroup took of a file system less what they gave back, since the first
/// threshold on it. Those of a removed cgroup are its parent's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUsage {
    /// The memory cgroup.
    pub cgroup: u64,
    /// The file system, as `st_dev` of its files has it.
    pub device: u64,
    /// Bytes; negative if they freed what others had taken.
    pub bytes: i64,
    /// Inodes.
    pub inodes: i64,
}

/// Why a threshold on a file system could not be set.
#[derive(Debug, Error)]
pub enum SetDiskThresholdError {
    /// No program that counts is attached.
    #[error("no program for disks is attached")]
    Absent,
    /// There are thresholds on as many others as there can be.
    #[error("thresholds on {DISKS} file systems are set already")]
    Full,
    /// The kernel has refused it.
    #[error("set the threshold on device {device}")]
    Map {
        /// `st_dev` of the file system.
        device: u64,
        /// What the kernel said.
        #[source]
        source: MapError,
    },
}

/// The maps, and what is in them.
pub(crate) struct DiskMaps {
    thresholds: Array<MapData, MapEntry<DiskThreshold>>,
    totals: Array<MapData, MapEntry<DiskTotal>>,
    usage: BpfHashMap<MapData, MapEntry<DiskUser>, MapEntry<CountedUsage>>,
    /// Which file system has which slot, and the generation that is set on it.
    slots: [Option<(u64, u64)>; DISKS as usize],
}

impl DiskMaps {
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, MapError> {
        let mut take =
            |name: &str| ebpf.take_map(name).ok_or_else(|| MapError::InvalidName { name: name.to_owned() });
        Ok(Self {
            thresholds: take("DISK_THRESHOLDS")?.try_into()?,
            totals: take("DISK_TOTALS")?.try_into()?,
            usage: take("DISK_USAGE")?.try_into()?,
            slots: [None; DISKS as usize],
        })
    }

    fn slot_of(&self, device: u64) -> Option<u32> {
        (0_u32..)
            .zip(&self.slots)
            .find(|(_, slot)| slot.is_some_and(|(its, _)| its == device))
            .map(|(at, _)| at)
    }

    fn total(&self, slot: u32) -> Result<DiskTotal, MapError> {
        self.totals.get(&slot, 0).map(|MapEntry(total)| total)
    }

    /// Gives a file system a slot in which nothing is counted.
    fn new_slot(&mut self) -> Result<Option<u32>, MapError> {
        let free = (0_u32..).zip(&self.slots).find(|(_, slot)| slot.is_none()).map(|(at, _)| at);
        if let Some(slot) = free {
            let users: Vec<_> = self.usage.keys().filter_map(Result::ok).collect();
            for user in users.into_iter().filter(|MapEntry(user)| user.slot == slot) {
                let _ = self.usage.remove(&user);
            }
            self.totals.set(slot, MapEntry(DiskTotal::default()), 0)?;
        }
        Ok(free)
    }
}

impl BpfHandle {
    /// Whether thresholds on disks can be set.
    pub fn has_disks(&self) -> bool {
        let counts = [EventClass::Disk, EventClass::DiskXfs].map(EventClass::name);
        self.sources().iter().any(|info| counts.contains(&info.source))
    }

    /// What was taken of a file system so far: to be asked before it is read. Nothing where no threshold
    /// is on it.
    pub fn disk_total(&self, device: u64) -> Option<DiskTotal> {
        let disks = &self.maps.disks;
        disks.total(disks.slot_of(device)?).ok()
    }

    /// Sets a threshold on the file system with this `st_dev`, instead of the one before: when so much was
    /// taken of it since `since` (since now if that is `None`), that is reported, once for bytes and once
    /// for inodes. A crossing that came before the call returned may still come, with an earlier generation.
    /// From the first call on the file system's blocks and inodes are counted per cgroup
    /// ([`BpfHandle::read_disk_usage`]).
    ///
    /// # Errors
    /// See [`SetDiskThresholdError`].
    pub fn set_disk_threshold(
        &mut self,
        device: u64,
        headroom: DiskHeadroom,
        since: Option<DiskTotal>,
    ) -> Result<Generation, SetDiskThresholdError> {
        if !self.has_disks() {
            return Err(SetDiskThresholdError::Absent);
        }
        self.generation += 1;
        let generation = self.generation;
        let fail = |source| SetDiskThresholdError::Map { device, source };
        let disks = &mut self.maps.disks;
        let slot = match disks.slot_of(device) {
            Some(slot) => slot,
            None => disks.new_slot().map_err(fail)?.ok_or(SetDiskThresholdError::Full)?,
        };
        let before = disks.slots[slot as usize].replace((device, generation));
        let key = kernel_device(device);
        // The tokens first: a resource that fires without one would not be reported.
        for token in tokens(key, generation) {
            self.maps.fire_tokens.insert(token, 1, 0).map_err(fail)?;
        }
        let disks = &mut self.maps.disks;
        let since = since.map_or_else(|| disks.total(slot), Ok).map_err(fail)?;
        let limit = |taken: i64, headroom: Option<u64>| {
            headroom.map_or(i64::MAX, |more| taken.saturating_add_unsigned(more))
        };
        let threshold = DiskThreshold {
            generation,
            bytes_limit: limit(since.bytes(), headroom.bytes),
            inodes_limit: limit(since.inodes, headroom.inodes),
            fired: [0; 2],
            device: key,
            pad: 0,
        };
        disks.thresholds.set(slot, MapEntry(threshold), 0).map_err(fail)?;
        if let Some((_, before)) = before {
            self.withdraw_disk(key, before);
        }
        Ok(Generation(generation))
    }

    /// Removes the threshold on a file system, and what was counted on it.
    pub fn clear_disk_threshold(&mut self, device: u64) {
        let disks = &mut self.maps.disks;
        let Some(slot) = disks.slot_of(device) else { return };
        let key = kernel_device(device);
        let _ = disks.thresholds.set(slot, MapEntry(NO_THRESHOLD), 0);
        if let Some((_, generation)) = disks.slots[slot as usize].take() {
            self.withdraw_disk(key, generation);
        }
    }

    /// The file systems with a threshold, as `st_dev`.
    pub fn disks(&self) -> impl Iterator<Item = u64> + '_ {
        self.maps.disks.slots.iter().flatten().map(|(device, _)| *device)
    }

    /// Reads what each memory cgroup took of each file system with a threshold into `out` (which is
    /// cleared), in order of cgroup and device.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn read_disk_usage(&self, out: &mut Vec<DiskUsage>) -> Result<(), MapError> {
        out.clear();
        let disks = &self.maps.disks;
        for entry in disks.usage.iter() {
            let (MapEntry(user), MapEntry(CountedUsage { bytes, inodes })) = entry?;
            if let Some(Some((device, _))) = disks.slots.get(user.slot as usize) {
                out.push(DiskUsage { cgroup: user.id, device: *device, bytes, inodes });
            }
        }
        out.sort_unstable_by_key(|usage| (usage.cgroup, usage.device));
        // A walk of a map that changes may meet an entry twice.
        out.dedup_by_key(|usage| (usage.cgroup, usage.device));
        Ok(())
    }

    fn withdraw_disk(&mut self, device: u32, generation: u64) {
        for token in tokens(device, generation) {
            // Gone already when it was taken, that is when it fired.
            let _ = self.maps.fire_tokens.remove(&token);
        }
    }
}

fn tokens(device: u32, generation: u64) -> [MapEntry<FireToken>; 2] {
    [DiskResource::Bytes, DiskResource::Inodes]
        .map(|resource| MapEntry(FireToken { id: device.into(), generation, edge: resource as u32, pad: 0 }))
}

const NO_THRESHOLD: DiskThreshold = DiskThreshold {
    generation: 0,
    bytes_limit: i64::MAX,
    inodes_limit: i64::MAX,
    fired: [0; 2],
    device: 0,
    pad: 0,
};

/// Bits of the minor number in the kernel's own device numbers (`MINORBITS` in linux/kdev_t.h).
const MINOR_BITS: u32 = 20;

/// The kernel's number of a device.
pub(super) fn kernel_device(device: u64) -> u32 {
    major(device) << MINOR_BITS | minor(device) & ((1 << MINOR_BITS) - 1)
}

/// `st_dev` of a device.
pub(crate) fn user_device(device: u32) -> u64 {
    makedev(device >> MINOR_BITS, device & ((1 << MINOR_BITS) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_the_kernels_number_and_its_own() {
        for (high, low, kernel) in [(7, 3, 0x70_0003), (259, 65_537, 0x1031_0001), (8, 0, 0x80_0000)] {
            assert_eq!(kernel_device(makedev(high, low)), kernel);
            assert_eq!(user_device(kernel), makedev(high, low));
        }
    }
}
