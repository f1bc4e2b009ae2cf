//! A working set that is not stale.
//!
//! The working set of a group is its usage less its inactive file pages. Usage is exact, but
//! the `memory.stat` of an ancestor can stand still for up to 2 s while a group below it
//! grows: the kernel (`memcg_rstat_updated` in mm/memcontrol.c, from 6.8) stops counting a
//! group's updates upwards once the group itself is due for a flush, and flushes an ancestor
//! on a read only when the ancestor's own count says so. Two things are done about it.
//!
//! **Leaf first.** Reading a group flushes it and lets it count upwards again. So before the
//! figures of an ancestor are taken, those of the groups below it are read in which something
//! moved, from the bottom to the top; then the ancestor's next read is right.
//!
//! **The difference.** While the ancestor's text is still the one of an earlier read, it is as
//! old as the first read that showed it, and then everything below it was flushed with it
//! (`css_rstat_flush` takes in the whole subtree). What the groups below have gained or lost
//! since, by their own figures then and now, is added.
//!
//! **The first text** may be as old as 2 s, and nothing tells. So everything below is read with it once,
//! and it is held against that ([`super::stat_reconcile`]).
#![forbid(unsafe_code)]

use super::files::Limit;
use super::meter::Meter;
use super::meters::Groups;
use super::sample::LevelSample;
use crate::clock::mono_ns;

/// Groups whose usage moved that are read for one sample: those that moved most. A read that
/// flushes takes 7 to 13 µs. What is left over adds up and has its turn in a later sample.
const MOVED: usize = 8;

/// Groups at a limit that are read for one sample: those with most page cache to lose. Where
/// the limit is reached usage stands still while anonymous memory takes the place of cache.
const FULL: usize = 3;

/// Samples the group `target`, after [`Groups::read_usages`].
pub(super) fn sample(groups: &mut Groups, target: usize) -> LevelSample {
    let is_first = groups.watch(target);
    let left_out = match is_first {
        true => mark_all(groups, target),
        false => mark(groups, target),
    };
    let stat_reads = groups.read_marked(target + 1, groups.end(target)) + 1;
    let at_ns = mono_ns();
    groups.read_stat(target, at_ns);
    groups.read_usage(target, at_ns);
    if is_first {
        groups.hold_first_text(target);
    }
    let difference = groups.difference(target);
    let meter = &groups.meters[target];
    let inactive_file = meter.stat.inactive_file.map(|bytes| bytes.saturating_add_signed(difference));
    LevelSample { stat_reads, left_out, difference, ..LevelSample::new(at_ns, meter.usage, inactive_file) }
}

/// Marks all groups below `target`; nothing is left out.
fn mark_all(groups: &mut Groups, target: usize) -> u64 {
    let end = groups.end(target);
    groups.meters[target + 1..end].iter_mut().for_each(|meter| meter.marked = true);
    0
}

/// Marks the groups below `target` whose memory.stat is to be read before that of `target`,
/// with the groups between; returns the bytes that moved in groups left out.
fn mark(groups: &mut Groups, target: usize) -> u64 {
    let end = groups.end(target);
    let (tree, meters) = (&groups.tree, &mut groups.meters);
    let mut moved = TopN::<MOVED>::new();
    let mut cache = TopN::<FULL>::new();
    let (mut first, mut next) = (None, None);
    let mut left_out = 0_u64;
    for (index, meter) in meters.iter().enumerate().take(end).skip(target + 1) {
        if meter.gone {
            continue;
        }
        left_out = left_out.saturating_add(meter.moved);
        moved.offer(meter.moved, index);
        if meter.full && tree.is_leaf(index) {
            // Of a group that nobody has read yet anything may be cache.
            cache.offer(meter.stat.inactive_file.known().unwrap_or(u64::MAX), index);
            first = first.or(Some(index));
            next = next.or(Some(index).filter(|index| *index > groups.turn));
        }
    }
    let in_turn = next.or(first);
    groups.turn = in_turn.unwrap_or(0);
    for chosen in moved.chosen().chain(cache.chosen()).chain(in_turn) {
        let mut at = Some(chosen);
        while let Some(index) = at.filter(|index| *index != target) {
            let meter = &mut meters[index];
            if !meter.marked {
                meter.marked = true;
                left_out = left_out.saturating_sub(meter.moved);
            }
            at = tree.groups()[index].parent;
        }
    }
    left_out
}

