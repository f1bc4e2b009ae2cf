//! Reads the node's file systems at each sample, and computes how soon one of their thresholds can be reached.
#![forbid(unsafe_code)]

use std::time::Duration;

use eviction_core::disk_layout::DiskLayout;
use eviction_core::policy::{Policy, Threshold};
use eviction_core::reading::Reading;
use eviction_core::signal::{Resource, Signal};
use eviction_core::snapshot::{FsStats, NodeStats};
use eviction_core::threshold::ThresholdLevels;
use eviction_core::time::nanos;

use super::disk_usage::DiskUsage;
use super::layout::NodeFileSystems;
use crate::backend::BackendInfo;
use crate::clock::Instant;
use crate::notify::sample_interval::{FLOOR, FULL_CALM, FULL_NEAR, FillRate};

/// The lowest rate of writing that is assumed, in bytes per second: page cache takes 11.5 GB/s from one writer.
const BYTES_PER_SECOND: u64 = 12_000_000_000;

/// The lowest rate of inode creation that is assumed for each CPU, in inodes per second: 45,000 were measured.
const INODES_PER_SECOND: u64 = 100_000;

/// The signals with thresholds of their own. Those of containerfs follow nodefs or imagefs, whichever has its
/// file system.
const SIGNALS: [Signal; 4] =
    [Signal::NodeFsAvailable, Signal::NodeFsInodesFree, Signal::ImageFsAvailable, Signal::ImageFsInodesFree];

/// How long an answer of the kubelet counts. It is asked once a minute.
const MAX_SUMMARY_AGE: Duration = Duration::from_secs(150);

/// Nodefs and imagefs in the kubelet's stats summary, for an agent that does not find them itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummaryFileSystems {
    /// When the answer came, CLOCK_MONOTONIC in nanoseconds.
    pub at_ns: u64,
    /// Nodefs and imagefs.
    pub stats: [Reading<FsStats>; 2],
    /// The layout; `None` if the summary lacks nodefs or imagefs, or writable layers are on neither.
    pub layout: Option<DiskLayout>,
}

impl SummaryFileSystems {
    /// Returns the file systems of the node in a summary. It has no devices: file systems of the same size count as
    /// one. A kubelet that has no separate values for containerfs repeats those of imagefs.
    pub fn new(node: &NodeStats, at_ns: u64) -> Self {
        let [node, image, containers] = [node.node_fs, node.image_fs, node.container_fs];
        let size = |stats: Reading<FsStats>| stats.known().map(|stats| (stats.capacity, stats.inodes));
        let layout = size(node).zip(size(image)).and_then(|(of_node, of_image)| {
            let of_containers = size(containers).unwrap_or(of_image);
            let layout = DiskLayout {
                dedicated_image_fs: of_node != of_image,
                split_image_fs: of_containers != of_image,
            };
            (of_containers == of_node || of_containers == of_image).then_some(layout)
        });
        Self { at_ns, stats: [node, image], layout }
    }

    fn is_current(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.at_ns) <= nanos(MAX_SUMMARY_AGE)
    }
}

/// Reads nodefs and imagefs, and tracks the headroom to their thresholds.
#[derive(Debug)]
pub struct DiskMonitor {
    file_systems: NodeFileSystems,
    /// The last answer of the kubelet, in place of what cannot be read.
    summary: Option<SummaryFileSystems>,
    /// Whether nodefs or imagefs could not be read at the last sample.
    is_incomplete: bool,
    thresholds: Vec<Threshold>,
    headroom: [Headroom; SIGNALS.len()],
}

/// The headroom to the thresholds of a signal.
#[derive(Debug)]
struct Headroom {
    /// The capacity that the levels were computed for.
    capacity: u64,
    levels: ThresholdLevels,
    rate: FillRate,
    /// The available amount at the last sample; `None` if it could not be read.
    available: Option<u64>,
    /// The used amount when it was read last.
    used: Option<u64>,
    /// The total growth from sample to sample; decreases are not subtracted.
    grown: u64,
}

