//! The memory of all cgroups of a tree, read from the bottom to the top.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::cgroup_memory::{CgroupMemory, ChildrenSum, Files};
use super::files::{Version, parse_limit, parse_memory_stat};
use super::tree::Tree;
use crate::clock::mono_ns;
use crate::file::{OpenFile, is_removed, parse_number_line};
use eviction_core::reading::UnknownReason;

/// The size of the buffer for `memory.stat`, in bytes. The text has 1.5 to 2 KB on kernels up to 7.2.
const STAT_BUFFER: usize = 32 << 10;

/// Longer than any number with its line feed.
const NUMBER_BUFFER: usize = 32;

/// The amount, in bytes, by which a cgroup counts as moved that a BPF program has seen charging: more than any
/// amount that is computed from usages.
const CHARGED_BYTES: u64 = 1 << 50;

/// For this time, in nanoseconds, a memory.stat counts as current while usage does not change.
const MAX_STAT_AGE_NS: u64 = 2_000_000_000;

/// The most cgroups below one that are read for one sample of it: those that can have changed most. A read that
/// flushes takes 7 to 13 µs; the others are read in a later sample.
const MAX_CHANGED: usize = 12;

/// In a pod with more cgroups than this, only those are read that can have changed.
const SMALL_SUBTREE: usize = 64;

/// A tree of cgroups with the memory of each, in the same order.
#[derive(Debug)]
pub(super) struct MemoryTree {
    pub(super) tree: Tree,
    pub(super) memory: Vec<CgroupMemory>,
    /// Whether a cgroup was found to be removed since the tree was read.
    pub(super) stale: bool,
    /// When usages were read last, as far down as something had moved.
    pub(super) swept_ns: u64,
    version: Version,
    /// How many files may be kept open. Those of the cgroups beyond are opened for each read.
    pub(super) max_descriptors: usize,
    by_id: Vec<(u64, usize)>,
    /// Which part of the cgroups the last full sample read.
    turn: usize,
    path: PathBuf,
    buffer: Box<[u8]>,
    sums: Vec<ChildrenSum>,
    moved: Vec<u64>,
    chosen: Vec<(u64, usize)>,
}

impl MemoryTree {
    pub(super) fn new(version: Version, max_descriptors: usize, tree: Tree) -> Self {
        let mut groups = Self {
            tree: tree.clone(),
            memory: Vec::new(),
            stale: false,
            swept_ns: 0,
            version,
            max_descriptors,
            by_id: Vec::new(),
            turn: 0,
            path: PathBuf::new(),
            buffer: vec![0; STAT_BUFFER].into(),
            sums: Vec::new(),
            moved: Vec::new(),
            chosen: Vec::new(),
        };
        groups.adopt(tree);
        groups
    }

    /// Takes over a newer tree. Values and descriptors of cgroups that stay are kept.
    pub(super) fn adopt(&mut self, tree: Tree) {
        let count = tree.groups().len();
        let mut before: HashMap<u64, CgroupMemory> =
            self.memory.drain(..).map(|memory| (memory.id, memory)).collect();
        self.tree = tree;
        for index in 0..count {
            let id = self.tree.groups()[index].id;
            // After a cgroup was removed, another one may get its id.
            let known = before.remove(&id).filter(CgroupMemory::is_available);
            let is_new = known.is_none();
            let mut memory = known.unwrap_or_else(|| CgroupMemory::new(id));
            if !self.may_keep_open(index) {
                (memory.usage_file, memory.stat_file) = (None, None);
            }
            self.memory.push(memory);
            if is_new {
                self.read_limit(index);
                // Opens its file, so that a sample does not need the allocator for a path.
                self.read_usage(index, mono_ns());
            }
        }
        self.stale = false;
        self.by_id.clear();
        self.by_id.extend(self.memory.iter().enumerate().map(|(index, memory)| (memory.id, index)));
        self.by_id.sort_unstable();
        self.sums.resize(count, ChildrenSum::NONE);
        self.moved.resize(count, 0);
        self.chosen.reserve(count);
    }

    pub(super) fn index(&self, cgroup_id: u64) -> Option<usize> {
        let at = self.by_id.binary_search_by_key(&cgroup_id, |(id, _)| *id).ok()?;
        Some(self.by_id[at].1)
    }

    /// Returns whether the two files of a cgroup may be kept open.
    fn may_keep_open(&self, index: usize) -> bool {
        2 * index + 2 <= self.max_descriptors
    }

    /// Returns one past the last cgroup below `index`.
    fn end(&self, index: usize) -> usize {
        self.tree.groups().get(index).map_or(index, |group| group.end)
    }

    /// Returns whether all cgroups below one are read for a sample of it.
    pub(super) fn has_few_below(&self, index: usize) -> bool {
        self.end(index) - index <= SMALL_SUBTREE
    }

