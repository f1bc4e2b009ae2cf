//! The kernel's counters of OOM kills, for kernels on which no BPF program reports them.
//!
//! The machine's counter (`oom_kill` of /proc/vmstat) shows that there were kills, those of the cgroups show
//! where. The remainder was in a removed cgroup, or outside of the node.

use std::collections::BTreeMap;
use std::path::Path;

use eviction_core::reading::{Reading, UnknownReason};
use eviction_node::cgroup::files::{MemoryEvents, Version, parse_memory_events, parse_oom_control};
use eviction_node::cgroup::tree::Tree;
use eviction_node::file::read_once;
use eviction_node::proc::vmstat::OomKillCounter;

/// The time from a notice that a cgroup is out of memory to the read of the counters: the notice comes before
/// the kill.
const READ_DELAY_NS: u64 = 100_000_000;

/// The counters of the machine and of each cgroup at one time.
#[derive(Debug)]
struct AllCounts {
    /// `None` while /proc/vmstat cannot be read.
    machine: Option<u64>,
    /// By the ids of the cgroups.
    groups: BTreeMap<u64, MemoryEvents>,
}

/// Kills since the counters were last read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NewOomKills {
    /// The number of kills in each cgroup that exists, by the id of the cgroup.
    pub(crate) groups: Vec<(u64, u64)>,
    /// Kills in removed cgroups, or outside of the node.
    pub(crate) elsewhere: u64,
    /// The cgroups whose own limit was hit meanwhile, if the kernel counts that.
    pub(crate) limited: Vec<u64>,
}

/// Reads the counters and returns new kills.
#[derive(Debug)]
pub(crate) struct OomCounters {
    /// The kills on the machine since it booted.
    pub(crate) vmstat: OomKillCounter,
    version: Version,
    /// `None` while a BPF program reports kills.
    last: Option<AllCounts>,
    /// When the counters are to be read next, and when after the latest notice.
    due_ns: Option<(u64, u64)>,
}

impl OomCounters {
    /// Creates the counters. Kills that were counted until now are not new.
    pub(crate) fn new(proc: &Path, version: Version, tree: &Tree) -> Self {
        let vmstat = OomKillCounter::open(proc);
        let mut counters = Self { vmstat, version, last: None, due_ns: None };
        counters.read(tree, 0);
        counters
    }

    /// Returns the file in which the kernel counts the kills of a cgroup.
    pub(crate) fn group_file(&self) -> &'static str {
        match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        }
    }

    /// Forgets the counters, as long as a BPF program reports kills.
    pub(crate) fn reset(&mut self) {
        (self.last, self.due_ns) = (None, None);
    }

    /// Handles a notice of the kernel that a cgroup is out of memory.
    pub(crate) fn schedule_read(&mut self, now_ns: u64) {
        let latest_ns = now_ns.saturating_add(READ_DELAY_NS);
        // Further notices do not postpone the first read: they may come without a pause.
        let first_ns = self.due_ns.map_or(latest_ns, |(first_ns, _)| first_ns);
        self.due_ns = Some((first_ns, latest_ns));
    }

    /// Makes a read due at once. The one after the latest notice remains due.
    pub(crate) fn request_read(&mut self) {
        let latest_ns = self.due_ns.map_or(0, |(_, latest_ns)| latest_ns);
        // At any time, also one from before this call, this is due and not in the future.
        self.due_ns = Some((0, latest_ns));
    }

    /// Returns in how many nanoseconds the counters are to be read next. What is due now does not count.
    pub(crate) fn due_in_ns(&self, now_ns: u64) -> Option<u64> {
        let (first_ns, latest_ns) = self.due_ns?;
        let left = [first_ns, latest_ns].map(|due_ns| due_ns.saturating_sub(now_ns));
        left.into_iter().find(|left| *left > 0)
    }

    /// Reads the counters if they are due, and returns the new kills. Files of cgroups are read only if the
    /// machine's counter has changed.
    pub(crate) fn read(&mut self, tree: &Tree, now_ns: u64) -> Option<NewOomKills> {
        let is_due = self.due_ns.is_some_and(|(first_ns, _)| first_ns <= now_ns);
        if self.last.is_some() && !is_due {
            return None;
        }
        let latest_ns = self.due_ns.map(|(_, latest_ns)| latest_ns).filter(|latest_ns| *latest_ns > now_ns);
        self.due_ns = latest_ns.map(|latest_ns| (latest_ns, latest_ns));
        let machine = self.vmstat.read().known();
        if machine.is_some() && self.last.as_ref().is_some_and(|last| last.machine == machine) {
            return None;
        }
        let now = AllCounts { machine, groups: read_groups(tree, self.version).collect() };
        let kills = self.last.as_ref().map(|last| new_kills(last, &now));
        self.last = Some(now);
        kills
    }
}