/// How much of a file system can be used until one of its thresholds may be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceHeadroom {
    /// `st_dev` of the file system.
    pub device: u64,
    /// The capacity in bytes.
    pub capacity: u64,
    /// Headroom in bytes; `None` if there is no threshold ahead.
    pub bytes: Option<u64>,
    /// Headroom in inodes, as for bytes.
    pub inodes: Option<u64>,
}

impl DiskMonitor {
    /// Creates a monitor for a machine with `cpus` CPUs, without thresholds.
    pub fn new(file_systems: NodeFileSystems, cpus: usize) -> Self {
        let cpus = u64::try_from(cpus).unwrap_or(u64::MAX);
        let headroom = SIGNALS.map(|signal| Headroom {
            capacity: 0,
            levels: ThresholdLevels::default(),
            rate: FillRate::at_least(match signal {
                Signal::NodeFsInodesFree | Signal::ImageFsInodesFree => {
                    INODES_PER_SECOND.saturating_mul(cpus)
                }
                _ => BYTES_PER_SECOND,
            }),
            available: None,
            used: None,
            grown: 0,
        });
        Self { file_systems, summary: None, is_incomplete: false, thresholds: Vec::new(), headroom }
    }

    /// Follows the thresholds of a policy.
    pub fn apply_policy(&mut self, policy: &Policy) {
        let of_disks = |threshold: &&Threshold| SIGNALS.contains(&threshold.signal);
        self.thresholds = policy.thresholds.iter().filter(of_disks).cloned().collect();
        for headroom in &mut self.headroom {
            (headroom.capacity, headroom.available) = (0, None);
        }
    }

    /// Takes over the file systems, if they were found after the deadline. Returns whether they were.
    pub fn take_late(&mut self) -> bool {
        self.file_systems.take_late()
    }

    /// Takes over an answer of the kubelet, whose values count where the agent cannot read a file system. Returns
    /// whether it is the first one, or has another layout.
    pub fn take_summary(&mut self, summary: SummaryFileSystems) -> bool {
        let before = self.summary.replace(summary);
        before.is_none_or(|before| before.layout != summary.layout)
    }

    /// Returns whether nodefs or imagefs could not be read at the last sample.
    pub fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// Returns how nodefs and imagefs are read.
    pub fn info(&self) -> [BackendInfo; 2] {
        let mut info = self.file_systems.info();
        for (info, stats) in info.iter_mut().zip(self.summary.iter().flat_map(|summary| summary.stats)) {
            if info.backend.is_empty() && stats.known().is_some() {
                let reason = format!("of the kubelet, once a minute: {}", info.reason);
                *info = BackendInfo::plain(info.source, "stats summary", reason);
            }
        }
        info
    }

    /// Returns the disk layout as the kubelet defines it.
    pub fn layout(&self) -> DiskLayout {
        self.layout_of_summary().unwrap_or_else(|| self.file_systems.layout())
    }

    /// Returns whether it is known which parts of pods are on nodefs. Otherwise pods cannot be ranked for it.
    pub fn is_layout_known(&self) -> bool {
        self.layout_of_summary().is_some() || self.file_systems.is_layout_known()
    }

    /// Returns the layout as the kubelet reported it, if the agent did not find both file systems itself.
    fn layout_of_summary(&self) -> Option<DiskLayout> {
        self.summary.filter(|_| !self.file_systems.are_found())?.layout
    }

    /// Reads nodefs and imagefs. The kubelet's values do not count for the time of the next sample.
    pub fn read(&mut self, at: Instant) -> [Reading<FsStats>; 2] {
        let read = self.file_systems.read();
        self.observe(&read, at.mono_ns);
        self.is_incomplete = read.iter().any(|stats| stats.known().is_none());
        let mut read = read.map(|stats| stats.map(|stats| FsStats { time: Some(at.wall), ..stats }));
        if let Some(summary) = self.summary.filter(|summary| summary.is_current(at.mono_ns)) {
            let pairs = read.iter_mut().zip(summary.stats);
            pairs.filter(|(stats, _)| stats.known().is_none()).for_each(|(stats, other)| *stats = other);
        }
        read
    }

