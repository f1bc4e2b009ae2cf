//! Joins the kills of a whole OOM group into one event line.

use eviction_core::oom::OomKill;

use eviction_node::clock::Instant;

/// The kernel kills a group in one go and logs some lines for each process: a group is complete when no kill was
/// reported for this long.
const QUIET_NS: u64 = 100_000_000;

/// Group kills whose victims are still reported.
#[derive(Debug, Default)]
pub(super) struct OomGroupCoalescer(Vec<OpenGroup>);

#[derive(Debug)]
struct OpenGroup {
    first: Box<OomKill>,
    killed: Instant,
    latest_ns: u64,
}

impl OomGroupCoalescer {
    /// Takes in a kill that the engine completed; gives it back if it is part of no group.
    pub(super) fn add(&mut self, kill: Box<OomKill>, killed: Instant, now_ns: u64) -> Option<Box<OomKill>> {
        let Some(group) = &kill.group else { return Some(kill) };
        let open = self.0.iter_mut().rfind(|open| open.first.oom_group == kill.oom_group);
        match open.filter(|_| group.kills > 1) {
            Some(open) => {
                open.first.kills_in_pod = open.first.kills_in_pod.max(kill.kills_in_pod);
                open.first.group = kill.group;
                open.latest_ns = now_ns;
            }
            None => self.0.push(OpenGroup { first: kill, killed, latest_ns: now_ns }),
        }
        None
    }

    /// Removes and returns those that are complete by now.
    pub(super) fn take_complete(&mut self, now_ns: u64) -> Vec<(Box<OomKill>, Instant)> {
        let complete = self.0.extract_if(.., |open| now_ns.saturating_sub(open.latest_ns) >= QUIET_NS);
        complete.map(|OpenGroup { first, killed, .. }| (first, killed)).collect()
    }

    /// In how many nanoseconds one will be.
    pub(super) fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let due = |open: &OpenGroup| open.latest_ns.saturating_add(QUIET_NS).saturating_sub(now_ns);
        self.0.iter().map(due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eviction_core::oom::GroupKill;

    fn member(oom_group: Option<u64>, kills: u64, pid: u32) -> Box<OomKill> {
        let group = oom_group.map(|_| GroupKill { kills, ..GroupKill::default() });
        Box::new(OomKill { pid, oom_group, group, ..OomKill::default() })
    }

    #[test]
    fn a_group_is_published_when_no_more_kills_come() {
        let killed = Instant::default();
        let mut groups = OomGroupCoalescer::default();
        assert!(groups.add(member(None, 1, 1), killed, 0).is_some());
        for (kills, now_ns) in [(1, 0), (2, QUIET_NS / 2)] {
            assert_eq!(groups.add(member(Some(7), kills, 1 + kills as u32), killed, now_ns), None);
        }
        assert_eq!(groups.add(member(Some(8), 1, 4), killed, 0), None);
        assert_eq!(groups.due_ns(10), Some(QUIET_NS - 10));
        let complete = groups.take_complete(QUIET_NS);
        assert_eq!((complete.len(), complete[0].0.pid, complete[0].0.kills()), (1, 4, 1));
        assert_eq!(
            groups.add(member(Some(7), 1, 5), killed, QUIET_NS),
            None,
            "the same cgroup, killed again"
        );
        let complete = groups.take_complete(u64::MAX);
        let kills: Vec<_> = complete.iter().map(|(kill, _)| (kill.pid, kill.kills())).collect();
        assert_eq!(kills, [(2, 2), (5, 1)]);
        assert_eq!(groups.due_ns(0), None);
    }
}
