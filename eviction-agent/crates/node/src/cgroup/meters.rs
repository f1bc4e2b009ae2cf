//! The meters of all groups of a tree.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::path::PathBuf;

use super::files::Version;
use super::meter::{Meter, Reader};
use super::sample::Changes;
use super::tree::Tree;
use super::working_set::{GuardedCgroup, at_limit};
use crate::clock::mono_ns;

/// How much a group is taken to have moved that the kernel side saw charging: more than any
/// that it did not see.
const DIRTY: u64 = 1 << 50;

/// So long a memory.stat is taken for what it was while usage stands still.
const KEEPS_NS: u64 = 2_000_000_000;

/// Which usages are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sweep {
    /// All but those of groups below which nothing can have moved. A group's charges are its
    /// ancestors' too, in the same batches: where the usage of a group has not changed by a
    /// byte since the last sweep, and no limit holds it there, nothing below it has moved, but
    /// for opposite moves of the same size between two sweeps; the next full sample finds those.
    Moved,
    /// All.
    All,
}

/// A tree of groups with a meter for each, in the same order.
#[derive(Debug)]
pub(super) struct Groups {
    pub(super) tree: Tree,
    pub(super) meters: Vec<Meter>,
    /// The group at a limit whose turn to be read it was last.
    pub(super) turn: usize,
    /// Whose turn it was in the last sample in turns.
    sample: usize,
    /// The same for limits.
    limits_turn: usize,
    /// Whether a group was found to be gone since the tree was read.
    pub(super) stale: bool,
    /// When usages were read last, as far down as something had moved.
    pub(super) swept_ns: u64,
    /// Of reads of memory.stat, each from the bottom to the top.
    round: u64,
    reader: Reader,
    by_id: Vec<(u64, usize)>,
    pub(super) levels: Vec<GuardedCgroup>,
    path: PathBuf,
    below: Vec<i64>,
    changed: Vec<(u64, usize)>,
}

impl Groups {
    pub(super) fn new(version: Version, descriptors: usize, tree: Tree) -> Self {
        let mut groups = Self {
            tree: tree.clone(),
            meters: Vec::new(),
            turn: 0,
            sample: 0,
            limits_turn: 0,
            levels: Vec::new(),
            stale: false,
            swept_ns: 0,
            round: 0,
            reader: Reader::new(version, descriptors),
            by_id: Vec::new(),
            path: PathBuf::new(),
            below: Vec::new(),
            changed: Vec::new(),
        };
        groups.adopt(tree);
        groups
    }

    /// Takes over a newer tree; figures and descriptors of groups that stay are kept.
    pub(super) fn adopt(&mut self, tree: Tree) -> Changes {
        let mut changes = Changes { skipped: tree.skipped(), ..Changes::default() };
        let mut before: HashMap<u64, Meter> = self.meters.drain(..).map(|meter| (meter.id, meter)).collect();
        let kept: Vec<Option<Meter>> = tree.groups().iter().map(|group| before.remove(&group.id)).collect();
        // Descriptors of groups that are gone are given back before new ones are opened.
        for (_, meter) in before {
            changes.removed += 1;
            self.reader.close(meter);
        }
        for (index, meter) in kept.into_iter().enumerate() {
            let meter = match meter {
                Some(meter) if !meter.gone => meter,
                // Another group with the id of one that is gone.
                gone_or_none => {
                    changes.removed += usize::from(gone_or_none.is_some());
                    changes.added += 1;
                    gone_or_none.into_iter().for_each(|meter| self.reader.close(meter));
                    tree.write_path(index, &mut self.path);
                    self.reader.open(tree.groups()[index].id, &mut self.path)
                }
            };
            self.meters.push(meter);
        }
        let was = std::mem::take(&mut self.by_id);
        let was_at = |id: u64| Some(was[was.binary_search_by_key(&id, |(id, _)| *id).ok()?].1);
        let levels =
            self.levels.drain(..).filter(|level| tree.groups().iter().any(|group| group.id == level.id));
        self.levels =
            levels.map(|level| level.moved(tree.groups().iter().map(|group| was_at(group.id)))).collect();
        self.by_id = tree.groups().iter().enumerate().map(|(index, group)| (group.id, index)).collect();
        self.by_id.sort_unstable();
        self.below = vec![0; tree.groups().len()];
        self.changed.reserve(tree.groups().len());
        self.tree = tree;
        self.stale = false;
        changes
    }

