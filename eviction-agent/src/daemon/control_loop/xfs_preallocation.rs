//! Space that xfs preallocates for a file that grows, up to the size of the file, and gives back when the file
//! is closed. A threshold may be met for a moment by space that no file has. The rules of the kubelet do not
//! take this into account. By those of the agent no pod is evicted for it, for a limited time.

use std::time::Duration;

use eviction_core::time::nanos;

use super::ControlLoop;

/// How long the agent waits for the space.
const WAIT: Duration = Duration::from_secs(2);

/// How often the disks are sampled meanwhile: other processes may write.
const INTERVAL: Duration = Duration::from_millis(10);

/// Whether the agent waits for preallocated space: once for each time that a threshold is met.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Preallocation {
    /// It has not waited yet.
    #[default]
    NotYet,
    /// It is waiting.
    Waiting {
        /// The end of the wait, CLOCK_MONOTONIC in nanoseconds.
        until_ns: u64,
        /// Preallocated bytes on nodefs and on imagefs.
        bytes: [u64; 2],
    },
    /// It has waited.
    Done,
}

impl Preallocation {
    /// Returns the time until the next sample while the agent waits.
    pub(super) fn wait(self, now_ns: u64) -> Option<Duration> {
        match self {
            Self::Waiting { until_ns, .. } if now_ns < until_ns => Some(INTERVAL),
            _ => None,
        }
    }

    /// Returns the preallocated bytes while the agent waits, else 0.
    pub(super) fn awaited_bytes(self, now_ns: u64) -> u64 {
        match self {
            Self::Waiting { until_ns, bytes: [node, image] } if now_ns < until_ns => {
                node.saturating_add(image)
            }
            _ => 0,
        }
    }
}

impl ControlLoop {
    /// Begins to wait if thresholds are met only by preallocated space.
    pub(super) fn begin_xfs_wait(&mut self, bytes: [u64; 2], now_ns: u64) {
        if !matches!(self.storage.preallocation, Preallocation::NotYet)
            || self.engine.policy().rules.are_kubelets()
            || !self.node_sampler.disks.is_met_by_preallocation(bytes)
        {
            return;
        }
        tracing::info!(
            node_fs_bytes = bytes[0],
            image_fs_bytes = bytes[1],
            "xfs has allocated space ahead of files: no pod is evicted until it is given back, for {WAIT:?} at most",
        );
        let until_ns = now_ns.saturating_add(nanos(WAIT));
        self.storage.preallocation = Preallocation::Waiting { until_ns, bytes };
    }

    /// Ends the wait if it would be too late: even with all preallocated space too little would be available.
    pub(super) fn update_xfs_wait(&mut self) {
        let disks = &self.node_sampler.disks;
        self.storage.preallocation = match self.storage.preallocation {
            _ if !disks.may_be_met() => Preallocation::NotYet,
            Preallocation::Waiting { bytes, .. } if !disks.is_met_by_preallocation(bytes) => {
                Preallocation::Done
            }
            as_before => as_before,
        };
    }
}
