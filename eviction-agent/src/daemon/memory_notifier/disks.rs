//! Thresholds on file systems in the kernel: set after each sample, at the headroom that it found.

use std::collections::BTreeMap;

use eviction_bpf::{AttachWhen, BpfHandle, DiskTotal, DiskUsage, DiskUsageKey, EventClass};
use eviction_node::clock::mono_ns;
use eviction_node::fs::DeviceHeadroom;

use super::bpf::BpfBackend;
use super::plan::CrossingRate;
use crate::error::chain;

/// The minimum headroom in bytes and inodes at which a threshold is set, so that files that are created and
/// removed at the threshold do not wake the agent at each block. `WIDE` is used if they have woken it too often
/// recently.
const CLOSE: [u64; 2] = [256 << 10, 16];
const WIDE: [u64; 2] = [4 << 20, 256];

/// The thresholds that are set on the file systems of the node.
#[derive(Debug, Default)]
pub(super) struct DiskThresholds {
    /// The total of each device when the sample began.
    taken: Vec<(u64, DiskTotal)>,
    crossings: CrossingRate,
    /// Whether it was logged that a threshold cannot be set.
    is_set_error_logged: bool,
}

impl DiskThresholds {
    /// Forgets all thresholds: programs that were just loaded have none, and count from zero.
    pub(super) fn clear(&mut self) {
        self.taken.clear();
        self.is_set_error_logged = false;
    }
}

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
        self.disks.taken.clear();
        self.disks.taken.extend(totals);
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
        self.disks.crossings.take(mono_ns());
    }

    /// Sets the thresholds at these headrooms, and attaches the on-demand probe while one is near.
    pub(crate) fn set_disk_thresholds(&mut self, devices: impl Iterator<Item = DeviceHeadroom>, now_ns: u64) {
        if !self.handle().is_some_and(BpfHandle::has_disks) {
            return;
        }
        let when = AttachWhen::NearDiskThreshold;
        let [least_bytes, least_inodes] = if self.disks.crossings.has_token(now_ns) { CLOSE } else { WIDE };
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
            let since = self.disks.taken.iter().find(|(of, _)| *of == device).map(|(_, total)| *total);
            let Some((handle, _)) = &mut self.loaded else { return };
            if let Err(error) = handle.set_disk_threshold(headroom, since)
                && !std::mem::replace(&mut self.disks.is_set_error_logged, true)
            {
                tracing::warn!(device, error = %chain(&error), "cannot set a kernel threshold of a disk: the timer detects the crossing");
            }
        }
        self.attach(EventClass::DiskNear, when, is_near, now_ns);
    }
}