/// A group whose memory.stat is watched for standing still.
#[derive(Debug)]
pub(super) struct GuardedCgroup {
    /// Its cgroup id.
    pub(super) id: u64,
    /// Which text its memory.stat had when it was read last.
    text: Option<u64>,
    /// By how much its inactive file pages were more than that text says when it was seen first, as far as
    /// the groups below can tell.
    off: i64,
    /// The inactive file pages of each group below it as of when it was first seen to have
    /// that text; nothing where that is not known, and for groups above others.
    then: Vec<Option<u64>>,
}

impl GuardedCgroup {
    pub(super) fn new(id: u64, groups: usize) -> Self {
        Self { id, text: None, off: 0, then: vec![None; groups] }
    }

    /// The same level after the tree was replaced: `was` tells where a group was before.
    pub(super) fn moved(self, was: impl Iterator<Item = Option<usize>>) -> Self {
        let then = was.map(|was| self.then.get(was?).copied().flatten()).collect();
        Self { then, ..self }
    }

    /// Its memory.stat was read and has this text; `below` are the groups below it.
    pub(super) fn note(
        &mut self,
        text: u64,
        below: impl Iterator<Item = (usize, bool)>,
        meters: &[Meter],
        now_ns: u64,
    ) {
        /// Figures that were read so shortly before are of the same moment.
        const MOMENT_NS: u64 = 200_000;
        if self.text == Some(text) {
            return;
        }
        self.text = Some(text);
        self.off = 0;
        for (index, is_leaf) in below {
            let meter = &meters[index];
            // Older figures still hold if nothing can have changed since.
            let holds = now_ns.saturating_sub(meter.stat_at_ns) <= MOMENT_NS
                || (meter.moved == 0 && meter.change == 0 && !meter.full);
            self.then[index] = meter.stat.inactive_file.known().filter(|_| is_leaf && holds && !meter.gone);
        }
    }

    /// What its present text, which is its first, was wrong by.
    pub(super) fn note_off(&mut self, off: i64) {
        self.off = off;
    }

    /// What the groups below have gained since the memory.stat got its present text, and what was wrong
    /// with that.
    pub(super) fn difference(&self, meters: &[Meter]) -> i64 {
        let gained = meters.iter().enumerate().filter_map(|(index, meter)| self.gained(index, meter));
        gained.fold(self.off, i64::saturating_add)
    }

    /// What one group has gained since then; nothing where that is not known.
    fn gained(&self, index: usize, meter: &Meter) -> Option<i64> {
        let then = self.then.get(index).copied().flatten().filter(|_| !meter.gone)?;
        Some(meter.stat.inactive_file.known()?.cast_signed().saturating_sub(then.cast_signed()))
    }
}

/// Whether usage has come so near the limit that reclaim keeps it there.
pub(super) fn at_limit(meter: &Meter) -> bool {
    const LEAST_SLACK: u64 = 2 << 20;
    match (meter.limit(), meter.usage.known()) {
        (Limit::At(limit), Some(usage)) => limit.saturating_sub(usage) <= LEAST_SLACK.max(limit / 32),
        _ => false,
    }
}

/// The greatest of what it is offered, and where they are.
struct TopN<const N: usize> {
    kept: [(u64, usize); N],
}

impl<const N: usize> TopN<N> {
    fn new() -> Self {
        Self { kept: [(0, 0); N] }
    }

