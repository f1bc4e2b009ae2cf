//! The memory.stat of a group, held against those of the groups below it.
//!
//! Once the kernel has stopped counting a group's updates upwards (see [`super::working_set`]), and
//! the group is read and changes no more, nothing makes the text of the group above come up to date
//! but the kernel's own flush each 2 s: not even its being read. A pod whose container has grown and
//! stands still now may say for so long that it holds next to nothing. What does not stand still is
//! the page counters: what a group uses beyond the groups below it is its own, or left over from
//! removed ones. So of its figures not more than that can be beyond the sum of theirs, nor can the
//! sum be greater than the figure; both as near as those below stand still since they were read.
#![forbid(unsafe_code)]

use super::files::MemoryStat;
use super::meter::Meter;
use super::meters::Groups;
use super::sample::GroupSample;
use eviction_core::reading::Reading;

/// Levels that are gone down. A runtime makes one or two below a container; a tenant may nest as
/// deep as it likes, and what is below stands for itself.
const DEEPEST: u32 = 8;

/// What was read so shortly before is of the same look.
const LOOK_NS: u64 = 20_000_000;

/// What is known of a group's figures after that.
#[derive(Clone, Copy, Debug)]
struct StatState {
    stat: MemoryStat,
    /// By how many bytes it may be off: groups below moved by so much since they were read.
    slack: u64,
}

impl Groups {
    /// The last figures of a group, held against those of the groups below it.
    pub(super) fn sample(&self, index: usize) -> GroupSample {
        self.meters[index].sample(self.held_against_parts(index, DEEPEST).stat)
    }

    /// Holds the first text of a watched group against the groups below, which were read with it.
    pub(super) fn hold_first_text(&mut self, index: usize) {
        let meter = &self.meters[index];
        let (id, says) = (meter.id, meter.stat.inactive_file.known());
        let off = says.zip(self.held_against_parts(index, DEEPEST).stat.inactive_file.known());
        let off = off.map_or(0, |(says, is)| is.cast_signed().saturating_sub(says.cast_signed()));
        if let Some(level) = self.levels.iter_mut().find(|level| level.id == id) {
            level.note_off(off);
        }
    }

    fn held_against_parts(&self, index: usize, levels: u32) -> StatState {
        let meter = &self.meters[index];
        if levels == 0 || self.tree.is_leaf(index) {
            return StatState { stat: meter.stat, slack: 0 };
        }
        let mut sum = ChildrenSum::NONE;
        for part in self.tree.children(index) {
            let part_meter = &self.meters[part];
            // What it held is among what is left over.
            if !part_meter.gone {
                sum.add(meter, part_meter, self.held_against_parts(part, levels - 1));
            }
        }
        StatState { stat: sum.bound(meter), slack: sum.slack }
    }
}

/// What the groups right below one have together; nothing where that is not known.
struct ChildrenSum {
    usage: Option<u64>,
    anon: Option<u64>,
    file: Option<u64>,
    shmem: Option<u64>,
    inactive_file: Option<u64>,
    active_file: Option<u64>,
    slack: u64,
}

impl ChildrenSum {
    const NONE: Self = Self {
        usage: Some(0),
        anon: Some(0),
        file: Some(0),
        shmem: Some(0),
        inactive_file: Some(0),
        active_file: Some(0),
        slack: 0,
    };

    /// Adds a part of the `whole`. What is older than what the whole says counts as far as the part has not
    /// moved since it was read; where reclaim keeps its usage at a limit, that is not known. Page cache that
    /// becomes active moves nothing, so of the lists no more than a look is believed for.
    fn add(&mut self, whole: &Meter, part: &Meter, held: StatState) {
        let StatState { stat, slack } = held;
        let as_new = part.stat_round >= whole.stat_round;
        let add = |sum: &mut Option<u64>, figure: Reading<u64>, counts: bool| {
            *sum = sum.zip(figure.known().filter(|_| counts)).map(|(sum, figure)| sum.saturating_add(figure));
        };
        let counts = as_new || !part.full;
        let list_counts =
            as_new || (!part.full && whole.stat_at_ns.saturating_sub(part.stat_at_ns) <= LOOK_NS);
        let moved = if as_new { 0 } else { part.moved };
        add(&mut self.usage, part.usage, true);
        add(&mut self.anon, stat.anon, counts);
        add(&mut self.file, stat.file, counts);
        add(&mut self.shmem, stat.shmem, counts);
        add(&mut self.inactive_file, stat.inactive_file, list_counts);
        add(&mut self.active_file, stat.active_file, list_counts);
        self.slack = self.slack.saturating_add(slack).saturating_add(moved);
    }

