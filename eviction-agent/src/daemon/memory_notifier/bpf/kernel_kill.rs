//! Kill orders that the BPF programs carry out.

use eviction_bpf::{ArmError, BpfHandle, EventClass, KernelKillCause};
use eviction_core::engine::kernel_kill::NotArmedReason;

use super::BpfBackend;
use crate::error::chain;

impl BpfBackend {
    /// Exports the reasons for which an armed kill order was not carried out.
    pub(crate) fn export_suppressed(&mut self) {
        if let Some((handle, _)) = &self.loaded {
            self.counters.export_suppressed(handle, &self.metrics);
        }
    }

    /// Returns whether the programs can carry out a kill order: the method that sees charges at present has not failed.
    pub(crate) fn has_kernel_kill(&self) -> bool {
        let is_watched = self.charge().is_some_and(|info| !self.is_failed(info.source));
        is_watched && self.is_loaded_for_kernel_kill()
    }

    /// Returns whether the programs were loaded so that they can carry out a kill order.
    pub(crate) fn is_loaded_for_kernel_kill(&self) -> bool {
        self.handle().is_some_and(BpfHandle::has_kernel_kill)
    }

    /// Arms a kill order. Returns its number.
    ///
    /// # Errors
    /// `JustCarriedOut` if the order before was carried out, so that its event will arrive. `MapWriteFailed` if a map
    /// cannot be written. That is logged.
    pub(crate) fn arm_kill(
        &mut self,
        arm: impl FnOnce(&mut BpfHandle) -> Result<u64, ArmError>,
    ) -> Result<u64, NotArmedReason> {
        let armed = self.change_kernel_kill("arming a kill order", |handle| match arm(handle) {
            Err(ArmError::CarriedOut) => Ok(Err(NotArmedReason::JustCarriedOut)),
            armed => armed.map(Ok),
        });
        armed.unwrap_or(Err(NotArmedReason::MapWriteFailed))
    }

    /// Returns whether a kill order for writers to this file system would be carried out.
    pub(crate) fn can_kill_writers(&self, device: u64) -> bool {
        let reports = [EventClass::Disk, EventClass::DiskNear].into_iter().all(|class| self.reports(class));
        reports && self.handle().is_some_and(|handle| handle.can_kill_writers(device))
    }

    /// Disarms the kill order. Returns whether it was carried out before: then its event arrives.
    pub(crate) fn disarm_kill(&mut self, cause: KernelKillCause) -> bool {
        let disarmed = self.change_kernel_kill("disarming a kill order", |handle| match cause {
            KernelKillCause::Memory => handle.disarm_kill(),
            KernelKillCause::Disk => handle.disarm_disk_kill(),
        });
        disarmed.unwrap_or(false)
    }

    /// Changes the maps of kernel kills. Returns `None` if no programs are loaded, or if a map cannot be written. That
    /// is logged: the agent decides without a kernel kill.
    pub(crate) fn change_kernel_kill<T>(
        &mut self,
        what: &'static str,
        change: impl FnOnce(&mut BpfHandle) -> Result<T, ArmError>,
    ) -> Option<T> {
        let (handle, _) = self.loaded.as_mut()?;
        change(handle).map_err(|error| tracing::warn!(error = %chain(&error), what, "kernel kill")).ok()
    }
}
