//! The node's file systems in the kubelet's stats summary, for an agent that does not find them itself.
#![forbid(unsafe_code)]

use eviction_core::disk_layout::DiskLayout;
use eviction_core::reading::Reading;
use eviction_core::snapshot::{FsStats, NodeStats};
use eviction_core::time::nanos;
use std::time::Duration;

/// How long an answer of the kubelet counts. It is asked once a minute.
const MAX_AGE: Duration = Duration::from_secs(150);

/// Nodefs and imagefs as the kubelet reported them.
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

    pub(super) fn is_current(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.at_ns) <= nanos(MAX_AGE)
    }
}

#[cfg(test)]
mod tests {
    use eviction_core::reading::UnknownReason;

    use super::*;

    fn disk(capacity: u64) -> Reading<FsStats> {
        Reading::Known(FsStats { capacity: Some(capacity), inodes: Some(capacity), ..FsStats::default() })
    }

    #[test]
    fn the_layout_follows_from_the_sizes() {
        let layout = |node_fs, image_fs, container_fs| {
            let node = NodeStats { node_fs, image_fs, container_fs, ..NodeStats::default() };
            SummaryFileSystems::new(&node, 0).layout
        };
        let of = |dedicated_image_fs, split_image_fs| Some(DiskLayout { dedicated_image_fs, split_image_fs });
        let unknown = Reading::Unknown(UnknownReason::Absent);
        assert_eq!(layout(disk(1), disk(1), disk(1)), of(false, false));
        assert_eq!(layout(disk(1), disk(2), disk(2)), of(true, false));
        assert_eq!(layout(disk(1), disk(2), disk(1)), of(true, true));
        assert_eq!(layout(disk(1), disk(2), unknown), of(true, false));
        assert_eq!(layout(disk(1), disk(2), disk(3)), None, "the kubelet has no such layout");
        assert_eq!(layout(unknown, disk(2), disk(2)), None);
        assert_eq!(layout(disk(1), unknown, unknown), None);
    }
}
