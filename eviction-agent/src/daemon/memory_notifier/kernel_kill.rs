//! Kill orders that the BPF programs carry out: armed, disarmed, and the samples that they depend on.

use crate::error::chain;
use crate::telemetry::metrics::Metrics;
use eviction_bpf::{
    ArmError, ArmedDiskOrder, ArmedOrder, BpfHandle, EventClass, KernelKillCause, SampleEpoch,
};

use super::super::kernel_kill::KernelKillIdle;
use super::bpf::BpfBackend;

impl BpfBackend {
    /// Exports the reasons for which an armed kill order was not carried out.
    pub(crate) fn export_suppressed(&mut self, metrics: &Metrics) {
        if let Some((handle, _)) = &self.loaded {
            self.counters.export_suppressed(handle, metrics);
        }
    }

    /// Returns whether the programs can carry out a kill order.
    pub(crate) fn has_kernel_kill(&self) -> bool {
        let is_watched = self.charge().is_some_and(|info| !self.is_failed(info.source));
        is_watched && self.is_loaded_for_kernel_kill()
    }

    /// Returns whether the programs were loaded so that they can carry out a kill order.
    pub(crate) fn is_loaded_for_kernel_kill(&self) -> bool {
        self.handle().is_some_and(BpfHandle::has_kernel_kill)
    }

    /// Marks the sample that was just taken of this cgroup.
    pub(crate) fn mark_sample(&mut self, level_id: u64) -> Option<SampleEpoch> {
        let (handle, _) = self.loaded.as_mut()?;
        log_error("marking a sample", handle.mark_sample(level_id))
    }

    /// Arms a kill order. Returns its number.
    ///
    /// # Errors
    /// `InFlight` if the order before was carried out, so that its event will arrive. `NotSet` if a map cannot be
    /// written. That is logged.
    pub(crate) fn arm_kill(&mut self, order: &ArmedOrder) -> Result<u64, KernelKillIdle> {
        let (handle, _) = self.loaded.as_mut().ok_or(KernelKillIdle::NotSet)?;
        arm_result(handle.arm_kill(order))
    }

    /// Returns whether a kill order for writers to this file system would be carried out.
    pub(crate) fn can_kill_writers(&self, device: u64) -> bool {
        let reports = [EventClass::Disk, EventClass::DiskNear].into_iter().all(|class| self.reports(class));
        reports && self.handle().is_some_and(|handle| handle.can_kill_writers(device))
    }

    /// Arms a kill order for writers to a file system. `headroom` reads what is left to the threshold.
    ///
    /// # Errors
    /// As for [`Self::arm_kill`].
    pub(crate) fn arm_disk_kill(
        &mut self,
        order: &ArmedDiskOrder,
        headroom: impl FnOnce() -> Option<u64>,
    ) -> Result<u64, KernelKillIdle> {
        let (handle, _) = self.loaded.as_mut().ok_or(KernelKillIdle::NotSet)?;
        // In this order: what is taken in between makes the order late, and never early.
        let headroom = headroom().ok_or(KernelKillIdle::NotSet)?;
        let since = handle.disk_total(order.device).ok_or(KernelKillIdle::NotSet)?;
        arm_result(handle.arm_disk_kill(order, since, headroom))
    }

    /// Disarms the kill order. Returns whether it was carried out before: then its event arrives.
    pub(crate) fn disarm_kill(&mut self, cause: KernelKillCause) -> bool {
        let Some((handle, _)) = &mut self.loaded else { return false };
        let disarmed = match cause {
            KernelKillCause::Memory => handle.disarm_kill(),
            KernelKillCause::Disk => handle.disarm_disk_kill(),
        };
        log_error("disarming a kill order", disarmed).unwrap_or(false)
    }

    /// Disarms the kill order while the threshold is far: samples are not marked any more.
    pub(crate) fn end_kill_marks(&mut self) {
        if let Some((handle, _)) = &mut self.loaded {
            log_error("disarming a kill order", handle.stop_marking_samples());
        }
    }
}

fn arm_result(armed: Result<u64, ArmError>) -> Result<u64, KernelKillIdle> {
    match armed {
        Err(ArmError::CarriedOut) => Err(KernelKillIdle::InFlight),
        armed => log_error("arming a kill order", armed).ok_or(KernelKillIdle::NotSet),
    }
}

/// Logs an error: the agent decides without a kernel kill.
fn log_error<T>(what: &'static str, written: Result<T, ArmError>) -> Option<T> {
    written.map_err(|error| tracing::warn!(error = %chain(&error), what, "kernel kill")).ok()
}