    fn observe(&mut self, stats: &[Reading<FsStats>; 2], at_ns: u64) {
        for (signal, headroom) in SIGNALS.into_iter().zip(&mut self.headroom) {
            headroom.observe(available_of(signal, stats), at_ns, signal, &self.thresholds);
        }
    }

    /// Returns whether a threshold on a wanted resource (bytes or inodes) is met now, by a reading that is not a
    /// sample.
    pub fn is_met_now(&self, is_wanted: impl Fn(Resource) -> bool) -> bool {
        let stats = self.file_systems.read();
        SIGNALS.into_iter().zip(&self.headroom).any(|(signal, headroom)| {
            let available = available_of(signal, &stats).map(|(available, _)| signed(available));
            is_wanted(signal.resource())
                && available.is_some_and(|available| headroom.levels.may_be_met(available))
        })
    }

    /// Returns whether a threshold may be met, or held by its minimum reclaim.
    pub fn may_be_met(&self) -> bool {
        self.headroom.iter().any(Headroom::may_be_met)
    }

    /// Returns the time until the next sample: no threshold can be reached before. `None` if there is nothing
    /// to watch.
    pub fn due(&self) -> Option<Duration> {
        let times = self.headroom.iter().filter_map(|it| Some(it.rate.time_to_fill(it.distance()?)));
        let due = times.min().map(|time| time.clamp(FLOOR, FULL_CALM));
        if self.may_be_met() { Some(due.map_or(FULL_NEAR, |due| due.min(FULL_NEAR))) } else { due }
    }

    /// Returns whether a threshold on inodes may be reached within this time, at the greatest rate observed
    /// lately.
    pub fn inodes_fill_within(&self, time: Duration) -> bool {
        let [_, node, _, image] = &self.headroom;
        let fills = |it: &Headroom| Some(it.rate.time_at_observed_rate(it.distance()?)? <= time);
        [node, image].into_iter().any(|it| fills(it) == Some(true))
    }

    /// Returns whether thresholds on inodes may be met, and none on bytes.
    pub fn are_inodes_alone_short(&self) -> bool {
        let [node, node_inodes, image, image_inodes] = self.headroom.each_ref().map(Headroom::may_be_met);
        (node_inodes || image_inodes) && !node && !image
    }

    /// Returns `st_dev` of nodefs and of imagefs, for each that is ext4.
    pub fn ext4_devices(&self) -> [Option<u64>; 2] {
        self.file_systems.devices().map(|found| {
            let (kind, device) = found?;
            (kind == "ext4").then_some(device)
        })
    }

    /// Reads the bytes that are available on nodefs.
    pub fn node_fs_available(&self) -> Option<u64> {
        let [node, _] = self.file_systems.read();
        node.known()?.available
    }

    /// Returns whether thresholds are met only because xfs has allocated these bytes beyond the ends of files on
    /// nodefs and on imagefs. Always false with less than 5 % available, where xfs preallocates little.
    pub fn is_met_by_preallocation(&self, bytes: [u64; 2]) -> bool {
        let is_xfs = self.file_systems.devices().map(|found| found.is_some_and(|(kind, _)| kind == "xfs"));
        self.is_met_by_bytes_on_xfs(bytes, is_xfs)
    }

    fn is_met_by_bytes_on_xfs(&self, bytes: [u64; 2], is_xfs: [bool; 2]) -> bool {
        let [node, _, image, _] = &self.headroom;
        let preallocates = |(headroom, is_xfs): (&Headroom, bool)| {
            !headroom.may_be_met() || is_xfs && headroom.available >= Some(headroom.capacity / 20)
        };
        [node, image].into_iter().zip(is_xfs).all(preallocates)
            && self.is_met_by(bytes.map(|bytes| DiskUsage { bytes, ..DiskUsage::default() }))
    }

