//! Kills that the kernel counted and no program told of.
//!
//! The machine's own count (`oom_kill` of /proc/vmstat) is held against the records. The kernel
//! counts a kill a moment before it runs the program, and one at a time (`oom_lock`), so a
//! difference has to be there at three looks in a row. What is missing then is looked for in the
//! counts of the groups, which are read for nothing else.
//!
//! Where it kills a group as a whole, it kills the process that it chose once alone and once more
//! among the others (`oom_kill_process` in mm/oom_kill.c): most often that one is counted twice.

use std::collections::BTreeMap;
use std::path::Path;

use crate::core::reading::Reading;
use crate::source::cgroup::files::{Version, parse_memory_events, parse_oom_control};
use crate::source::cgroup::tree::Tree;
use crate::source::file::read_once;
use crate::source::proc::vmstat::OomKillCounter;

/// From one look at a difference to the next.
const SETTLE_NS: u64 = 300_000_000;

/// At so many looks in a row a difference has to be there.
const LOOKS: u32 = 3;

/// Records of the same group that are further apart are of two kills.
const TOGETHER_NS: u64 = 1_000_000_000;

/// What a group's own file of events says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Processes of it that were killed.
    kills: u64,
    /// How often its own limit was the reason, where that is told and no record has moved it since.
    ooms: Option<u64>,
}

impl Counts {
    /// Reads those of the group itself, without the groups below it.
    fn read(folder: &Path, version: Version) -> Option<Self> {
        match version {
            Version::V1 => {
                let text = read_once(&folder.join("memory.oom_control"), 4096).ok()?;
                Some(Self { kills: parse_oom_control(&text).oom_kill.known()?, ooms: None })
            }
            Version::V2 => {
                let events = parse_memory_events(&read_once(&folder.join("memory.events.local"), 4096).ok()?);
                Some(Self { kills: events.oom_kill.known()?, ooms: events.oom.known() })
            }
        }
    }
}

/// Kills in one group that no program told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InGroup {
    /// The group's id.
    pub(crate) group: u64,
    /// How many.
    pub(crate) kills: u64,
}

/// What is missing, by where it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Missing {
    /// In groups that are there.
    pub(crate) in_groups: Vec<InGroup>,
    /// In groups that are gone, or outside of the node.
    pub(crate) elsewhere: u64,
    /// The groups whose own limit was hit meanwhile, where the kernel tells.
    pub(crate) owners: Vec<u64>,
}

/// What is accounted for.
#[derive(Debug)]
pub(crate) struct Unseen {
    counter: OomKillCounter,
    version: Version,
    /// Kills on the machine; not known while its count cannot be read.
    machine: Option<u64>,
    groups: BTreeMap<u64, Counts>,
    /// Kills that may be counted twice: on the machine, and by group.
    twice: u64,
    twice_in: BTreeMap<u64, u64>,
    /// One of them came after the last look.
    twice_lately: bool,
    last_together: Option<(u64, u64)>,
    asked: bool,
    difference: Difference,
    /// Those that are missing for certain; where they were is to be found out.
    missing: u64,
}

/// Between the count and what is accounted for, at the last looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Difference {
    /// How many are missing; negative if more was told than was counted.
    least: i64,
    looks: u32,
    looked_ns: u64,
}

impl Unseen {
    /// What was counted until now is no news.
    pub(crate) fn new(proc: &Path, version: Version, tree: &Tree) -> Self {
        let mut counter = OomKillCounter::open(proc);
        let machine = counter.read().known();
        let groups = read_groups(tree, version).collect();
        Self::at(counter, version, machine, groups)
    }

    fn at(
        counter: OomKillCounter,
        version: Version,
        machine: Option<u64>,
        groups: BTreeMap<u64, Counts>,
    ) -> Self {
        Self {
            counter,
            version,
            machine,
            groups,
            twice: 0,
            twice_in: BTreeMap::new(),
            twice_lately: false,
            last_together: None,
            asked: false,
            difference: Difference::default(),
            missing: 0,
        }
    }

