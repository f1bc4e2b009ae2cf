//! The kill orders of the BPF programs, one for memory and one for a disk: arming and disarming them, and how often
//! a kill was suppressed.

use aya::maps::{Array, HashMap as BpfHashMap, MapData, MapError, PerCpuArray};
use aya::{Ebpf, Pod};
use eviction_common::{
    DiskKillOrder, DiskTotal, KillOrder, MARK_EPOCH, MARK_LEVEL, Suppressed, SuppressedCount,
};
use thiserror::Error;

use super::disk::kernel_device;
use super::{BpfHandle, take_map, was_present};
use crate::AttachWhen;
use crate::sys::MapEntry;
use eviction_node::clock::mono_ns;

/// A kill order for the BPF programs, in bytes and nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArmedOrder {
    /// The number of the marked sample that the order is based on: see [`BpfHandle::mark_sample`].
    pub epoch: u64,
    /// The victim's cgroup, which is below `level_id`.
    pub victim_id: u64,
    /// The cgroup that has the threshold.
    pub level_id: u64,
    /// The working set that must not be exceeded, if the page counter of `level_id` counts all usage. At the
    /// root it does not, since tasks may be in no cgroup there.
    pub max_working_set: Option<u64>,
    /// The headroom to the threshold at the sample; more than 0.
    pub distance: u64,
    /// What can be charged from the sample on until page cache must be reclaimed, where that does not happen at
    /// the limit of `level_id`: at the root, which has none.
    pub room: Option<u64>,
    /// When the order expires.
    pub expires_ns: u64,
    /// Until when usage that stays at the limit of `level_id` counts as reclaim of page cache.
    pub still_until_ns: u64,
}

/// A kill order for the buffered write that crosses a threshold of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArmedDiskOrder {
    /// The victim's cgroup.
    pub victim_id: u64,
    /// `st_dev` of the file system.
    pub device: u64,
    /// When it expires, nanoseconds of `CLOCK_MONOTONIC`.
    pub expires_ns: u64,
}

/// Why no kill order is armed.
#[derive(Debug, Error)]
pub enum ArmError {
    /// The programs were loaded without kernel kill, or this kernel does not show them what they need.
    #[error("the programs were loaded without kernel kill")]
    Absent,
    /// The headroom is 0: any process would have grown by as much.
    #[error("arm a kill order at the threshold itself")]
    NoDistance,
    /// The kill order before was carried out; its event follows.
    #[error("the kill order before was carried out")]
    CarriedOut,
    /// A map could not be written.
    #[error("arm a kill order")]
    Map(#[from] MapError),
}

/// The maps of kernel kills, and the armed order.
pub(crate) struct KernelKillMaps {
    marks: Array<MapData, u64>,
    order: OrderMap<KillOrder>,
    disk_order: OrderMap<DiskKillOrder>,
    tokens: Tokens,
    suppressed: PerCpuArray<MapData, MapEntry<SuppressedCount>>,
    is_marked: bool,
    /// The last numbers of a sample and of an order. They start at the time of the load in nanoseconds: programs
    /// that are loaded in place of others give greater ones, so that each record identifies its order.
    last_epoch: u64,
    last_order: u64,
}

impl KernelKillMaps {
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, MapError> {
        let loaded_ns = mono_ns();
        Ok(Self {
            marks: take_map(ebpf, "SAMPLE_EPOCH")?,
            order: OrderMap { map: take_map(ebpf, "KILL_ORDER")?, armed: None },
            disk_order: OrderMap { map: take_map(ebpf, "DISK_KILL_ORDER")?, armed: None },
            tokens: take_map(ebpf, "KILL_ORDER_TOKEN")?,
            suppressed: take_map(ebpf, "SUPPRESSED")?,
            is_marked: false,
            last_epoch: loaded_ns,
            last_order: loaded_ns,
        })
    }
}

/// Tokens of armed orders, by their numbers.
type Tokens = BpfHashMap<MapData, u64, u8>;

/// The map of an order, and the number of the armed one. A program that does not get the token of an order
/// kills no process, whatever the order contains.
struct OrderMap<T>
where
    MapEntry<T>: Pod,
{
    map: Array<MapData, MapEntry<T>>,
    armed: Option<u64>,
}

impl<T: Default> OrderMap<T>
where
    MapEntry<T>: Pod,
{
    /// Arms an order. No other one may be armed.
    fn arm(&mut self, tokens: &mut Tokens, number: u64, order: T) -> Result<u64, ArmError> {
        // The token first: without it no order is carried out, and alone it has no effect.
        tokens.insert(number, 1, 0)?;
        self.armed = Some(number);
        if let Err(error) = self.map.set(0, MapEntry(order), 0) {
            // The order expires, if it was written at all.
            let _ = self.disarm(tokens);
            return Err(error.into());
        }
        Ok(number)
    }

    /// Disarms the order. Returns whether it was carried out before; then its token is missing.
    fn disarm(&mut self, tokens: &mut Tokens) -> Result<bool, ArmError> {
        let Some(number) = self.armed.take() else { return Ok(false) };
        let removed = tokens.remove(&number);
        self.map.set(0, MapEntry(T::default()), 0)?;
        Ok(!was_present(removed)?)
    }
}

impl BpfHandle {
    /// Returns whether a kill order can be armed.
    pub fn has_kernel_kill(&self) -> bool {
        self.kernel_kill.is_some()
    }