    /// What the whole says, within what can be.
    fn bound(&self, whole: &Meter) -> MemoryStat {
        let own = self.usage.zip(whole.usage.known()).map(|(parts, all)| all.saturating_sub(parts));
        let bound = |figure: Reading<u64>, sum: Option<u64>| {
            figure.map(|figure| match sum.zip(own) {
                Some((sum, own)) => figure.clamp(
                    sum.saturating_sub(self.slack),
                    sum.saturating_add(self.slack).saturating_add(own),
                ),
                None => figure,
            })
        };
        let MemoryStat { anon, file, shmem, inactive_file, active_file } = whole.stat;
        MemoryStat {
            anon: bound(anon, self.anon),
            file: bound(file, self.file),
            shmem: bound(shmem, self.shmem),
            inactive_file: bound(inactive_file, self.inactive_file),
            active_file: bound(active_file, self.active_file),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use proptest::prelude::*;

    use super::super::files::Version;
    use super::super::meters::Sweep;
    use super::super::tree::Tree;
    use super::*;
    use crate::clock::mono_ns;

    fn write(folder: &Path, usage: u64, anon: u64, inactive_file: u64) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("memory.usage_in_bytes"), format!("{usage}\n")).unwrap();
        let stat = format!("total_rss {anon}\ntotal_inactive_file {inactive_file}\n");
        fs::write(folder.join("memory.stat"), stat).unwrap();
    }

    struct Pod {
        folder: tempfile::TempDir,
    }

    impl Pod {
        fn new() -> Self {
            Self { folder: tempfile::tempdir().unwrap() }
        }

        fn at(&self, path: &str) -> PathBuf {
            self.folder.path().join(path)
        }

        fn groups(&self) -> Groups {
            let mut groups = Groups::new(Version::V1, 100, Tree::scan(self.folder.path(), None).unwrap());
            groups.read_usages(Sweep::All, &[]);
            groups
        }

        /// What is anonymous, inactive page cache, and the working set, everything read now.
        fn figures(&self) -> [Option<u64>; 3] {
            let mut groups = self.groups();
            groups.read_with_all_below(0);
            figures(&groups)
        }
    }

    fn figures(groups: &Groups) -> [Option<u64>; 3] {
        let GroupSample { stat, working_set, .. } = groups.sample(0);
        [stat.anon, stat.inactive_file, working_set].map(Reading::known)
    }

    #[test]
    fn what_the_containers_hold_the_pod_holds() {
        let pod = Pod::new();
        write(&pod.at(""), 210, 2, 90);
        write(&pod.at("main"), 200, 200, 0);
        write(&pod.at("pause"), 10, 1, 5);
        assert_eq!(pod.figures(), [Some(201), Some(5), Some(205)]);
        // What was given back it holds no more.
        write(&pod.at(""), 15, 200, 0);
        write(&pod.at("main"), 5, 0, 5);
        assert_eq!(pod.figures(), [Some(1), Some(10), Some(5)]);
    }

    #[test]
    fn what_is_its_own_or_left_over_counts_as_far_as_it_is_in_use() {
        let pod = Pod::new();
        write(&pod.at(""), 150, 100, 40);
        write(&pod.at("main"), 100, 90, 10);
        assert_eq!(pod.figures(), [Some(100), Some(40), Some(110)]);
        write(&pod.at(""), 105, 100, 40);
        assert_eq!(pod.figures(), [Some(95), Some(15), Some(90)]);
    }

    #[test]
    fn groups_below_containers_count_for_them() {
        let pod = Pod::new();
        write(&pod.at(""), 200, 0, 0);
        write(&pod.at("main"), 200, 0, 0);
        write(&pod.at("main/init.scope"), 200, 150, 50);
        assert_eq!(pod.figures(), [Some(150), Some(50), Some(150)]);
        // However deep.
        let deep = format!("main/init.scope{}", "/x".repeat(40));
        let mut folder = pod.at("main/init.scope");
        for name in deep.split('/').skip(2) {
            folder.push(name);
            write(&folder, 200, 150, 50);
        }
        assert_eq!(pod.figures(), [Some(150), Some(50), Some(150)]);
    }