    /// Returns whether thresholds are met, and none would be met without this usage of nodefs and of imagefs, as
    /// [`PodStorage::sum_by_file_system`](super::PodStorage::sum_by_file_system) returns it.
    pub fn is_met_by(&self, [node, image]: [DiskUsage; 2]) -> bool {
        let image = if self.layout().dedicated_image_fs { image } else { node };
        let amounts = [node.bytes, node.inodes, image.bytes, image.inodes];
        let is_explained = |(headroom, amount): (&Headroom, u64)| {
            !headroom.may_be_met() || headroom.would_not_be_met_with(amount)
        };
        self.may_be_met() && self.headroom.iter().zip(amounts).all(is_explained)
    }

    /// Returns the bytes by which the usage of nodefs and imagefs grew since the start. Only the difference of
    /// two values is meaningful.
    pub fn grown_bytes(&self) -> u64 {
        let [node, _, image, _] = &self.headroom;
        if self.layout().dedicated_image_fs { node.grown.wrapping_add(image.grown) } else { node.grown }
    }

    /// Returns the headroom of each file system for which there are BPF programs.
    pub fn devices(&self) -> impl Iterator<Item = DeviceHeadroom> {
        let of = |found: Option<(&str, u64)>, bytes: &Headroom, inodes: &Headroom| {
            let (_, device) = found?;
            let (capacity, bytes, inodes) = (bytes.capacity, bytes.distance(), inodes.distance());
            Some(DeviceHeadroom { device, capacity, bytes, inodes })
        };
        let [node, image] = self.file_systems.devices();
        let [node_bytes, node_inodes, image_bytes, image_inodes] = &self.headroom;
        let (node, image) = (of(node, node_bytes, node_inodes), of(image, image_bytes, image_inodes));
        let (node, image) = match (node, image) {
            (Some(a), Some(b)) if a.device == b.device => {
                let nearest = |a: Option<u64>, b: Option<u64>| [a, b].into_iter().flatten().min();
                let (bytes, inodes) = (nearest(a.bytes, b.bytes), nearest(a.inodes, b.inodes));
                (Some(DeviceHeadroom { bytes, inodes, ..a }), None)
            }
            separate => separate,
        };
        [node, image].into_iter().flatten()
    }
}

/// Returns the available amount of a signal, and the capacity.
fn available_of(signal: Signal, [node, image]: &[Reading<FsStats>; 2]) -> Option<(u64, u64)> {
    let stats = match signal {
        Signal::NodeFsAvailable | Signal::NodeFsInodesFree => node,
        _ => image,
    };
    let stats = stats.known()?;
    match signal {
        Signal::NodeFsInodesFree | Signal::ImageFsInodesFree => Some((stats.inodes_free?, stats.inodes?)),
        _ => Some((stats.available?, stats.capacity?)),
    }
}

fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

impl Headroom {
    fn observe(&mut self, amounts: Option<(u64, u64)>, at_ns: u64, signal: Signal, thresholds: &[Threshold]) {
        self.available = amounts.map(|(available, _)| available);
        let Some((available, capacity)) = amounts else { return };
        if capacity != self.capacity {
            self.capacity = capacity;
            self.levels = ThresholdLevels::of(thresholds, signal, signed(capacity));
        }
        let used = capacity.saturating_sub(available);
        self.rate.observe(at_ns, used);
        let before = self.used.replace(used).unwrap_or(used);
        self.grown = self.grown.wrapping_add(used.saturating_sub(before));
    }

    /// Returns the headroom to the nearest threshold that is not met, in bytes or inodes.
    fn distance(&self) -> Option<u64> {
        self.levels.distance(signed(self.available?))
    }

    /// Returns whether a threshold may be met, or held by its minimum reclaim.
    fn may_be_met(&self) -> bool {
        self.available.is_some_and(|available| self.levels.may_be_met(signed(available)))
    }

    /// Returns whether no threshold would be met with so much more.
    fn would_not_be_met_with(&self, amount: u64) -> bool {
        let with = self.available.map(|available| signed(available.saturating_add(amount)));
        with.is_some_and(|with| !self.levels.may_be_met(with))
    }
}

#[cfg(test)]
mod tests;