    /// Marks a sample of this cgroup, just after it was read: growth of a process and of the cgroup from now on
    /// counts against the headroom to the threshold. Returns the number of the sample.
    ///
    /// # Errors
    /// See [`ArmError`].
    pub fn mark_sample(&mut self, level_id: u64) -> Result<u64, ArmError> {
        let kernel_kill = self.kernel_kill.as_mut().ok_or(ArmError::Absent)?;
        kernel_kill.last_epoch += 1;
        kernel_kill.marks.set(MARK_LEVEL, level_id, 0)?;
        kernel_kill.marks.set(MARK_EPOCH, kernel_kill.last_epoch, 0)?;
        kernel_kill.is_marked = true;
        Ok(kernel_kill.last_epoch)
    }

    /// Arms a kill order in place of the one before. From now until it expires, or until another call, one
    /// process of the victim may be killed by it. Returns the number of the order, greater than that of every
    /// earlier one.
    ///
    /// Bytes are rounded to pages so that no process is killed too early.
    ///
    /// # Errors
    /// See [`ArmError`]. Then no order is armed.
    pub fn arm_kill(&mut self, armed: &ArmedOrder) -> Result<u64, ArmError> {
        let page = self.page_bytes;
        if self.disarm_kill()? {
            return Err(ArmError::CarriedOut);
        }
        let kernel_kill = self.kernel_kill.as_mut().ok_or(ArmError::Absent)?;
        let ArmedOrder {
            epoch,
            victim_id,
            level_id,
            max_working_set,
            distance,
            room,
            expires_ns,
            still_until_ns,
        } = *armed;
        if distance == 0 {
            return Err(ArmError::NoDistance);
        }
        kernel_kill.last_order += 1;
        let generation = kernel_kill.last_order;
        // With this one page more the threshold is crossed, and not only reached.
        let growth = distance / page + 1;
        let mut order = KillOrder {
            generation,
            epoch,
            victim_id,
            level_id,
            expires_ns,
            usage_least: max_working_set.map_or(0, |most| most / page + 1),
            growth,
            room: room.map_or(u64::MAX, |room| room.div_ceil(page)),
            still_until_ns,
            check: 0,
        };
        order.check = order.checked();
        kernel_kill.order.arm(&mut kernel_kill.tokens, generation, order)
    }

    /// Disarms the kill order. Returns whether it was carried out before; then its event follows, if it has not
    /// arrived yet.
    ///
    /// # Errors
    /// If a map cannot be written. The kill order still expires.
    pub fn disarm_kill(&mut self) -> Result<bool, ArmError> {
        let Some(kernel_kill) = &mut self.kernel_kill else { return Ok(false) };
        kernel_kill.order.disarm(&mut kernel_kill.tokens)
    }

    /// Disarms the kill order and stops marking samples: no threshold is near, and inspecting charges costs
    /// time.
    ///
    /// # Errors
    /// As [`BpfHandle::disarm_kill`].
    pub fn stop_marking_samples(&mut self) -> Result<(), ArmError> {
        self.disarm_kill()?;
        if let Some(kernel_kill) = &mut self.kernel_kill
            && kernel_kill.is_marked
        {
            kernel_kill.marks.set(MARK_EPOCH, 0, 0)?;
            kernel_kill.is_marked = false;
        }
        Ok(())
    }

    /// Returns whether an order for this file system would be carried out: its blocks are counted, and the
    /// probe on reservations is attached.
    pub fn can_kill_writers(&self, device: u64) -> bool {
        let is_counted = self.disks().any(|counted| counted == device);
        self.has_kernel_kill() && is_counted && self.is_attached(AttachWhen::NearDiskThreshold)
    }

    /// Arms an order in place of the one before: `headroom` bytes were left to the threshold when `since` was
    /// read. From now until it expires, or until another call, one process of the victim may be killed by it.
    /// Returns the number of the order, greater than that of every earlier one.
    ///
    /// # Errors
    /// See [`ArmError`]. Then no order is armed.
    pub fn arm_disk_kill(
        &mut self,
        order: &ArmedDiskOrder,
        since: DiskTotal,
        headroom: u64,
    ) -> Result<u64, ArmError> {
        if self.disarm_disk_kill()? {
            return Err(ArmError::CarriedOut);
        }
        let kernel_kill = self.kernel_kill.as_mut().ok_or(ArmError::Absent)?;
        let ArmedDiskOrder { victim_id, device, expires_ns } = *order;
        kernel_kill.last_order += 1;
        let generation = kernel_kill.last_order;
        let bytes_then = since.observed();
        let mut order = DiskKillOrder {
            generation,
            victim_id,
            // With this one byte more the threshold is crossed, and not only reached.
            bytes_limit: bytes_then.saturating_add_unsigned(headroom.saturating_add(1)),
            bytes_then,
            expires_ns,
            device: kernel_device(device).into(),
            check: 0,
        };
        order.check = order.checked();
        kernel_kill.disk_order.arm(&mut kernel_kill.tokens, generation, order)
    }

    /// Disarms the order. Returns whether it was carried out before; then its event follows, if it has not
    /// arrived yet.
    ///
    /// # Errors
    /// If the map cannot be written. The order still expires.
    pub fn disarm_disk_kill(&mut self) -> Result<bool, ArmError> {
        let Some(kernel_kill) = &mut self.kernel_kill else { return Ok(false) };
        kernel_kill.disk_order.disarm(&mut kernel_kill.tokens)
    }

    /// Returns for how many kill orders (and CPUs) the kill at a crossing was suppressed, by reason.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn suppressed(&self) -> Result<[(&'static str, u64); Suppressed::ALL.len()], MapError> {
        let mut all = Suppressed::ALL.map(|why| (why.name(), 0));
        if let Some(kernel_kill) = &self.kernel_kill {
            for (why, (_, sum)) in Suppressed::ALL.into_iter().zip(&mut all) {
                let per_cpu = kernel_kill.suppressed.get(&(why as u32), 0)?;
                *sum = per_cpu.iter().map(|MapEntry(on_cpu)| on_cpu.count).sum();
            }
        }
        Ok(all)
    }
}