    pub(super) fn index(&self, cgroup_id: u64) -> Option<usize> {
        let at = self.by_id.binary_search_by_key(&cgroup_id, |(id, _)| *id).ok()?;
        Some(self.by_id[at].1)
    }

    /// One past the last group below `index`.
    pub(super) fn end(&self, index: usize) -> usize {
        self.tree.groups().get(index).map_or(index, |group| group.end)
    }

    /// Takes note of which groups are those of pods: these and all below them.
    pub(super) fn note_pods(&mut self, cgroup_ids: impl Iterator<Item = u64>) {
        self.meters.iter_mut().for_each(|meter| meter.of_pod = false);
        for id in cgroup_ids {
            let Some(index) = self.index(id) else { continue };
            let end = self.end(index);
            self.meters[index..end].iter_mut().for_each(|meter| meter.of_pod = true);
        }
    }

    pub(super) fn read_usage(&mut self, index: usize, at_ns: u64) {
        let Some(meter) = self.meters.get_mut(index) else { return };
        self.reader.read_usage(meter, at_ns, &mut self.path, |path| self.tree.write_path(index, path));
        self.stale |= meter.is_removed();
    }

    /// Those that had no files may have been given the controller since.
    pub(super) fn try_bare_ones(&mut self) {
        for index in 0..self.meters.len() {
            let meter = &mut self.meters[index];
            if std::mem::take(&mut meter.bare) {
                meter.gone = false;
                self.read_usage(index, mono_ns());
            }
        }
    }

    /// Begins a round of reads of memory.stat: what was read before is older.
    pub(super) fn begin_round(&mut self) {
        self.round += 1;
    }

    pub(super) fn read_stat(&mut self, index: usize, at_ns: u64) {
        let Some(meter) = self.meters.get_mut(index) else { return };
        meter.stat_round = self.round;
        self.reader.read_stat(meter, at_ns, &mut self.path, |path| self.tree.write_path(index, path));
        self.stale |= meter.is_removed();
        let id = meter.id;
        if let Some(level) = self.levels.iter_mut().find(|level| level.id == id) {
            let below =
                (index + 1..self.tree.groups()[index].end).map(|below| (below, self.tree.is_leaf(below)));
            level.note(self.reader.last_stat_text(), below, &self.meters, at_ns);
        }
    }

    pub(super) fn read_limit(&mut self, index: usize) {
        let Some(meter) = self.meters.get_mut(index) else { return };
        self.tree.write_path(index, &mut self.path);
        (meter.hard, meter.high) = self.reader.read_limits(&mut self.path);
    }

    /// Reads the limits of some of the groups, of all after a dozen calls: they change seldom, and
    /// nobody is told.
    pub(super) fn read_limits_in_turn(&mut self) {
        const TURNS: usize = 12;
        self.limits_turn = (self.limits_turn + 1) % TURNS;
        for index in (self.limits_turn..self.meters.len()).step_by(TURNS) {
            self.read_limit(index);
        }
    }

    /// Whether all groups below one can be read for its sake: a pod with as many containers takes
    /// some 0.2 ms.
    pub(super) fn has_few_below(&self, index: usize) -> bool {
        const FEW: usize = 16;
        self.end(index) - index <= FEW
    }

    /// Reads a group now, after all that are below it: for groups that have few of them.
    pub(super) fn read_with_all_below(&mut self, index: usize) {
        self.begin_round();
        for at in (index..self.end(index)).rev() {
            if at == index || !self.meters[at].gone {
                let at_ns = mono_ns();
                self.read_stat(at, at_ns);
                self.read_usage(at, at_ns);
            }
        }
    }

    /// Watches the memory.stat of a group for standing still. Whether that is new.
    pub(super) fn watch(&mut self, index: usize) -> bool {
        let id = self.meters[index].id;
        let is_new = !self.levels.iter().any(|level| level.id == id);
        if is_new {
            self.levels.push(GuardedCgroup::new(id, self.meters.len()));
        }
        is_new
    }

    /// What the groups below a watched group have gained since its memory.stat was up to date.
    pub(super) fn difference(&self, index: usize) -> i64 {
        let id = self.meters[index].id;
        self.levels.iter().find(|level| level.id == id).map_or(0, |level| level.difference(&self.meters))
    }

