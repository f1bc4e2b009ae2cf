//! Whose limit an out-of-memory kill was about.
//!
//! Where `oom_kill_process` can be watched, the kernel says it itself ([`OomContext`]). Else it shows
//! in the counts of events:
//!
//! The kernel raises the owner's own `MEMCG_OOM` count before it looks for a victim
//! (`mem_cgroup_oom` in mm/memcontrol.c), and raises nobody's when the machine is out of memory
//! (`out_of_memory` in mm/oom_kill.c). So of the victim's ancestors the one whose count moved is
//! the owner, and when none moved it was the machine. The kernel side keeps each count as it last
//! saw it and puts it beside the present one into the record, so that a lost record spoils nothing.

use eviction_common::BATCH_PAGES;

use super::event::{Ancestor, OomContext, OomKill};

/// Who ran out of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OomLimitOwner {
    /// A memory cgroup, by its own limit.
    Memcg(Ancestor),
    /// The machine.
    Global,
    /// The kernel gave no chain.
    Unknown,
}

/// The owner, and how far it can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribution {
    /// Whose limit it was.
    pub owner: OomLimitOwner,
    /// It was concluded from usage and limits, since the counts were not known or did not say.
    pub inferred: bool,
}

/// Says whose limit this kill was about, on a machine with pages of `page_bytes`.
pub fn attribute(kill: &OomKill, page_bytes: u64) -> Attribution {
    match kill.context {
        Some(OomContext { owner: Some(owner), .. }) => Attribution::of(OomLimitOwner::Memcg(owner), false),
        Some(OomContext { owner: None, .. }) => Attribution::of(OomLimitOwner::Global, false),
        None => by_counts(kill, page_bytes),
    }
}

/// The same from the counts of events alone.
pub fn by_counts(kill: &OomKill, page_bytes: u64) -> Attribution {
    // The root has no limit of its own.
    let limited = match kill.chain.split_last() {
        None => return Attribution::of(OomLimitOwner::Unknown, true),
        Some((_, below_root)) if !kill.truncated => below_root,
        Some(_) => kill.chain.as_slice(),
    };
    // A charge fails when it would pass the limit, and each CPU asks for a batch at once.
    let at_limit = |ancestor: &&Ancestor| {
        ancestor.max.is_some_and(|max| max.saturating_sub(ancestor.usage) < BATCH_PAGES * page_bytes)
    };
    let with = |count| limited.iter().filter(move |ancestor| FailCount::of(ancestor) == count);
    let mut moved = with(FailCount::Moved);
    match (moved.next(), moved.next()) {
        // It moves with each charge that fails, also where nobody has to die for it: one that is not at its limit may
        // have moved long ago.
        (Some(owner), None) => return Attribution::of(OomLimitOwner::Memcg(*owner), !at_limit(&owner)),
        (Some(nearest), Some(_)) => {
            let owner = with(FailCount::Moved).find(at_limit).unwrap_or(nearest);
            return Attribution::of(OomLimitOwner::Memcg(*owner), true);
        }
        (None, _) => {}
    }
    match with(FailCount::Unknown).find(at_limit) {
        Some(owner) => Attribution::of(OomLimitOwner::Memcg(*owner), true),
        // Where the chain is not the victim's own, the owner may be another one's.
        None => {
            let unsure = kill.truncated || kill.pid_only || with(FailCount::Unknown).next().is_some();
            Attribution::of(OomLimitOwner::Global, unsure)
        }
    }
}

impl Attribution {
    fn of(owner: OomLimitOwner, inferred: bool) -> Self {
        Self { owner, inferred }
    }
}

/// What became of an ancestor's own `MEMCG_OOM` count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FailCount {
    Moved,
    Still,
    /// Never looked at before, or this kernel does not show it.
    Unknown,
}

