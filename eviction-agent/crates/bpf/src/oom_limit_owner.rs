//! Determines whose limit caused an OOM kill.
//!
//! Where `oom_kill_process` can be observed, the kernel gives the owner of the limit itself. Otherwise it
//! follows from the counts of events:
//!
//! The kernel raises the owner's own `MEMCG_OOM` count before it searches for a victim (`mem_cgroup_oom` in
//! mm/memcontrol.c), and raises no count when the machine is out of memory (`out_of_memory` in mm/oom_kill.c).
//! So the owner is the ancestor of the victim whose count changed, and if none changed it was the machine. The
//! BPF programs keep each count as they last read it, and put it into the record next to the current one, so
//! that a lost record does no harm.

use eviction_common::BATCH_PAGES;

use super::event::{Ancestor, OomKill, OomLimitOwner};

/// Returns the owner of the limit according to the counts of events, on a machine with pages of `page_bytes`,
/// and whether it was inferred from usage and limits, since the counts were not known or not conclusive.
pub(super) fn owner_by_counts(kill: &OomKill, page_bytes: u64) -> (OomLimitOwner, bool) {
    // The root has no limit of its own.
    let limited = match kill.chain.split_last() {
        None => return (OomLimitOwner::Unknown, true),
        Some((_, below_root)) if !kill.truncated => below_root,
        Some(_) => kill.chain.as_slice(),
    };
    // A charge fails if it would exceed the limit, and each CPU charges a batch at once.
    let at_limit = |ancestor: &&Ancestor| {
        ancestor.max.is_some_and(|max| max.saturating_sub(ancestor.usage) < BATCH_PAGES * page_bytes)
    };
    let with = |count| limited.iter().filter(move |ancestor| FailCount::of(ancestor) == count);
    let mut changed = with(FailCount::Changed);
    match (changed.next(), changed.next()) {
        // The count changes with each charge that fails, also if no process is killed for it. The count of a
        // cgroup that is not at its limit may have changed long ago.
        (Some(owner), None) => return (OomLimitOwner::Memcg(*owner), !at_limit(&owner)),
        (Some(nearest), Some(_)) => {
            let owner = with(FailCount::Changed).find(at_limit).unwrap_or(nearest);
            return (OomLimitOwner::Memcg(*owner), true);
        }
        (None, _) => {}
    }
    match with(FailCount::Unknown).find(at_limit) {
        Some(owner) => (OomLimitOwner::Memcg(*owner), true),
        // If the chain is not the victim's own, the owner may be in another chain.
        None => {
            let inferred = kill.truncated || kill.pid_only || with(FailCount::Unknown).next().is_some();
            (OomLimitOwner::Global, inferred)
        }
    }
}

/// Whether an ancestor's own `MEMCG_OOM` count has changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FailCount {
    Changed,
    Unchanged,
    /// The count was never read before, or this kernel does not show it.
    Unknown,
}