    /// Takes the place of the least that is kept, if it is greater; zero is never kept.
    fn offer(&mut self, size: u64, index: usize) {
        if self.kept.last().is_some_and(|(least, _)| size > *least) {
            let at = self.kept.partition_point(|(kept, _)| *kept >= size);
            self.kept[at..].rotate_right(1);
            self.kept[at] = (size, index);
        }
    }

    fn chosen(&self) -> impl Iterator<Item = usize> {
        self.kept.iter().filter(|(size, _)| *size > 0).map(|(_, index)| *index)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use proptest::prelude::*;

    use super::super::files::Version;
    use super::super::meters::Sweep;
    use super::super::tree::Tree;
    use super::*;

    const MIB: u64 = 1 << 20;

    fn write_group(folder: &Path, usage: u64, inactive_file: u64) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("memory.usage_in_bytes"), format!("{usage}\n")).unwrap();
        fs::write(folder.join("memory.stat"), format!("total_inactive_file {inactive_file}\n")).unwrap();
    }

    fn look(groups: &mut Groups) -> Option<u64> {
        groups.read_usages(Sweep::Moved, &[]);
        sample(groups, 0).working_set.known()
    }

    #[test]
    fn a_first_text_that_is_old_is_found_out() {
        let folder = tempfile::tempdir().unwrap();
        let leaf = folder.path().join("leaf");
        write_group(folder.path(), 600 * MIB, 100 * MIB);
        write_group(&leaf, 600 * MIB, 500 * MIB);
        let mut groups = Groups::new(Version::V1, 100, Tree::scan(folder.path(), None).unwrap());
        assert_eq!([look(&mut groups), look(&mut groups)], [Some(100 * MIB); 2]);
        // What came between two reads of a round is not taken for a figure of the later one.
        assert!(groups.meters[1].stat_at_ns < groups.meters[0].stat_at_ns);
        write_group(&leaf, 599 * MIB, 400 * MIB);
        write_group(folder.path(), 599 * MIB, 100 * MIB);
        assert_eq!(look(&mut groups), Some(199 * MIB), "the text still stands");
        write_group(folder.path(), 599 * MIB, 401 * MIB);
        assert_eq!(look(&mut groups), Some(198 * MIB), "a new one stands for itself");
    }

    #[test]
    fn what_is_read_between_sweeps_hides_no_growth_below() {
        let folder = tempfile::tempdir().unwrap();
        let (pod, main) = (folder.path().join("pod"), folder.path().join("pod/main"));
        let write = |usage| [folder.path(), &pod, &main].map(|group| write_group(group, usage, 0));
        write(100 * MIB);
        let mut groups = Groups::new(Version::V1, 100, Tree::scan(folder.path(), None).unwrap());
        groups.read_usages(Sweep::Moved, &[]);
        let below = |groups: &Groups| [1, 2].map(|index| groups.meters[index].usage.known());
        // As it ends with every sample of an ancestor: its own usage is read last.
        write(600 * MIB);
        groups.read_usage(0, mono_ns());
        groups.read_usages(Sweep::Moved, &[]);
        assert_eq!(below(&groups), [Some(600 * MIB); 2]);
        write(700 * MIB);
        let since_ns = mono_ns();
        groups.read_with_all_below(0);
        assert_eq!(below(&groups), [Some(700 * MIB); 2], "usage is of the moment of memory.stat");
        assert!(!groups.read_again(1, since_ns), "both were read");
        assert!(groups.read_again(1, mono_ns()));
    }

    proptest! {
        #[test]
        fn top_keeps_the_greatest(sizes in proptest::collection::vec(0..50_u64, 0..40)) {
            let mut top = TopN::<4>::new();
            for (index, size) in sizes.iter().enumerate() {
                top.offer(*size, index);
            }
            let kept: Vec<u64> = top.chosen().map(|index| sizes[index]).collect();
            let mut expected: Vec<u64> = sizes.into_iter().filter(|size| *size > 0).collect();
            expected.sort_unstable_by(|a, b| b.cmp(a));
            expected.truncate(4);
            prop_assert_eq!(kept, expected);
        }
    }
}