    fn read_usage(&mut self, index: usize, at_ns: u64) {
        let may_keep = self.may_keep_open(index);
        let Some(memory) = self.memory.get_mut(index) else { return };
        let name = match self.version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        };
        let mut number = [0; NUMBER_BUFFER];
        if memory.usage_file.is_none() {
            self.tree.write_path(index, &mut self.path);
        }
        let text = read(&mut memory.usage_file, may_keep, &mut self.path, name, &mut number);
        memory.take_usage(text.and_then(parse_number_line), at_ns);
        self.stale |= memory.files == Files::Removed;
    }

    /// Reads the memory.stat of a cgroup, which makes the kernel bring it up to date, and its usage.
    fn read(&mut self, index: usize) {
        let may_keep = self.may_keep_open(index);
        let Some(memory) = self.memory.get_mut(index) else { return };
        let at_ns = mono_ns();
        if memory.stat_file.is_none() {
            self.tree.write_path(index, &mut self.path);
        }
        let text = read(&mut memory.stat_file, may_keep, &mut self.path, "memory.stat", &mut self.buffer);
        memory.take_stat(text.map(|text| parse_memory_stat(self.version, text)), at_ns);
        self.read_usage(index, at_ns);
    }

    /// Reads the limits of a cgroup. One that cannot be read counts as unlimited.
    pub(super) fn read_limit(&mut self, index: usize) {
        self.tree.write_path(index, &mut self.path);
        let mut limit = |name| {
            let text = read(&mut None, false, &mut self.path, name, &mut self.buffer);
            text.and_then(parse_limit).ok().flatten()
        };
        let (hard, high) = match self.version {
            Version::V1 => (limit("memory.limit_in_bytes"), None),
            Version::V2 => (limit("memory.max"), limit("memory.high")),
        };
        let memory = &mut self.memory[index];
        (memory.hard, memory.high) = (hard, high);
    }

    /// Reads usages and records what moved, with the `charged` cgroups (by id) as having moved most. Skips the
    /// cgroups below one whose usage shows that nothing moved there. A cgroup's charges are its ancestors' too,
    /// in the same batches: if its usage has not changed by a byte since the last sweep, and no limit keeps it
    /// there, nothing below it has moved. Opposite moves of the same size between two sweeps are the exception;
    /// the next full sample finds those.
    pub(super) fn sweep_moved(&mut self, charged: &[u64]) {
        self.sweep(false);
        for id in charged {
            if let Some(index) = self.index(*id) {
                let memory = &mut self.memory[index];
                memory.moved = memory.moved.saturating_add(CHARGED_BYTES);
            }
        }
    }

    fn sweep(&mut self, all: bool) {
        self.swept_ns = mono_ns();
        let mut index = 0;
        while index < self.memory.len() {
            if self.memory[index].is_available() {
                self.read_usage(index, self.swept_ns);
            }
            let parent = self.tree.groups()[index].parent;
            let parent_at_limit = parent.is_some_and(|parent| self.memory[parent].at_limit);
            let memory = &mut self.memory[index];
            memory.at_limit = parent_at_limit || memory.is_at_limit();
            let is_unchanged = memory.sweep() && !memory.at_limit;
            index = if is_unchanged && !all { self.end(index) } else { index + 1 };
        }
    }

    /// Reads all usages, then the memory.stat of cgroups that can have changed and of those above them. Of the
    /// others it reads memory.stat and the limits of one in `turns`: so changes without a charge (pages that
    /// become active) and new limits, for which there is no notification, are found after as many samples.
    pub(super) fn read_in_turn(&mut self, turns: usize) {
        let turns = turns.max(1);
        self.turn = (self.turn + 1) % turns;
        // Cgroups without files may have been given the controller since.
        for memory in &mut self.memory {
            if memory.files == Files::Absent {
                memory.files = Files::Present;
            }
        }
        self.sweep(true);
        for index in 0..self.memory.len() {
            let is_in_turn = index % turns == self.turn;
            if is_in_turn {
                self.read_limit(index);
            }
            self.memory[index].marked |= is_in_turn || self.memory[index].stat_at_ns == 0;
            if self.memory[index].has_changed() {
                self.mark_ancestors(index, 0);
            }
        }
        self.read_marked(0, self.memory.len(), true);
    }

    /// Marks a cgroup and those above it up to and including `top`.
    fn mark_ancestors(&mut self, index: usize, top: usize) {
        let mut at = Some(index);
        while let Some(index) = at.filter(|index| *index >= top) {
            self.memory[index].marked = true;
            at = self.tree.groups()[index].parent;
        }
    }

    /// Reads the marked cgroups in this range, those below before those above, and computes the values of each.
    /// `is_swept` means that all usages are those of a sweep just before.
    fn read_marked(&mut self, from: usize, to: usize, is_swept: bool) {
        let round_ns = mono_ns();
        self.sums[from..to].fill(ChildrenSum::NONE);
        for index in (from..to).rev() {
            if self.memory[index].marked && self.memory[index].is_available() {
                self.read(index);
            }
            let (memory, below) = (&mut self.memory[index], self.sums[index]);
            memory.combine(&below, is_swept || below.oldest_ns >= round_ns);
            if let Some(parent) = self.tree.groups()[index].parent.filter(|parent| *parent >= from) {
                self.sums[parent].add(memory, &below, round_ns);
            }
        }
    }

    /// Samples a cgroup after [`Self::sweep_moved`]: first reads those below it that can have changed most, or
    /// all of them for the first sample.
    pub(super) fn read_level(&mut self, target: usize) {
        let (first, end) = (target + 1, self.end(target));
        if self.memory[target].stat_at_ns == 0 {
            self.memory[first..end].iter_mut().for_each(|memory| memory.marked = true);
        } else {
            self.moved[target..end].fill(0);
            self.chosen.clear();
            for index in (first..end).rev() {
                let memory = &self.memory[index];
                if !memory.is_available() {
                    continue;
                }
                // The part that the cgroups below do not explain is its own.
                let own = memory.moved.saturating_sub(self.moved[index]);
                let cache = memory.stat.inactive_file.known().unwrap_or(u64::MAX);
                let cache = if memory.at_limit && self.tree.is_leaf(index) { cache } else { 0 };
                if own.max(cache) > 0 {
                    self.chosen.push((own.max(cache), index));
                }
                let parent = self.tree.groups()[index].parent.unwrap_or(target);
                self.moved[parent] = self.moved[parent].saturating_add(memory.moved);
            }
            keep_greatest(&mut self.chosen, MAX_CHANGED);
            for at in 0..self.chosen.len() {
                self.mark_ancestors(self.chosen[at].1, first);
            }
        }
        self.memory[target].marked = true;
        self.read_marked(target, end, true);
    }

    /// Reads a cgroup now, after those below it; if those are many, only those that can have changed.
    pub(super) fn read_subtree(&mut self, index: usize) {
        let (end, few) = (self.end(index), self.has_few_below(index));
        for memory in &mut self.memory[index..end] {
            memory.marked |= few || memory.has_changed();
        }
        self.memory[index].marked = true;
        self.read_marked(index, end, false);
    }

    /// Reads a cgroup now, after those below it, unless that was done since `since_ns`. Returns whether it was
    /// done now.
    pub(super) fn read_again(&mut self, index: usize, since_ns: u64) -> bool {
        let end = if self.has_few_below(index) { self.end(index) } else { index + 1 };
        let is_due = |memory: &CgroupMemory| {
            memory.is_available() && memory.stat_at_ns.min(memory.usage_at_ns) < since_ns
        };
        let must_read = self.memory[index].is_available() && self.memory[index..end].iter().any(is_due);
        if must_read {
            self.read_subtree(index);
        }
        must_read
    }

    /// Reads the pods that can have changed since they were read, or that were read too long ago, with all
    /// cgroups below them. Pods that were read since `since_ns` are skipped. Those that use most memory are
    /// read first, up to `most` cgroups.
    pub(super) fn read_changed(&mut self, pods: impl Iterator<Item = u64>, most: usize, since_ns: u64) {
        let now_ns = mono_ns();
        let is_due = |memory: &CgroupMemory| {
            let is_old = now_ns.saturating_sub(memory.stat_at_ns) > MAX_STAT_AGE_NS;
            memory.is_available() && memory.stat_at_ns < since_ns && (memory.has_changed() || is_old)
        };
        self.chosen.clear();
        for id in pods {
            let Some(index) = self.index(id) else { continue };
            if self.memory[index..self.end(index)].iter().any(is_due) {
                self.chosen.push((self.memory[index].usage.known().unwrap_or(0), index));
            }
        }
        self.chosen.sort_unstable_by(|a, b| b.cmp(a));
        let mut remaining = most;
        for at in 0..self.chosen.len() {
            if remaining == 0 {
                break;
            }
            let index = self.chosen[at].1;
            remaining = remaining.saturating_sub(self.end(index) - index);
            self.read_subtree(index);
        }
    }
}

/// Keeps the `most` greatest elements.
fn keep_greatest(chosen: &mut Vec<(u64, usize)>, most: usize) {
    if chosen.len() > most {
        chosen.select_nth_unstable_by(most, |a, b| b.cmp(a));
        chosen.truncate(most);
    }
}

/// Reads a file of the cgroup in `path`. Uses the open descriptor if there is one, without `path`; a new one is
/// kept if `may_keep`. `path` is left as it was.
fn read<'b>(
    file: &mut Option<OpenFile>,
    may_keep: bool,
    path: &mut PathBuf,
    name: &str,
    buffer: &'b mut [u8],
) -> Result<&'b [u8], UnknownReason> {
    if let Some(file) = file {
        return file.read(buffer);
    }
    path.push(name);
    let opened = OpenFile::open(path);
    let folder_is_there = || path.parent().is_some_and(Path::is_dir);
    // A cgroup that exists may have no such file.
    let opened = opened.map_err(|why| match is_removed(why) && folder_is_there() {
        true => UnknownReason::Absent,
        false => why,
    });
    path.pop();
    let opened = opened?;
    let text = opened.read(buffer);
    *file = Some(opened).filter(|_| may_keep);
    text
}
