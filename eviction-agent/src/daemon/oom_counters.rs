//! The kernel's own counts of OOM kills, for kernels on which no program tells of them.
//!
//! The count of the machine (`oom_kill` of /proc/vmstat) says that there were kills, those of the groups say where.
//! What is left over was in a group that is gone, or outside of the node.

use std::collections::BTreeMap;
use std::path::Path;

use eviction_core::reading::Reading;
use eviction_node::cgroup::files::{Version, parse_memory_events, parse_oom_control};
use eviction_node::cgroup::tree::Tree;
use eviction_node::file::read_once;
use eviction_node::proc::vmstat::OomKillCounter;

/// From a notice that a group is out of memory to the read of the counts: the kernel gives notice before it kills.
const SETTLE_NS: u64 = 100_000_000;

/// What a group's own file of events says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// Processes of it that were killed.
    kills: u64,
    /// How often its own limit was the reason, where that is told.
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

/// The counts of the machine and of each group at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AllCounts {
    /// `None` while /proc/vmstat cannot be read.
    machine: Option<u64>,
    groups: BTreeMap<u64, Counts>,
}

/// Kills in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InGroup {
    /// The group's id.
    pub(crate) group: u64,
    /// How many.
    pub(crate) kills: u64,
}

/// Kills since the counts were read before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CountedKills {
    /// In groups that are there.
    pub(crate) in_groups: Vec<InGroup>,
    /// In groups that are gone, or outside of the node.
    pub(crate) elsewhere: u64,
    /// The groups whose own limit was hit meanwhile, where the kernel tells.
    pub(crate) owners: Vec<u64>,
}

/// Reads the counts and tells what is new.
#[derive(Debug)]
pub(crate) struct OomCounters {
    vmstat: OomKillCounter,
    version: Version,
    /// `None` while a program tells of kills.
    last: Option<AllCounts>,
    due_ns: Option<u64>,
}

impl OomCounters {
    /// What was counted until now is not new.
    pub(crate) fn new(proc: &Path, version: Version, tree: &Tree) -> Self {
        let mut counters = Self { vmstat: OomKillCounter::open(proc), version, last: None, due_ns: None };
        counters.read(tree, 0);
        counters
    }

    /// The file in which the kernel counts the kills of a group.
    pub(crate) fn group_file(&self) -> &'static str {
        match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        }
    }

    /// Kills on the machine since it booted.
    pub(crate) fn read_machine(&mut self) -> Reading<u64> {
        self.vmstat.read()
    }

    /// Forgets the counts, as long as a program tells of kills.
    pub(crate) fn rest(&mut self) {
        (self.last, self.due_ns) = (None, None);
    }

    /// The kernel gave notice that a group is out of memory.
    pub(crate) fn note_notice(&mut self, now_ns: u64) {
        self.due_ns = Some(now_ns.saturating_add(SETTLE_NS));
    }

    /// The counts are to be read at once.
    pub(crate) fn ask(&mut self) {
        self.due_ns = Some(0);
    }

    /// In how many nanoseconds the counts are to be read, if they are.
    pub(crate) fn due_in_ns(&self, now_ns: u64) -> Option<u64> {
        self.due_ns.map(|due_ns| due_ns.saturating_sub(now_ns))
    }

    /// Reads the counts if they are due, and returns the kills that are new. Files of groups are read only if the count
    /// of the machine is another one.
    pub(crate) fn read(&mut self, tree: &Tree, now_ns: u64) -> Option<CountedKills> {
        if self.last.is_some() && self.due_in_ns(now_ns) != Some(0) {
            return None;
        }
        self.due_ns = None;
        let machine = self.vmstat.read().known();
        if machine.is_some() && self.last.as_ref().is_some_and(|last| last.machine == machine) {
            return None;
        }
        let now = AllCounts { machine, groups: read_groups(tree, self.version).collect() };
        let before = self.last.replace(now.clone())?;
        Some(new_kills(&before, &now))
    }
}

/// The count of the machine bounds those of the groups: what a group counted before it was in the tree was told as
/// elsewhere.
fn new_kills(before: &AllCounts, now: &AllCounts) -> CountedKills {
    let machine = before.machine.zip(now.machine).map(|(before, now)| now.saturating_sub(before));
    let mut left = machine.unwrap_or(u64::MAX);
    let mut found = CountedKills::default();
    for (&group, counts) in &now.groups {
        let before = before.groups.get(&group).copied().unwrap_or(Counts { kills: 0, ooms: Some(0) });
        let kills = counts.kills.saturating_sub(before.kills).min(left);
        if kills > 0 {
            left -= kills;
            found.in_groups.push(InGroup { group, kills });
        }
        if before.ooms.zip(counts.ooms).is_some_and(|(before, now)| before < now) {
            found.owners.push(group);
        }
    }
    found.elsewhere = machine.map_or(0, |_| left);
    found
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

    fn counts(machine: Option<u64>, groups: &[(u64, u64, u64)]) -> AllCounts {
        let groups = groups.iter().map(|&(id, kills, ooms)| (id, Counts { kills, ooms: Some(ooms) }));
        AllCounts { machine, groups: groups.collect() }
    }

    #[test]
    fn new_kills_are_where_counts_have_moved() {
        let before = counts(Some(5), &[(1, 4, 0), (2, 1, 1), (3, 0, 0)]);
        assert_eq!(new_kills(&before, &before), CountedKills::default());
        let now = counts(Some(10), &[(1, 6, 0), (2, 1, 2), (4, 1, 0)]);
        let in_groups = vec![InGroup { group: 1, kills: 2 }, InGroup { group: 4, kills: 1 }];
        let expected = CountedKills { in_groups, elsewhere: 2, owners: vec![2] };
        assert_eq!(new_kills(&before, &now), expected);
        let one = counts(Some(6), &[(1, 4, 0), (2, 1, 1), (4, 2, 0)]);
        assert_eq!(
            new_kills(&before, &one).in_groups,
            [InGroup { group: 4, kills: 1 }],
            "one was told before"
        );
        let unknown = AllCounts { machine: None, ..now };
        assert_eq!(new_kills(&before, &unknown), CountedKills { elsewhere: 0, ..expected });
    }

    #[test]
    fn counts_are_read_when_due_and_forgotten_at_rest() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let kill = |kills: u64| {
            write("vmstat", &format!("oom_kill {kills}\n"));
            write("memory.oom_control", &format!("oom_kill {kills}\n"));
        };
        kill(3);
        let tree = Tree::scan(folder.path(), None).unwrap();
        let mut counters = OomCounters::new(folder.path(), Version::V1, &tree);
        kill(4);
        assert_eq!(counters.read(&tree, 0), None, "nobody asked");
        counters.note_notice(5);
        assert_eq!(counters.due_in_ns(5), Some(SETTLE_NS));
        assert_eq!(counters.read(&tree, 5), None, "the kernel may not have killed yet");
        let in_groups = vec![InGroup { group: tree.groups()[0].id, kills: 1 }];
        let expected = CountedKills { in_groups, ..CountedKills::default() };
        assert_eq!(counters.read(&tree, 5 + SETTLE_NS), Some(expected));
        counters.ask();
        assert_eq!(counters.read(&tree, 6), None, "nothing is new");
        counters.rest();
        kill(9);
        assert_eq!(counters.read(&tree, 7), None, "a program has told of those");
        assert_eq!(counters.due_in_ns(7), None);
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