impl FailCount {
    fn of(ancestor: &Ancestor) -> Self {
        match ancestor.events {
            None => Self::Unknown,
            Some(events) => match events.oom_before {
                Some(before) if before < events.oom => Self::Moved,
                Some(before) if before == events.oom => Self::Still,
                // Never looked at; or on cgroup v2 the controller was turned off for it and on
                // again, and counts anew.
                _ if events.oom == 0 => Self::Still,
                _ => Self::Unknown,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{OomEvents, Stamp};

    const PAGE: u64 = 4096;
    const MIB: u64 = 1 << 20;

    fn kill(chain: &[Ancestor]) -> OomKill {
        OomKill {
            stamp: Stamp { ktime_ns: 1, cpu: 0, seq: 0 },
            tgid: 10,
            pid: 10,
            comm: [0; 16],
            uid: None,
            oom_score_adj: None,
            rss: None,
            trigger_tgid: 10,
            trigger_pid: 10,
            trigger_comm: [0; 16],
            trigger_memcg: None,
            context: None,
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
        let Attribution { owner, inferred } = attribute(kill, PAGE);
        match owner {
            OomLimitOwner::Memcg(ancestor) => (Some(ancestor.id), inferred),
            OomLimitOwner::Global => (None, inferred),
            OomLimitOwner::Unknown => (Some(0), inferred),
        }
    }

    #[test]
    fn the_kernels_own_word_goes_before_what_counts_say() {
        let container = memcg(3, 64 * MIB, 64 * MIB, 1, Some(0));
        let pod = memcg(2, 64 * MIB, 64 * MIB, 0, Some(0));
        let mut told = kill(&[container, pod, root()]);
        told.context = Some(OomContext { owner: Some(pod), ktime_ns: 1 });
        assert_eq!(owner_id(&told), (Some(2), false));
        told.context = Some(OomContext { owner: None, ktime_ns: 1 });
        assert_eq!(owner_id(&told), (None, false));
        assert_eq!(by_counts(&told, PAGE).owner, OomLimitOwner::Memcg(container));
    }

    #[test]
    fn another_tasks_chain_proves_a_limit_and_never_its_absence() {
        let container = memcg(3, 64 * MIB, 64 * MIB, 1, Some(0));
        let mut foreign = kill(&[container, root()]);
        foreign.pid_only = true;
        assert_eq!(owner_id(&foreign), (Some(3), false));
        foreign.chain[0].events = Some(OomEvents { oom: 1, oom_before: Some(1), ..OomEvents::default() });
        assert_eq!(owner_id(&foreign), (None, true));
    }

    #[test]
    fn a_count_that_may_have_moved_long_ago_is_no_certainty() {
        // Charges failed while the victim before was still dying: nobody had to die for those.
        let container = memcg(3, 32 * MIB, 64 * MIB, 4, Some(1));
        assert_eq!(owner_id(&kill(&[container, root()])), (Some(3), true));
    }

    #[test]
    fn the_count_that_moved_names_the_owner_also_above_others_at_their_limit() {
        let container = memcg(3, 64 * MIB, 64 * MIB, 0, Some(0));
        let pod = memcg(2, 64 * MIB, 64 * MIB, 1, Some(0));
        assert_eq!(owner_id(&kill(&[container, pod, root()])), (Some(2), false));
    }

    #[test]
    fn no_count_moved_is_the_machine_also_when_a_container_sits_at_its_limit() {
        let container = memcg(3, 64 * MIB, 64 * MIB, 7, Some(7));
        assert_eq!(owner_id(&kill(&[container, root()])), (None, false));
    }

    #[test]
    fn a_count_of_zero_was_never_moved_even_if_unseen() {
        let container = memcg(3, 64 * MIB, 64 * MIB, 0, None);
        assert_eq!(owner_id(&kill(&[container, root()])), (None, false));
    }

    #[test]
    fn a_count_that_began_anew_says_nothing_unless_it_is_zero() {
        let pod = memcg(2, 64 * MIB, 64 * MIB, 1, Some(5));
        assert_eq!(owner_id(&kill(&[pod, root()])), (Some(2), true));
        let pod = memcg(2, 64 * MIB, 64 * MIB, 0, Some(5));
        assert_eq!(owner_id(&kill(&[pod, root()])), (None, false));
    }

    #[test]
    fn an_unseen_count_is_inferred_from_the_limit() {
        let container = memcg(3, 10 * MIB, 64 * MIB, 2, None);
        let pod = memcg(2, 64 * MIB - 63 * PAGE, 64 * MIB, 2, None);
        assert_eq!(owner_id(&kill(&[container, pod, root()])), (Some(2), true));
    }

    #[test]
    fn one_batch_below_the_limit_is_not_at_it() {
        let pod = memcg(2, 64 * MIB - 64 * PAGE, 64 * MIB, 2, None);
        assert_eq!(owner_id(&kill(&[pod, root()])), (None, true));
    }

    #[test]
    fn of_two_that_moved_the_one_at_its_limit_is_inferred() {
        let container = memcg(3, 10 * MIB, 64 * MIB, 3, Some(2));
        let pod = memcg(2, 64 * MIB, 64 * MIB, 2, Some(1));
        assert_eq!(owner_id(&kill(&[container, pod, root()])), (Some(2), true));
    }

    #[test]
    fn a_chain_that_was_cut_ends_in_no_certain_verdict() {
        let mut cut = kill(&[memcg(3, MIB, 0, 0, Some(0))]);
        cut.truncated = true;
        assert_eq!(owner_id(&cut), (None, true));
    }

    #[test]
    fn without_counts_it_is_inferred_and_without_a_chain_unknown() {
        let mut pod = memcg(2, 64 * MIB, 64 * MIB, 0, None);
        pod.events = None;
        assert_eq!(owner_id(&kill(&[pod, root()])), (Some(2), true));
        assert_eq!(owner_id(&kill(&[])), (Some(0), true));
    }
}
