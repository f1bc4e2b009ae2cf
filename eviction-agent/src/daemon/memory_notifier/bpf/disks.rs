//! Thresholds on file systems in the kernel: set after each sample, at the headroom that it found.

use std::collections::BTreeMap;

use eviction_bpf::{AttachWhen, BpfHandle, DiskUsage, DiskUsageKey, EventClass};
use eviction_node::clock::mono_ns;
use eviction_node::fs::DeviceHeadroom;

use super::BpfBackend;
use crate::error::chain;

/// The minimum headroom in bytes and inodes at which a threshold on a file system is set, so that files that are
/// created and removed at the threshold do not wake the agent at each block. `WIDE_DISK_REARM` is used if they have
/// woken it too often recently.
const MIN_DISK_REARM: [u64; 2] = [256 << 10, 16];
const WIDE_DISK_REARM: [u64; 2] = [4 << 20, 256];

impl BpfBackend {
    /// Returns the backend that reports crossings of disks; empty without one.
    pub(crate) fn disk_backend(&self) -> &'static str {
        let backends = [EventClass::Disk, EventClass::DiskXfs].map(|class| self.backend(class));
        backends.into_iter().find(|backend| !backend.is_empty()).unwrap_or_default()
    }

    /// Records the totals of the file systems. Runs before they are read.
    pub(crate) fn record_disk_totals(&mut self) {
        let Some((handle, _)) = &self.loaded else { return };
        let totals = handle.disks().filter_map(|device| Some((device, handle.disk_total(device)?)));
        self.disk_totals.clear();
        self.disk_totals.extend(totals);
    }

    /// Reads what each memory cgroup has taken of each disk; `None` unless all of these are counted.
    pub(crate) fn disk_usage(&self, devices: &[u64]) -> Option<BTreeMap<DiskUsageKey, DiskUsage>> {
        let (handle, _) = self.loaded.as_ref().filter(|_| self.reports(EventClass::Disk))?;
        if !devices.iter().all(|device| handle.disks().any(|counted| counted == *device)) {
            return None;
        }
        handle.read_disk_usage().ok()
    }

    /// Counts a crossing that was reported.
    pub(crate) fn count_disk_crossing(&mut self) {
        self.disk_crossings.take(mono_ns());
    }

    /// Sets the thresholds at these headrooms, and attaches the on-demand probe while one is near.
    pub(crate) fn set_disk_thresholds(&mut self, devices: impl Iterator<Item = DeviceHeadroom>, now_ns: u64) {
        if !self.handle().is_some_and(BpfHandle::has_disks) {
            return;
        }
        let when = AttachWhen::NearDiskThreshold;
        let [least_bytes, least_inodes] =
            if self.disk_crossings.has_token(now_ns) { MIN_DISK_REARM } else { WIDE_DISK_REARM };
        let mut is_near = false;
        for found in devices {
            let DeviceHeadroom { device, capacity, bytes, inodes } = found;
            is_near |= self.is_near(when, bytes, capacity);
            // A threshold is met by less than its value, not by the value itself.
            let beyond = |left: u64, least: u64| left.saturating_add(1).max(least);
            let headroom = DeviceHeadroom {
                bytes: bytes.map(|left| beyond(left, least_bytes)),
                inodes: inodes.map(|left| beyond(left, least_inodes)),
                ..found
            };
            let since = self.disk_totals.iter().find(|(of, _)| *of == device).map(|(_, total)| *total);
            let Some((handle, _)) = &mut self.loaded else { return };
            if let Err(error) = handle.set_disk_threshold(headroom, since)
                && !std::mem::replace(&mut self.is_disk_error_logged, true)
            {
                tracing::warn!(device, error = %chain(&error), "cannot set a kernel threshold of a disk: the timer detects the crossing");
            }
        }
        self.attach(EventClass::DiskNear, when, is_near, now_ns);
    }
}
