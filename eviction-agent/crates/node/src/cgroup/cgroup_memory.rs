//! The last memory values of one cgroup, reconciled with those of the cgroups below.
#![forbid(unsafe_code)]

use super::files::MemoryStat;
use crate::file::{OpenFile, is_removed};
use crate::proc::meminfo::working_set_of;
use eviction_core::reading::{Reading, UnknownReason};

/// The last values of a cgroup.
///
/// Its usage is exact. Its `memory.stat` can be up to 2 s old while a cgroup below it grows: the kernel
/// (`memcg_rstat_updated` in mm/memcontrol.c, from 6.8) stops counting a cgroup's updates upwards once that
/// cgroup is due for a flush, and flushes an ancestor on a read only when the ancestor's own count requires it.
/// So `stat` of a cgroup with others below it is the sum of theirs, which were read before it, plus its own
/// part. That part is what its own text had beyond the sum when the text changed last: its own memory, and what
/// removed cgroups left over.
#[derive(Debug)]
pub(super) struct CgroupMemory {
    pub(super) id: u64,
    pub(super) usage: Reading<u64>,
    pub(super) usage_at_ns: u64,
    /// The reconciled values.
    pub(super) stat: MemoryStat,
    /// The values of the last memory.stat that was read.
    pub(super) text: MemoryStat,
    /// When memory.stat was read; 0 for never.
    pub(super) stat_at_ns: u64,
    /// What the text has beyond the cgroups below, in the order of [`MemoryStat::values`].
    own: [i64; 3],
    /// Whether each value of the text changed since `own` was computed. A text can be new in one value and old
    /// in another, if it was read while the kernel wrote it.
    is_new: [bool; 3],
    /// How many cgroups below were counted then.
    counted: usize,
    /// The limit at which the kernel kills, in bytes; `None` if none is set, or it could not be read.
    pub(super) hard: Option<u64>,
    /// The limit at which the kernel makes tasks reclaim, on v2; `None` as above.
    pub(super) high: Option<u64>,
    /// Bytes by which its usage went up and down since its memory.stat was read.
    pub(super) moved: u64,
    /// Whether its usage or that of a cgroup above it has reached a limit. Then usage does not show what moved.
    pub(super) at_limit: bool,
    /// The usage as of the last sweep. Usages that are read between sweeps do not show whether the cgroups
    /// below moved, since those are not read then.
    swept: Option<u64>,
    pub(super) files: Files,
    /// Whether its memory.stat is to be read.
    pub(super) marked: bool,
    pub(super) usage_file: Option<OpenFile>,
    pub(super) stat_file: Option<OpenFile>,
}

/// Whether a cgroup has files of the memory controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Files {
    Present,
    /// It has none: the root of v2, and every cgroup without the controller.
    Absent,
    /// The cgroup was removed.
    Removed,
}

impl CgroupMemory {
    /// Creates a cgroup of which nothing was read so far.
    pub(super) fn new(id: u64) -> Self {
        Self {
            id,
            usage: Reading::Unknown(UnknownReason::Absent),
            usage_at_ns: 0,
            stat: MemoryStat::unknown(UnknownReason::Absent),
            text: MemoryStat::unknown(UnknownReason::Absent),
            stat_at_ns: 0,
            own: [0; 3],
            is_new: [false; 3],
            counted: 0,
            hard: None,
            high: None,
            moved: 0,
            at_limit: false,
            swept: None,
            files: Files::Present,
            marked: false,
            usage_file: None,
            stat_file: None,
        }
    }

    /// Returns the lowest limit that is set on it.
    pub(super) fn limit(&self) -> Option<u64> {
        [self.hard, self.high].into_iter().flatten().min()
    }

    /// Returns whether usage has come so near the limit that reclaim keeps it there.
    pub(super) fn is_at_limit(&self) -> bool {
        const LEAST_SLACK: u64 = 2 << 20;
        match (self.limit(), self.usage.known()) {
            (Some(limit), Some(usage)) => limit.saturating_sub(usage) <= LEAST_SLACK.max(limit / 32),
            _ => false,
        }
    }

    /// Returns whether there are files to read.
    pub(super) fn is_available(&self) -> bool {
        self.files == Files::Present
    }

    /// Returns whether its memory.stat can have changed since it was read last.
    pub(super) fn has_changed(&self) -> bool {
        self.moved > 0 || self.at_limit
    }

    fn record_failure(&mut self, why: UnknownReason) {
        if why == UnknownReason::Absent {
            self.files = Files::Absent;
        } else if self.is_available() && is_removed(why) {
            self.files = Files::Removed;
        }
    }

    /// Records a usage that was read.
    pub(super) fn take_usage(&mut self, usage: Result<u64, UnknownReason>, at_ns: u64) {
        if let Err(why) = usage {
            self.record_failure(why);
        }
        (self.usage, self.usage_at_ns) = (usage.into(), at_ns);
    }

