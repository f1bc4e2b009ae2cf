//! The policy for on-demand probes. Such a probe makes page faults several percent slower, and sees what the
//! permanent probe misses.

use eviction_config::Probes;

/// The minimum headroom within which a threshold is near: attaching takes a moment, in which memory fills.
const MIN_NEAR_BYTES: u64 = 64 << 20;

/// Decides when the on-demand probe is attached.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AttachPolicy {
    near_percent: f64,
    detach_after_ns: u64,
    unused_since_ns: Option<u64>,
}

impl AttachPolicy {
    pub(super) fn new(probes: &Probes) -> Self {
        let detach_after_ns = u64::try_from(probes.detach_after.as_nanos()).unwrap_or(0);
        Self { near_percent: probes.near_threshold_percent, detach_after_ns, unused_since_ns: None }
    }

    /// Returns whether a threshold is near. `headroom` is that to the nearest threshold that is not met, and
    /// `capacity` that of memory or of the disk, both in bytes.
    pub(super) fn is_near(&self, is_attached: bool, headroom: Option<u64>, capacity: u64) -> bool {
        let near = self.near_bytes(capacity);
        // Twice as far for detaching, so that a headroom around the limit does not attach and detach the probe
        // all the time.
        headroom.is_some_and(|bytes| bytes <= if is_attached { near.saturating_mul(2) } else { near })
    }

    /// Returns whether the probe is to be attached: while it is needed, and for some time after that.
    pub(super) fn wants(&mut self, is_attached: bool, is_needed: bool, now_ns: u64) -> bool {
        if is_needed {
            self.unused_since_ns = None;
            return true;
        }
        let since = *self.unused_since_ns.get_or_insert(now_ns);
        is_attached && now_ns.saturating_sub(since) < self.detach_after_ns
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share need not be exact, and a float out of range is the nearest integer"
    )]
    fn near_bytes(&self, capacity: u64) -> u64 {
        ((capacity as f64 * self.near_percent / 100.0) as u64).max(MIN_NEAR_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_probe_is_attached_at_once_and_detached_after_a_delay() {
        let probes = Probes { near_threshold_percent: 3.125, ..Probes::default() };
        let mut policy = AttachPolicy::new(&probes);
        let mut is_attached = false;
        for (seconds, headroom, expected) in [
            (0, Some(2 * GIB + 1), false),
            (1, Some(2 * GIB), true),
            (2, Some(4 * GIB), true),
            (3, Some(5 * GIB), true),
            (12, None, true),
            (13, None, false),
            (14, Some(3 * GIB), false),
            (15, Some(0), true),
        ] {
            let is_near = policy.is_near(is_attached, headroom, 64 * GIB);
            is_attached = policy.wants(is_attached, is_near, seconds * SECOND);
            assert_eq!(is_attached, expected, "after {seconds} s");
        }
    }

    #[test]
    fn a_small_node_has_time_to_attach() {
        let probes = Probes { near_threshold_percent: 0.0, ..Probes::default() };
        let policy = AttachPolicy::new(&probes);
        assert!(policy.is_near(false, Some(64 << 20), 1 << 20));
    }

    #[test]
    fn a_clock_that_goes_back_does_not_detach_a_probe() {
        let mut policy = AttachPolicy::new(&Probes::default());
        assert!(policy.wants(true, false, 10 * SECOND));
        assert!(policy.wants(true, false, SECOND));
    }
}