/// Returns the new kills. The machine's counter bounds those of the cgroups: kills that a cgroup counted before
/// it was in the tree were reported as elsewhere.
fn new_kills(before: &AllCounts, now: &AllCounts) -> NewOomKills {
    let machine = before.machine.zip(now.machine).map(|(before, now)| now.saturating_sub(before));
    let mut left = machine.unwrap_or(u64::MAX);
    let mut found = NewOomKills::default();
    for (&group, now) in &now.groups {
        let none = MemoryEvents { oom: Reading::Known(0), oom_kill: Reading::Known(0) };
        let before = before.groups.get(&group).copied().unwrap_or(none);
        let more =
            |before: Reading<u64>, now: Reading<u64>| Some(now.known()?.saturating_sub(before.known()?));
        let kills = more(before.oom_kill, now.oom_kill).unwrap_or(0).min(left);
        if kills > 0 {
            left -= kills;
            found.groups.push((group, kills));
        }
        if more(before.oom, now.oom).is_some_and(|more| more > 0) {
            found.limited.push(group);
        }
    }
    found.elsewhere = machine.map_or(0, |_| left);
    found
}

/// Reads the counters of each cgroup whose kills the kernel counts.
fn read_groups(tree: &Tree, version: Version) -> impl Iterator<Item = (u64, MemoryEvents)> {
    tree.groups().iter().enumerate().filter_map(move |(index, group)| {
        let folder = tree.root().join(tree.relative_path(index));
        Some((group.id, read_group(&folder, version)?))
    })
}

/// Reads the counters of the cgroup itself, without its descendants.
fn read_group(folder: &Path, version: Version) -> Option<MemoryEvents> {
    let events = match version {
        Version::V1 => {
            let text = read_once(&folder.join("memory.oom_control"), 4096).ok()?;
            let oom_kill = parse_oom_control(&text);
            MemoryEvents { oom: Reading::Unknown(UnknownReason::Absent), oom_kill }
        }
        Version::V2 => parse_memory_events(&read_once(&folder.join("memory.events.local"), 4096).ok()?),
    };
    events.oom_kill.known().map(|_| events)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(machine: Option<u64>, groups: &[(u64, u64, u64)]) -> AllCounts {
        let events =
            |oom, oom_kill| MemoryEvents { oom: Reading::Known(oom), oom_kill: Reading::Known(oom_kill) };
        let groups = groups.iter().map(|&(id, kills, ooms)| (id, events(ooms, kills)));
        AllCounts { machine, groups: groups.collect() }
    }

    #[test]
    fn new_kills_are_found_by_changed_counters() {
        let before = counts(Some(5), &[(1, 4, 0), (2, 1, 1), (3, 0, 0)]);
        assert_eq!(new_kills(&before, &before), NewOomKills::default());
        let now = counts(Some(10), &[(1, 6, 0), (2, 1, 2), (4, 1, 0)]);
        let expected = NewOomKills { groups: vec![(1, 2), (4, 1)], elsewhere: 2, limited: vec![2] };
        assert_eq!(new_kills(&before, &now), expected);
        let one = counts(Some(6), &[(1, 4, 0), (2, 1, 1), (4, 2, 0)]);
        assert_eq!(new_kills(&before, &one).groups, [(4, 1)], "one was reported before");
        let unknown = AllCounts { machine: None, ..now };
        assert_eq!(new_kills(&before, &unknown), NewOomKills { elsewhere: 0, ..expected });
    }

    #[test]
    fn counters_are_read_when_due_and_forgotten_by_a_reset() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let kill = |kills: u64| {
            write("vmstat", &format!("oom_kill {kills}\n"));
            write("memory.oom_control", &format!("oom_kill {kills}\n"));
        };
        kill(3);
        let tree = Tree::scan(folder.path()).unwrap();
        let mut counters = OomCounters::new(folder.path(), Version::V1, &tree);
        kill(4);
        assert_eq!(counters.read(&tree, 0), None, "no read was requested");
        counters.schedule_read(5);
        assert_eq!(counters.due_in_ns(5), Some(READ_DELAY_NS));
        assert_eq!(counters.read(&tree, 5), None, "the kernel may not have killed yet");
        counters.schedule_read(9);
        let groups = vec![(tree.groups()[0].id, 1)];
        let expected = NewOomKills { groups, ..NewOomKills::default() };
        assert_eq!(counters.read(&tree, 5 + READ_DELAY_NS).as_ref(), Some(&expected));
        assert_eq!(counters.due_in_ns(5 + READ_DELAY_NS), Some(4), "the second notice");
        counters.request_read();
        assert_eq!(counters.due_in_ns(5 + READ_DELAY_NS), Some(4), "the request sets no timer");
        assert_eq!(counters.read(&tree, 6 + READ_DELAY_NS), None, "nothing is new");
        kill(5);
        assert_eq!(counters.read(&tree, 9 + READ_DELAY_NS), Some(expected), "still due after the request");
        counters.reset();
        kill(9);
        assert_eq!(counters.read(&tree, 7), None, "a program has reported those");
        assert_eq!(counters.due_in_ns(7), None);
    }

    #[test]
    fn counters_are_those_of_the_cgroup_itself() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
        write("memory.events.local", "low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\noom_group_kill 0\n");
        let read = |version| {
            let events = read_group(folder.path(), version)?;
            Some((events.oom_kill.known()?, events.oom.known()))
        };
        assert_eq!(read(Version::V1), Some((3, None)));
        assert_eq!(read(Version::V2), Some((1, Some(2))));
        write("memory.oom_control", "oom_kill_disable 0\n");
        assert_eq!(read(Version::V1), None);
    }
}
