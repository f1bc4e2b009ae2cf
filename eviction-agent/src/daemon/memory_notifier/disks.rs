//! Thresholds on file systems in the kernel: set after each sample, at the headroom that it found.

use eviction_bpf::{AttachWhen, DiskHeadroom, DiskTotal, DiskUsage, EventClass};
use eviction_config::Probes;
use eviction_node::clock::mono_ns;
use eviction_node::fs::DeviceHeadroom;

use super::BackendReporter;
use super::bpf::BpfBackend;
use super::on_demand::{AttachFacts, AttachPolicy};
use super::plan::TokenBucket;
use crate::error::chain;

/// The least headroom in bytes and inodes at which a threshold is set, so that files that come and go at the threshold do
/// not wake the agent at each block; and the same where they have woken it too often lately.
const CLOSE: [u64; 2] = [256 << 10, 16];
const WIDE: [u64; 2] = [4 << 20, 256];

/// What is set on the file systems of the node.
#[derive(Debug, Default)]
pub(super) struct DiskThresholds {
    attach_policies: [AttachPolicy; 2],
    /// What was taken of each device when the sample began.
    taken: Vec<(u64, DiskTotal)>,
    /// For each device the totals at which its thresholds are, if that is known.
    set: Vec<(u64, [Option<i64>; 2])>,
    crossings: TokenBucket<200, 32>,
}

impl DiskThresholds {
    pub(super) fn new(probes: &Probes) -> Self {
        Self { attach_policies: [AttachPolicy::new(probes); 2], ..Self::default() }
    }

    /// Other programs are loaded: they have no thresholds and count anew.
    pub(super) fn forget(&mut self) {
        self.taken.clear();
        self.set.clear();
    }
}

impl BpfBackend {
    /// Returns the backend that reports crossings of disks; empty without one.
    pub(crate) fn disk_backend(&self) -> &'static str {
        let backends = [EventClass::Disk, EventClass::DiskXfs].map(|class| self.backend(class));
        backends.into_iter().find(|backend| !backend.is_empty()).unwrap_or_default()
    }

    /// Notes what was taken of the file systems so far: before they are read.
    pub(crate) fn note_disks(&mut self) {
        let Some((handle, _)) = &self.loaded else { return };
        let totals = handle.disks().filter_map(|device| Some((device, handle.disk_total(device)?)));
        self.disks.taken.clear();
        self.disks.taken.extend(totals);
    }

    /// Reads what each memory cgroup took of these disks, in order of cgroup and device; `None` unless all of them are
    /// counted.
    pub(crate) fn disk_usage(&self, devices: &[u64]) -> Option<Vec<DiskUsage>> {
        let (handle, _) = self.loaded.as_ref().filter(|_| self.reports(EventClass::Disk))?;
        if !devices.iter().all(|device| handle.disks().any(|counted| counted == *device)) {
            return None;
        }
        let mut usage = Vec::new();
        handle.read_disk_usage(&mut usage).ok()?;
        Some(usage)
    }

    /// A threshold was reported: it is none any more.
    pub(crate) fn disk_crossed(&mut self, device: u64) {
        self.disks.crossings.take(mono_ns());
        self.disks.set.retain(|(of, _)| *of != device);
    }

    /// Sets the thresholds at these headrooms, and has the dense probe attached while one is near.
    pub(super) fn set_disk_thresholds(
        &mut self,
        devices: impl Iterator<Item = DeviceHeadroom>,
        now_ns: u64,
        reporter: &BackendReporter,
    ) {
        let Some((handle, _)) = self.loaded.as_mut().filter(|(handle, _)| handle.has_disks()) else { return };
        let is_attached = handle.is_attached(AttachWhen::NearDiskThreshold);
        let DiskThresholds { attach_policies, taken, set, crossings } = &mut self.disks;
        let [least_bytes, least_inodes] = if crossings.is_left(now_ns) { CLOSE } else { WIDE };
        let mut is_near = false;
        for (DeviceHeadroom { device, capacity, bytes, inodes }, policy) in devices.zip(attach_policies) {
            let when = AttachWhen::NearDiskThreshold;
            is_near |= policy
                .wants(AttachFacts { when, is_attached, headroom: bytes, capacity, below: false }, now_ns);
            // A threshold is met by less than its value: at the value itself it is not.
            let beyond = |left: u64, least: u64| left.saturating_add(1).max(least);
            let headroom = DiskHeadroom {
                bytes: bytes.map(|left| beyond(left, least_bytes)),
                inodes: inodes.map(|left| beyond(left, least_inodes)),
            };
            let since = taken.iter().find(|(of, _)| *of == device).map(|(_, total)| *total);
            let limits = since.map(|since| {
                let limit = |taken: i64, more: Option<u64>| Some(taken.saturating_add_unsigned(more?));
                [limit(since.bytes(), headroom.bytes), limit(since.inodes, headroom.inodes)]
            });
            if limits.is_some_and(|limits| set.contains(&(device, limits))) {
                continue;
            }
            set.retain(|(of, _)| *of != device);
            match handle.set_disk_threshold(device, headroom, since) {
                Ok(_) => set.extend(limits.map(|limits| (device, limits))),
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "setting a threshold on a disk: samples see it");
                }
            }
        }
        self.attach(EventClass::DiskNear, AttachWhen::NearDiskThreshold, is_near, reporter);
    }
}