    /// Begins a sample: reads usages and notes what moved, `dirty` groups (by cgroup id) as
    /// having moved most.
    pub(super) fn read_usages(&mut self, sweep: Sweep, dirty: &[u64]) {
        let at_ns = mono_ns();
        self.swept_ns = at_ns;
        for meter in &mut self.meters {
            meter.change = 0;
        }
        let mut index = 0;
        while index < self.meters.len() {
            if !self.meters[index].gone {
                self.read_usage(index, at_ns);
            }
            let above = self.tree.groups()[index].parent.is_some_and(|parent| self.meters[parent].full);
            let meter = &mut self.meters[index];
            meter.full = above || at_limit(meter);
            let still = meter.sweep() && !meter.full;
            index = match sweep {
                Sweep::Moved if still => self.end(index),
                Sweep::Moved | Sweep::All => index + 1,
            };
        }
        self.explain_changes();
        for id in dirty {
            if let Some(index) = self.index(*id) {
                let meter = &mut self.meters[index];
                meter.moved = meter.moved.saturating_add(DIRTY);
            }
        }
    }

    /// What the groups below do not explain of a change is the group's own.
    fn explain_changes(&mut self) {
        self.below.fill(0);
        for index in (0..self.meters.len()).rev() {
            let meter = &mut self.meters[index];
            let own = meter.change.saturating_sub(self.below[index]).unsigned_abs();
            meter.moved = meter.moved.saturating_add(own);
            let change = meter.change;
            if let Some(parent) = self.tree.groups()[index].parent {
                self.below[parent] = self.below[parent].saturating_add(change);
            }
        }
    }

    /// Marks the groups of pods whose memory.stat can say something else than when it was read last,
    /// or was read too long ago, but before `since_ns`; of more than `most` those that use most.
    pub(super) fn mark_changed(&mut self, most: usize, since_ns: u64) {
        let now = mono_ns();
        self.changed.clear();
        for (index, meter) in self.meters.iter().enumerate() {
            let is_old = now.saturating_sub(meter.stat_at_ns) > KEEPS_NS;
            let is_due = meter.of_pod && !meter.gone && meter.stat_at_ns < since_ns;
            if is_due && (meter.moved > 0 || meter.full || is_old) {
                self.changed.push((meter.usage.known().unwrap_or(0), index));
            }
        }
        if self.changed.len() > most {
            self.changed.select_nth_unstable_by(most, |a, b| b.cmp(a));
            self.changed.truncate(most);
        }
        for &(_, index) in &self.changed {
            self.meters[index].marked = true;
        }
    }

    /// Marks the groups in which something moved, those above them, and the others whose turn it is.
    pub(super) fn mark_in_turn(&mut self, turns: usize) {
        let turns = turns.max(1);
        self.sample = (self.sample + 1) % turns;
        for index in 0..self.meters.len() {
            let meter = &mut self.meters[index];
            meter.marked |= index % turns == self.sample || meter.stat_at_ns == 0;
            let mut stirred = (meter.moved > 0 || meter.full).then_some(index);
            while let Some(at) = stirred {
                self.meters[at].marked = true;
                stirred = self.tree.groups()[at].parent;
            }
        }
    }

    /// Reads usage and memory.stat of a group, after those below it (of many, those in which something
    /// moved), unless that was done since `since_ns`. Whether it was done now.
    pub(super) fn read_again(&mut self, index: usize, since_ns: u64) -> bool {
        let is_due = |meter: &Meter| !meter.gone && meter.stat_at_ns.min(meter.usage_at_ns) < since_ns;
        let (end, few) = (self.end(index), self.has_few_below(index));
        let asked = if few { index..end } else { index..index + 1 };
        if self.meters[index].gone || !self.meters[asked].iter().any(is_due) {
            return false;
        }
        if few {
            self.read_with_all_below(index);
            return true;
        }
        for meter in &mut self.meters[index + 1..end] {
            meter.marked = is_due(meter) && (meter.moved > 0 || meter.full);
        }
        self.read_marked(index + 1, end);
        let at_ns = mono_ns();
        self.read_usage(index, at_ns);
        self.read_stat(index, at_ns);
        true
    }

    /// Begins a round, and reads memory.stat of marked groups in it, those below before those above.
    pub(super) fn read_marked(&mut self, from: usize, to: usize) -> usize {
        self.begin_round();
        let mut reads = 0;
        for index in (from..to).rev() {
            if self.meters[index].marked && !self.meters[index].gone {
                self.read_stat(index, mono_ns());
                reads += 1;
            }
        }
        reads
    }
}