    #[test]
    fn what_is_older_or_not_known_says_nothing() {
        let pod = Pod::new();
        write(&pod.at(""), 200, 20, 0);
        write(&pod.at("main"), 200, 100, 0);
        let mut groups = pod.groups();
        groups.read_with_all_below(0);
        assert_eq!(figures(&groups)[0], Some(100));
        let read_alone = |groups: &mut Groups| {
            groups.begin_round();
            groups.read_stat(0, mono_ns());
            figures(groups)[0]
        };
        assert_eq!(read_alone(&mut groups), Some(100), "the container has not moved");
        write(&pod.at("main"), 170, 100, 0);
        groups.read_usages(Sweep::All, &[]);
        assert_eq!(read_alone(&mut groups), Some(70), "it may have given back as much since");
        groups.meters[1].full = true;
        assert_eq!(read_alone(&mut groups), Some(20), "nothing shows in usage at a limit");
        groups.read_stat(1, mono_ns());
        assert_eq!(figures(&groups)[0], Some(100));
        fs::write(pod.at("main/memory.usage_in_bytes"), "?\n").unwrap();
        assert_eq!(pod.figures()[0], Some(20));
        write(&pod.at("main"), 200, 100, 0);
        fs::write(pod.at("main/memory.stat"), "total_rss 1\ntotal_rss 1\ntotal_inactive_file 70\n").unwrap();
        assert_eq!(pod.figures(), [Some(20), Some(70), Some(130)], "each figure stands for itself");
    }

    #[test]
    fn of_many_groups_those_that_stand_still_hold_what_they_held() {
        let pod = Pod::new();
        write(&pod.at(""), 300, 2, 20);
        write(&pod.at("main"), 210, 210, 0);
        for n in 0..20 {
            write(&pod.at(&format!("nested/{n}")), 2, 1, 1);
        }
        write(&pod.at("nested"), 60, 40, 20);
        let mut groups = pod.groups();
        groups.read_with_all_below(0);
        assert!(!groups.has_few_below(0));
        assert_eq!(figures(&groups), [Some(250), Some(20), Some(280)]);
        assert!(groups.read_again(0, mono_ns()));
        assert_eq!(figures(&groups), [Some(250), Some(20), Some(280)], "nobody below has moved");
    }

    #[test]
    fn a_container_that_is_gone_is_left_over() {
        let pod = Pod::new();
        write(&pod.at(""), 200, 0, 60);
        write(&pod.at("main"), 100, 90, 10);
        write(&pod.at("gone"), 100, 0, 50);
        let mut groups = pod.groups();
        groups.read_with_all_below(0);
        let gone = groups.tree.groups().iter().position(|group| &*group.name == "gone").unwrap();
        groups.meters[gone].gone = true;
        assert_eq!(figures(&groups), [Some(90), Some(60), Some(140)]);
    }

    proptest! {
        #[test]
        fn a_text_that_can_be_is_left_as_it_is(
            own in (0..1_u64 << 40, 0..1_u64 << 30, 0..1_u64 << 30),
            parts in proptest::collection::vec((0..1_u64 << 40, 0..1_u64 << 30, 0..1_u64 << 30), 0..4),
        ) {
            let pod = Pod::new();
            let sum = parts.iter().fold((0_u64, 0_u64, 0_u64), |sum, part| (sum.0 + part.0, sum.1 + part.1, sum.2 + part.2));
            let (usage, anon, inactive_file) = (own.0 + (1_u64 << 31) + sum.0, own.1 + sum.1, own.2 + sum.2);
            write(&pod.at(""), usage, anon, inactive_file);
            for (n, (usage, anon, inactive_file)) in parts.iter().enumerate() {
                write(&pod.at(&n.to_string()), *usage, *anon, *inactive_file);
            }
            prop_assert_eq!(pod.figures(), [Some(anon), Some(inactive_file), Some(usage.saturating_sub(inactive_file))]);
        }
    }
}
