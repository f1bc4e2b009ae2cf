//! When a hook for a time is worth its cost: it makes page faults several percent slower, and sees
//! what the hook for every day passes over.

use std::time::Duration;

/// A line is near within this share of the node's memory.
const SHARE: u64 = 32;

/// And never only nearer than this: attaching takes a moment, in which memory fills.
const LEAST_BYTES: u64 = 64 << 20;

/// For how long a hook must have been of no use before it is taken off: it is made ready again at
/// a price.
const CALM: Duration = Duration::from_secs(10);

/// Holds on to a hook that may be of use again soon.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Linger {
    idle_since_ns: Option<u64>,
}

impl Linger {
    /// Whether the hook is to be attached; `of_use`: whether it is of use now, `attached`: whether
    /// it is attached.
    pub(crate) fn wants(&mut self, of_use: bool, now_ns: u64, attached: bool) -> bool {
        if of_use {
            self.idle_since_ns = None;
            return true;
        }
        let since = *self.idle_since_ns.get_or_insert(now_ns);
        attached && u128::from(now_ns.saturating_sub(since)) < CALM.as_nanos()
    }
}

/// Remembers since when the line has been far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Range {
    linger: Linger,
}

impl Range {
    /// Whether the hook is to be attached; `near`: whether it is. No line above is far.
    pub(crate) fn is_near(
        &mut self,
        distance: Option<u64>,
        memory_capacity: u64,
        now_ns: u64,
        near: bool,
    ) -> bool {
        let reach = (memory_capacity / SHARE).max(LEAST_BYTES);
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
        let mut range = Range::default();
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
        assert!(Range::default().is_near(Some(64 << 20), 1 << 20, 0, false));
    }

    #[test]
    fn a_clock_that_goes_back_keeps_it() {
        let mut range = Range::default();
        assert!(range.is_near(None, GIB, 10 * SECOND, true));
        assert!(range.is_near(None, GIB, SECOND, true));
    }
}