    /// Records a memory.stat that was read.
    pub(super) fn take_stat(&mut self, text: Result<MemoryStat, UnknownReason>, at_ns: u64) {
        let text = text.unwrap_or_else(|why| {
            self.record_failure(why);
            MemoryStat::unknown(why)
        });
        for (index, value) in text.values().into_iter().enumerate() {
            self.is_new[index] |= self.text.values()[index] != value;
        }
        (self.text, self.stat_at_ns) = (text, at_ns);
        (self.marked, self.moved) = (false, 0);
    }

    /// Records the usage as that of a sweep. Returns whether it has not changed since the sweep before.
    pub(super) fn sweep(&mut self) -> bool {
        let now = self.usage.known();
        let before = std::mem::replace(&mut self.swept, now);
        let moved = now.map_or(0, |now| now.abs_diff(before.unwrap_or(0)));
        self.moved = self.moved.saturating_add(moved);
        now.is_some() && now == before
    }

    /// Computes its values from its text and the sum of the cgroups directly below it. If all usages are
    /// current, they limit its own part, as they are exact: the own part is at least zero, and at most its
    /// usage beyond that of the cgroups below plus what can have changed there without a charge. This corrects
    /// a text that was old when it was read first, or that is of a moment between two reads.
    pub(super) fn combine(&mut self, below: &ChildrenSum, are_usages_current: bool) {
        let (is_new, children_changed) = (std::mem::take(&mut self.is_new), self.counted != below.counted);
        self.counted = below.counted;
        if below.counted == 0 {
            self.stat = self.text;
            return;
        }
        let own_usage = self.usage.known().zip(below.usage).map(|(all, below)| all.saturating_sub(below));
        let own_usage = own_usage.filter(|_| are_usages_current);
        let values = std::array::from_fn(|index| {
            let text = self.text.values()[index];
            let (Reading::Known(reported), Some(sum)) = (text, below.values[index]) else { return text };
            let own = &mut self.own[index];
            if is_new[index] || children_changed {
                *own = reported.cast_signed().saturating_sub(sum.cast_signed());
            }
            if let Some(usage) = own_usage {
                *own = (*own).clamp(0, usage.saturating_add(below.not_read[index]).cast_signed());
            }
            Reading::Known(sum.saturating_add_signed(*own))
        });
        self.stat = MemoryStat::of(values);
    }

    /// Returns its last values.
    pub(super) fn sample(&self) -> GroupSample {
        GroupSample {
            cgroup_id: self.id,
            usage: self.usage,
            working_set: working_set_of(self.usage, self.stat.inactive_file),
            stat: self.stat,
            stat_at_ns: self.stat_at_ns,
            limit: self.limit(),
            hard_limit: self.hard,
            tasks: Reading::Unknown(UnknownReason::Absent),
        }
    }
}

/// The last values of one cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSample {
    /// The cgroup id.
    pub cgroup_id: u64,
    /// Bytes in use, page cache included.
    pub usage: Reading<u64>,
    /// Usage less inactive file pages, which may be older than the usage.
    pub working_set: Reading<u64>,
    /// The values of memory.stat.
    pub stat: MemoryStat,
    /// When memory.stat was read; 0 for never.
    pub stat_at_ns: u64,
    /// The lowest limit that is set on this cgroup itself, in bytes. `None` if none is set, or it could not be
    /// read.
    pub limit: Option<u64>,
    /// The limit at which the kernel kills, in bytes: without `memory.high`. `None` as above.
    pub hard_limit: Option<u64>,
    /// Tasks in the cgroup and below (`pids.current`). Counted only for pods, by [`Sampler::count_tasks`].
    ///
    /// [`Sampler::count_tasks`]: super::sampler::Sampler::count_tasks
    pub tasks: Reading<u64>,
}

/// The sum of the cgroups directly below one. What a removed cgroup had is left over in the text of its parent.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChildrenSum {
    counted: usize,
    usage: Option<u64>,
    values: [Option<u64>; 3],
    /// How much more of each value there can be in the cgroups that were not read in this round.
    not_read: [u64; 3],
    /// When the first of them, and of those below them, was read.
    pub(super) oldest_ns: u64,
}

impl ChildrenSum {
    pub(super) const NONE: Self =
        Self { counted: 0, usage: Some(0), values: [Some(0); 3], not_read: [0; 3], oldest_ns: u64::MAX };

    /// Adds a cgroup, with the sum of those below it.
    pub(super) fn add(&mut self, child: &CgroupMemory, below: &Self, round_ns: u64) {
        if !child.is_available() {
            return;
        }
        self.oldest_ns = self.oldest_ns.min(child.stat_at_ns).min(below.oldest_ns);
        if child.stat_at_ns == 0 {
            return;
        }
        let add = |sum: &mut Option<u64>, value: Reading<u64>| {
            *sum = sum.zip(value.known()).map(|(sum, value)| sum.saturating_add(value));
        };
        self.counted += 1;
        add(&mut self.usage, child.usage);
        let usage = child.usage.known().unwrap_or(0);
        for (index, value) in child.stat.values().into_iter().enumerate() {
            add(&mut self.values[index], value);
            let not_read = match child.stat_at_ns >= round_ns {
                true => below.not_read[index],
                false => usage.saturating_sub(value.known().unwrap_or(0)),
            };
            self.not_read[index] = self.not_read[index].saturating_add(not_read);
        }
    }
}
