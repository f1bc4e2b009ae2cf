//! xfs allocates ahead of a file that grows, up to as much as the file has, and gives that back when it is closed: a
//! threshold may be met for a moment by space that no file has. The rules of the kubelet know nothing of it. By those
//! of the agent no pod is evicted for that, for a limited time.

use std::time::Duration;

use eviction_core::time::nanos;

use super::ControlLoop;

/// How long the space is waited for.
const WAIT: Duration = Duration::from_secs(2);

/// How often the disks are sampled meanwhile: others may write.
const INTERVAL: Duration = Duration::from_millis(10);

/// Whether space that xfs has allocated ahead is waited for: once for each time that a threshold is met.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Preallocation {
    /// It has not been.
    #[default]
    NotYet,
    /// It is.
    Waiting {
        /// CLOCK_MONOTONIC in nanoseconds.
        until_ns: u64,
        /// Bytes that are allocated ahead on nodefs and on imagefs.
        bytes: [u64; 2],
    },
    /// It has been.
    Done,
}

impl Preallocation {
    /// Until the next sample while it is waited for.
    pub(super) fn wait(self, now_ns: u64) -> Option<Duration> {
        match self {
            Self::Waiting { until_ns, .. } if now_ns < until_ns => Some(INTERVAL),
            _ => None,
        }
    }
}

impl ControlLoop {
    /// Begins to wait if thresholds are met for nothing else.
    pub(super) fn wait_for_xfs(&mut self, bytes: [u64; 2], now_ns: u64) {
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

    /// Ends to wait if that would be too late: with all of it, too little would be available.
    pub(super) fn review_xfs(&mut self) {
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
