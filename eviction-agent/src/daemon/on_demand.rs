//! When a hook for a time is worth its cost: it makes page faults several percent slower, and sees
//! what the hook for every day passes over.

use std::time::Duration;

use eviction_config::Probes;

/// A line is near within this at least: attaching takes a moment, in which memory fills.
const LEAST_BYTES: u64 = 64 << 20;

/// Holds on to a hook that may be of use again soon.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DetachPolicy {
    calm_after: Duration,
    idle_since_ns: Option<u64>,
}

impl DetachPolicy {
    pub(crate) fn new(hooks: &Probes) -> Self {
        let calm_after = Duration::from_nanos(hooks.detach_after.as_nanos().max(0).unsigned_abs());
        Self { calm_after, idle_since_ns: None }
    }

    /// Whether the hook is to be attached; `of_use`: whether it is of use now, `attached`: whether
    /// it is attached.
    pub(crate) fn wants(&mut self, of_use: bool, now_ns: u64, attached: bool) -> bool {
        if of_use {
            self.idle_since_ns = None;
            return true;
        }
        let since = *self.idle_since_ns.get_or_insert(now_ns);
        attached && u128::from(now_ns.saturating_sub(since)) < self.calm_after.as_nanos()
    }
}

/// Remembers since when the line has been far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NearTracker {
    near_percent: f64,
    linger: DetachPolicy,
}

impl NearTracker {
    pub(crate) fn new(hooks: &Probes) -> Self {
        Self { near_percent: hooks.near_threshold_percent, linger: DetachPolicy::new(hooks) }
    }

    /// Whether the hook is to be attached; `near`: whether it is. No line above is far.
    pub(crate) fn is_near(
        &mut self,
        distance: Option<u64>,
        memory_capacity: u64,
        now_ns: u64,
        near: bool,
    ) -> bool {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share need not be exact, and a float out of range is the nearest integer"
        )]
        let share = (memory_capacity as f64 * self.near_percent / 100.0) as u64;
        let reach = share.max(LEAST_BYTES);
        // What swings around the edge must not attach and detach all the time.
        let reach = if near { reach.saturating_mul(2) } else { reach };
        self.linger.wants(distance.is_some_and(|distance| distance <= reach), now_ns, near)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn near_at_once_and_far_only_after_a_while() {
        let hooks = Probes { near_threshold_percent: 3.125, ..Probes::default() };
        let mut range = NearTracker::new(&hooks);
        let mut near = false;
        for (seconds, distance, expected) in [
            (0, Some(2 * GIB + 1), false),
            (1, Some(2 * GIB), true),
            (2, Some(4 * GIB), true),
            (3, Some(5 * GIB), true),
            (12, None, true),
            (13, None, false),
            (14, Some(3 * GIB), false),
            (15, Some(0), true),
        ] {
            near = range.is_near(distance, 64 * GIB, seconds * SECOND, near);
            assert_eq!(near, expected, "after {seconds} s");
        }
    }

    #[test]
    fn a_small_node_has_time_to_attach() {
        let hooks = Probes { near_threshold_percent: 0.0, ..Probes::default() };
        assert!(NearTracker::new(&hooks).is_near(Some(64 << 20), 1 << 20, 0, false));
    }

    #[test]
    fn a_clock_that_goes_back_keeps_it() {
        let mut range = NearTracker::new(&Probes::default());
        assert!(range.is_near(None, GIB, 10 * SECOND, true));
        assert!(range.is_near(None, GIB, SECOND, true));
    }
}
