//! Groups that the kernel kills as a whole: one line with all victims, and not one for each.

use crate::telemetry::event_log;
use eviction_node::clock::Instant;

/// The kernel kills them in one go, and writes some lines to its log for each: when none was heard
/// of for so long, all were.
const QUIET_NS: u64 = 100_000_000;

/// Stories whose victims are still coming in.
#[derive(Debug, Default)]
pub(super) struct OomGroupCoalescer(Vec<OpenGroup>);

#[derive(Debug)]
struct OpenGroup {
    kill: event_log::OomKill,
    killed: Instant,
    heard_ns: u64,
}

impl OomGroupCoalescer {
    /// Takes in a kill; gives it back if it is nobody's but its own.
    pub(super) fn add(
        &mut self,
        kill: event_log::OomKill,
        killed: Instant,
        now_ns: u64,
    ) -> Option<event_log::OomKill> {
        if kill.oom_group.is_none() {
            return Some(kill);
        }
        match self.0.iter_mut().find(|open| open.kill.oom_group == kill.oom_group) {
            Some(open) => {
                open.kill.join(kill);
                open.heard_ns = now_ns;
            }
            None => self.0.push(OpenGroup { kill, killed, heard_ns: now_ns }),
        }
        None
    }

    /// Those that are whole by now.
    pub(super) fn take_whole(&mut self, now_ns: u64) -> Vec<(event_log::OomKill, Instant)> {
        let whole = self.0.extract_if(.., |open| now_ns.saturating_sub(open.heard_ns) >= QUIET_NS);
        whole.map(|OpenGroup { kill, killed, .. }| (kill, killed)).collect()
    }

    /// In how many nanoseconds one will be.
    pub(super) fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let due = |open: &OpenGroup| open.heard_ns.saturating_add(QUIET_NS).saturating_sub(now_ns);
        self.0.iter().map(due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(oom_group: Option<u64>, pid: u32) -> event_log::OomKill {
        event_log::OomKill { pid: Some(pid), oom_group, ..event_log::OomKill::default() }
    }

    #[test]
    fn victims_of_a_group_are_told_when_no_more_come() {
        let killed = Instant::default();
        let mut together = OomGroupCoalescer::default();
        assert!(together.add(member(None, 1), killed, 0).is_some());
        for (pid, now_ns) in [(2, 0), (3, QUIET_NS / 2)] {
            assert_eq!(together.add(member(Some(7), pid), killed, now_ns), None);
        }
        assert_eq!(together.add(member(Some(8), 4), killed, 0), None);
        assert_eq!(together.due_ns(10), Some(QUIET_NS - 10));
        let whole = together.take_whole(QUIET_NS);
        assert_eq!((whole.len(), whole[0].0.pid, whole[0].0.kills()), (1, Some(4), 1));
        let whole = together.take_whole(u64::MAX);
        assert_eq!((whole.len(), whole[0].0.pid, whole[0].0.kills()), (1, Some(2), 2));
        assert_eq!(together.due_ns(0), None);
    }
}