    /// The count whose difference tells of a group.
    pub(crate) fn group_count(&self) -> &'static str {
        match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        }
    }

    /// A program told of a kill in this group by the limit of that one; `together` is the group that
    /// was killed as a whole, if one was, and the kernel's stamp.
    pub(crate) fn told(&mut self, group: Option<u64>, owner: Option<u64>, together: Option<(u64, u64)>) {
        if let Some((whole, at_ns)) = together {
            let same =
                |(last, last_ns): (u64, u64)| last == whole && at_ns.saturating_sub(last_ns) <= TOGETHER_NS;
            if !self.last_together.is_some_and(same) {
                self.twice = self.twice.saturating_add(1);
                self.twice_lately = true;
                let in_group = self.twice_in.entry(group.unwrap_or(whole)).or_default();
                *in_group = in_group.saturating_add(1);
            }
            self.last_together = Some((whole, at_ns));
        }
        self.machine = self.machine.map(|kills| kills.saturating_add(1));
        if let Some(group) = group {
            let counts = self.groups.entry(group).or_default();
            counts.kills = counts.kills.saturating_add(1);
        }
        if let Some(counts) = owner.and_then(|owner| self.groups.get_mut(&owner)) {
            counts.ooms = None;
        }
    }

    /// Takes note of which groups are there: nothing is found out about others any more.
    pub(crate) fn forget_others(&mut self, is_there: impl Fn(u64) -> bool) {
        self.groups.retain(|group, _| is_there(*group));
        self.twice_in.retain(|group, _| is_there(*group));
    }

    /// A look is wanted with the next turn.
    pub(crate) fn ask(&mut self) {
        self.asked = true;
    }

    /// In how many nanoseconds a look is due, if one is.
    pub(crate) fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let Difference { looks, looked_ns, .. } = self.difference;
        let due = looked_ns.saturating_add(SETTLE_NS).saturating_sub(now_ns);
        if self.asked { Some(0) } else { (looks > 0).then_some(due) }
    }

    /// The machine's count, if a look is due: to be read before the records are.
    pub(crate) fn count(&mut self, now_ns: u64) -> Option<u64> {
        if self.due_ns(now_ns) != Some(0) {
            return None;
        }
        self.asked = false;
        match self.counter.read() {
            Reading::Known(count) => Some(count),
            Reading::Unknown(_) => {
                self.machine = None;
                None
            }
        }
    }

    /// Holds that count against what was told since.
    pub(crate) fn hold(&mut self, count: u64, now_ns: u64) {
        self.missing = self.missing.saturating_add(self.missing_by(count, now_ns));
    }

    /// How many kills are missing for certain, that were not before.
    fn missing_by(&mut self, count: u64, now_ns: u64) -> u64 {
        let Some(known) = self.machine else {
            self.machine = Some(count);
            return 0;
        };
        let missing = i64::try_from(i128::from(count) - i128::from(known)).unwrap_or(0);
        let before = self.difference;
        if missing == 0 {
            self.difference = Difference::default();
            // Those were not counted twice, as it seems: nothing is to be excused by them later.
            if !std::mem::take(&mut self.twice_lately) {
                self.twice = 0;
            }
            return 0;
        }
        let (least, looks) = match before.looks > 0 && before.least.signum() == missing.signum() {
            true if missing > 0 => (before.least.min(missing), before.looks + 1),
            true => (before.least.max(missing), before.looks + 1),
            false => (missing, 1),
        };
        self.difference = Difference { least, looks, looked_ns: now_ns };
        if looks < LOOKS {
            return 0;
        }
        self.difference = Difference::default();
        // Where more was told, a task that was only marked was taken for one that was killed.
        self.machine = Some(known.saturating_add_signed(least));
        let missing = u64::try_from(least).unwrap_or(0);
        let twice = missing.min(self.twice);
        self.twice -= twice;
        missing - twice
    }

    /// Finds out in which groups those were that are missing, if any are. That reads a file of every
    /// group.
    pub(crate) fn locate(&mut self, tree: &Tree) -> Option<Missing> {
        let missing = std::mem::take(&mut self.missing);
        (missing > 0).then(|| self.settle(missing, read_groups(tree, self.version).collect()))
    }

    fn settle(&mut self, missing: u64, now: BTreeMap<u64, Counts>) -> Missing {
        let mut found = Missing { elsewhere: missing, ..Missing::default() };
        for (&group, counts) in &now {
            let before = self.groups.get(&group).copied().unwrap_or(Counts { kills: 0, ooms: Some(0) });
            let twice = self.twice_in.get(&group).copied().unwrap_or(0);
            let moved = counts.kills.saturating_sub(before.kills);
            let kills = moved.saturating_sub(twice).min(found.elsewhere);
            if kills > 0 {
                found.elsewhere -= kills;
                found.in_groups.push(InGroup { group, kills });
            }
            if before.ooms.zip(counts.ooms).is_some_and(|(before, now)| before < now) {
                found.owners.push(group);
            }
        }
        self.groups = now;
        self.twice_in.clear();
        found
    }
}