impl FailCount {
    fn of(ancestor: &Ancestor) -> Self {
        let Some(events) = ancestor.events else { return Self::Unknown };
        match events.oom_before {
            Some(before) if before < events.oom => Self::Changed,
            Some(before) if before == events.oom => Self::Unchanged,
            // The count was never read; or on cgroup v2 the controller was turned off for the cgroup and on
            // again, and the count restarted.
            _ if events.oom == 0 => Self::Unchanged,
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::OomEvents;

    const PAGE: u64 = 4096;
    const MIB: u64 = 1 << 20;

    fn kill(chain: &[Ancestor]) -> OomKill {
        OomKill {
            ktime_ns: 1,
            tgid: 10,
            pid: 10,
            comm: [0; 16],
            oom_score_adj: None,
            rss: None,
            trigger_tgid: 10,
            trigger_comm: [0; 16],
            trigger_memcg: None,
            owner: OomLimitOwner::Unknown,
            owner_inferred: false,
            truncated: false,
            pid_only: false,
            chain: chain.to_vec(),
            names: Vec::new(),
        }
    }

    fn memcg(id: u64, usage: u64, max: u64, oom: u64, before: Option<u64>) -> Ancestor {
        Ancestor {
            id,
            usage,
            max: (max != 0).then_some(max),
            events: Some(OomEvents {
                oom,
                oom_kill: 0,
                oom_before: before,
                oom_kill_before: before.map(|_| 0),
            }),
            oom_group: false,
        }
    }

    fn root() -> Ancestor {
        memcg(1, 900 * MIB, 0, 0, Some(0))
    }

    fn owner_id(kill: &OomKill) -> (Option<u64>, bool) {
        let (owner, inferred) = owner_by_counts(kill, PAGE);
        match owner {
            OomLimitOwner::Memcg(ancestor) => (Some(ancestor.id), inferred),
            OomLimitOwner::Global => (None, inferred),
            OomLimitOwner::Unknown => (Some(0), inferred),
        }
    }

    #[test]
    fn chain_of_another_task_proves_a_limit_but_not_its_absence() {
        let container = memcg(3, 64 * MIB, 64 * MIB, 1, Some(0));
        let mut foreign = kill(&[container, root()]);
        foreign.pid_only = true;
        assert_eq!(owner_id(&foreign), (Some(3), false));
        foreign.chain[0].events = Some(OomEvents { oom: 1, oom_before: Some(1), ..OomEvents::default() });
        assert_eq!(owner_id(&foreign), (None, true));
    }

    #[test]
    fn owner_below_its_limit_with_a_changed_count_is_inferred() {
        // Charges failed while the victim before was still exiting; no process was killed for those.
        let container = memcg(3, 32 * MIB, 64 * MIB, 4, Some(1));
        assert_eq!(owner_id(&kill(&[container, root()])), (Some(3), true));
    }

    #[test]
    fn changed_count_names_the_owner_also_above_a_cgroup_at_its_limit() {
        let container = memcg(3, 64 * MIB, 64 * MIB, 0, Some(0));
        let pod = memcg(2, 64 * MIB, 64 * MIB, 1, Some(0));
        assert_eq!(owner_id(&kill(&[container, pod, root()])), (Some(2), false));
    }

    #[test]
    fn unchanged_counts_name_the_machine_despite_a_cgroup_at_its_limit() {
        let container = memcg(3, 64 * MIB, 64 * MIB, 7, Some(7));
        assert_eq!(owner_id(&kill(&[container, root()])), (None, false));
    }

    #[test]
    fn count_of_zero_is_unchanged_even_without_a_previous_value() {
        let container = memcg(3, 64 * MIB, 64 * MIB, 0, None);
        assert_eq!(owner_id(&kill(&[container, root()])), (None, false));
    }

    #[test]
    fn restarted_count_is_inconclusive_unless_it_is_zero() {
        let pod = memcg(2, 64 * MIB, 64 * MIB, 1, Some(5));
        assert_eq!(owner_id(&kill(&[pod, root()])), (Some(2), true));
        let pod = memcg(2, 64 * MIB, 64 * MIB, 0, Some(5));
        assert_eq!(owner_id(&kill(&[pod, root()])), (None, false));
    }

    #[test]
    fn owner_without_previous_counts_is_inferred_from_the_limit() {
        let container = memcg(3, 10 * MIB, 64 * MIB, 2, None);
        let pod = memcg(2, 64 * MIB - 63 * PAGE, 64 * MIB, 2, None);
        assert_eq!(owner_id(&kill(&[container, pod, root()])), (Some(2), true));
    }

    #[test]
    fn usage_one_batch_below_the_limit_is_not_at_the_limit() {
        let pod = memcg(2, 64 * MIB - 64 * PAGE, 64 * MIB, 2, None);
        assert_eq!(owner_id(&kill(&[pod, root()])), (None, true));
    }

    #[test]
    fn of_two_changed_counts_the_cgroup_at_its_limit_is_inferred() {
        let container = memcg(3, 10 * MIB, 64 * MIB, 3, Some(2));
        let pod = memcg(2, 64 * MIB, 64 * MIB, 2, Some(1));
        assert_eq!(owner_id(&kill(&[container, pod, root()])), (Some(2), true));
    }

    #[test]
    fn truncated_chain_gives_only_an_inferred_owner() {
        let mut cut = kill(&[memcg(3, MIB, 0, 0, Some(0))]);
        cut.truncated = true;
        assert_eq!(owner_id(&cut), (None, true));
    }

    #[test]
    fn owner_is_inferred_without_counts_and_unknown_without_a_chain() {
        let mut pod = memcg(2, 64 * MIB, 64 * MIB, 0, None);
        pod.events = None;
        assert_eq!(owner_id(&kill(&[pod, root()])), (Some(2), true));
        assert_eq!(owner_id(&kill(&[])), (Some(0), true));
    }
}
