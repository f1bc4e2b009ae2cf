//! The kill order for processes that write to a disk.

use eviction_common::{DiskKillOrder, DiskTotal};

use super::BpfHandle;
use super::disk::kernel_device;
use super::kernel_kill::ArmError;
use crate::AttachWhen;

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

impl BpfHandle {
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
        let kernel_kill = self.maps.kernel_kill.as_mut().ok_or(ArmError::Absent)?;
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
        let Some(kernel_kill) = &mut self.maps.kernel_kill else { return Ok(false) };
        kernel_kill.disk_order.disarm(&mut kernel_kill.tokens)
    }
}