fn read_groups(tree: &Tree, version: Version) -> impl Iterator<Item = (u64, Counts)> {
    tree.groups().iter().enumerate().filter_map(move |(index, group)| {
        let folder = tree.root().join(tree.relative_path(index));
        Some((group.id, Counts::read(&folder, version)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unseen(machine: u64, groups: &[(u64, u64)]) -> Unseen {
        Unseen::at(OomKillCounter::open(Path::new("")), Version::V1, Some(machine), counts(groups))
    }

    fn counts(groups: &[(u64, u64)]) -> BTreeMap<u64, Counts> {
        groups.iter().map(|(id, kills)| (*id, Counts { kills: *kills, ooms: None })).collect()
    }

    fn held(unseen: &mut Unseen, counts: [u64; 3]) -> [u64; 3] {
        counts.map(|count| unseen.missing_by(count, 0))
    }

    #[test]
    fn what_is_told_is_not_missing() {
        let mut unseen = unseen(5, &[(1, 5)]);
        for _ in 0..3 {
            unseen.told(Some(1), Some(1), None);
        }
        assert_eq!(held(&mut unseen, [8, 8, 8]), [0; 3]);
        assert_eq!(unseen.due_ns(0), None);
    }

    #[test]
    fn what_is_missing_at_three_looks_is_missing_once() {
        let mut unseen = unseen(5, &[(1, 5), (2, 0)]);
        unseen.told(Some(1), None, None);
        assert_eq!(held(&mut unseen, [8, 9, 9]), [0, 0, 2], "the third of them came later");
        let missing = unseen.settle(2, counts(&[(1, 6), (2, 1), (3, 0)]));
        let in_groups = vec![InGroup { group: 2, kills: 1 }];
        assert_eq!(missing, Missing { in_groups, elsewhere: 1, owners: Vec::new() });
        assert_eq!(held(&mut unseen, [9, 9, 9]), [0, 0, 1]);
        assert_eq!(held(&mut unseen, [9, 9, 9]), [0; 3]);
    }

    #[test]
    fn a_record_on_its_way_is_waited_for() {
        let mut unseen = unseen(0, &[]);
        assert_eq!(unseen.missing_by(1, 10), 0);
        assert_eq!(unseen.due_ns(10), Some(SETTLE_NS));
        unseen.told(None, None, None);
        assert_eq!(held(&mut unseen, [1, 1, 1]), [0; 3]);
        // Again and again another one is on its way.
        for count in 2..50 {
            assert_eq!(unseen.missing_by(count, 10), 0);
            unseen.told(None, None, None);
            assert_eq!(unseen.missing_by(count, 10), 0);
        }
    }

    #[test]
    fn a_mark_that_was_taken_for_a_kill_hides_no_later_one() {
        let mut unseen = unseen(0, &[]);
        unseen.told(None, None, None);
        assert_eq!(held(&mut unseen, [0, 0, 0]), [0; 3]);
        assert_eq!(held(&mut unseen, [1, 1, 1]), [0, 0, 1]);
    }

    #[test]
    fn what_changes_its_sign_is_looked_at_three_times_again() {
        let mut unseen = unseen(2, &[]);
        assert_eq!(unseen.missing_by(4, 0), 0);
        assert_eq!(unseen.missing_by(4, 0), 0);
        (0..3).for_each(|_| unseen.told(None, None, None));
        // One was told ahead of its count.
        assert_eq!(held(&mut unseen, [4, 4, 5]), [0; 3]);
        assert_eq!(held(&mut unseen, [5, 5, 5]), [0; 3]);
    }

    #[test]
    fn the_first_of_a_group_is_counted_twice_and_missing_never() {
        let mut unseen = unseen(0, &[(1, 0), (2, 0)]);
        // Three processes of a group, and another group a second later.
        for at_ns in [10, 20, 30] {
            unseen.told(Some(1), Some(1), Some((1, at_ns)));
        }
        unseen.told(Some(2), Some(2), Some((2, 40)));
        assert_eq!(held(&mut unseen, [6, 6, 6]), [0; 3]);
        assert_eq!(held(&mut unseen, [7, 7, 7]), [0, 0, 1], "and nothing else is excused by it");
        let missing = unseen.settle(1, counts(&[(1, 5), (2, 2)]));
        assert_eq!(missing.in_groups, [InGroup { group: 1, kills: 1 }]);
    }

    #[test]
    fn what_was_not_counted_twice_excuses_nothing_later() {
        let mut unseen = unseen(0, &[(1, 0)]);
        unseen.told(Some(1), None, Some((1, 10)));
        assert_eq!(held(&mut unseen, [1, 1, 1]), [0; 3]);
        assert_eq!(held(&mut unseen, [2, 2, 2]), [0, 0, 1]);
    }

    #[test]
    fn the_owner_is_whose_own_limit_was_hit_since() {
        let of = |kills, ooms| Counts { kills, ooms: Some(ooms) };
        let mut unseen = unseen(0, &[]);
        unseen.groups = BTreeMap::from([(1, of(0, 4)), (2, of(0, 0)), (3, of(0, 1))]);
        unseen.told(Some(3), Some(3), None);
        let now = BTreeMap::from([(1, of(0, 5)), (2, of(1, 0)), (3, of(1, 2))]);
        let missing = unseen.settle(1, now);
        assert_eq!((missing.in_groups.len(), missing.elsewhere, missing.owners), (1, 0, vec![1]));
    }

    #[test]
    fn groups_that_are_gone_are_forgotten() {
        let mut unseen = unseen(0, &[(1, 0)]);
        for group in 0..100 {
            unseen.told(Some(group), None, Some((group, 10)));
        }
        unseen.forget_others(|group| group == 1);
        assert_eq!((unseen.groups.len(), unseen.twice_in.len()), (1, 1));
        assert_eq!(unseen.groups[&1].kills, 1);
    }

    #[test]
    fn counts_are_those_of_the_group_itself() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
        write("memory.events.local", "low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\noom_group_kill 0\n");
        let read = |version| Counts::read(folder.path(), version);
        assert_eq!(read(Version::V1), Some(Counts { kills: 3, ooms: None }));
        assert_eq!(read(Version::V2), Some(Counts { kills: 1, ooms: Some(2) }));
        write("memory.oom_control", "oom_kill_disable 0\n");
        assert_eq!(read(Version::V1), None);
    }
}
