//! The memory of one cgroup as it was read last, and what follows for it from the cgroups below.
#![forbid(unsafe_code)]

use super::files::{Limit, MemoryStat};
use super::sample::{GroupSample, working_set_of};
use crate::file::{KeptFile, is_gone};
use eviction_core::reading::{Reading, UnknownReason};

/// The last values of a cgroup.
///
/// Its usage is exact. Its `memory.stat` can be up to 2 s old while a cgroup below it grows: the kernel
/// (`memcg_rstat_updated` in mm/memcontrol.c, from 6.8) stops counting a cgroup's updates upwards once
/// that cgroup is due for a flush, and flushes an ancestor on a read only when the ancestor's own count
/// says so. So `stat` of a cgroup with others below it is the sum of theirs, which were read before it,
/// and of what was its own or left over from removed cgroups when its own text changed last.
#[derive(Debug)]
pub(super) struct CgroupMemory {
    pub(super) id: u64,
    pub(super) usage: Reading<u64>,
    pub(super) usage_at_ns: u64,
    /// What it has of each.
    pub(super) stat: MemoryStat,
    /// What its memory.stat said last.
    pub(super) text: MemoryStat,
    /// When that was read; 0 for never.
    pub(super) stat_at_ns: u64,
    /// What the text has beyond the cgroups below, in the order of [`MemoryStat::values`].
    own: [i64; 3],
    /// What the text says of each is something else than when `own` was worked out. A text can be new
    /// about one and, as it was read while the kernel wrote it, old about another.
    is_new: [bool; 3],
    /// How many cgroups below were counted then.
    counted: usize,
    /// The limit at which the kernel kills.
    pub(super) hard: Limit,
    /// The one at which it makes tasks reclaim, on version 2.
    pub(super) high: Limit,
    /// Bytes by which its usage went up and down since its memory.stat was read.
    pub(super) moved: u64,
    /// Its usage or that of a cgroup above it has reached a limit: then usage says nothing of what moved.
    pub(super) full: bool,
    /// The usage as of the last sweep. What is read between sweeps says nothing of the cgroups below,
    /// which are not read then.
    swept: Option<u64>,
    /// There is nothing to read: it was removed, or has no such files.
    pub(super) gone: bool,
    /// The latter: the root of version 2, and every cgroup to which the controller was not given.
    pub(super) bare: bool,
    /// Its memory.stat is to be read.
    pub(super) marked: bool,
    pub(super) usage_file: Option<KeptFile>,
    pub(super) stat_file: Option<KeptFile>,
}

impl CgroupMemory {
    /// A cgroup of which nothing was read so far.
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
            hard: Limit::Unlimited,
            high: Limit::Unlimited,
            moved: 0,
            full: false,
            swept: None,
            gone: false,
            bare: false,
            marked: false,
            usage_file: None,
            stat_file: None,
        }
    }

    /// The lowest limit that is set on it.
    pub(super) fn limit(&self) -> Limit {
        self.hard.min(self.high)
    }

    /// Whether usage has come so near the limit that reclaim keeps it there.
    pub(super) fn is_at_limit(&self) -> bool {
        const LEAST_SLACK: u64 = 2 << 20;
        match (self.limit(), self.usage.known()) {
            (Limit::At(limit), Some(usage)) => limit.saturating_sub(usage) <= LEAST_SLACK.max(limit / 32),
            _ => false,
        }
    }

    /// Whether it was removed.
    pub(super) fn is_removed(&self) -> bool {
        self.gone && !self.bare
    }

    /// Whether its memory.stat can say something else than when it was read last.
    pub(super) fn has_changed(&self) -> bool {
        self.moved > 0 || self.full
    }

    fn note_failure(&mut self, why: UnknownReason) {
        self.bare |= why == UnknownReason::Absent;
        self.gone |= self.bare || is_gone(why);
    }

    /// Takes note of a usage that was read.
    pub(super) fn take_usage(&mut self, usage: Result<u64, UnknownReason>, at_ns: u64) {
        if let Err(why) = usage {
            self.note_failure(why);
        }
        (self.usage, self.usage_at_ns) = (usage.into(), at_ns);
    }

    /// Takes note of a memory.stat that was read.
    pub(super) fn take_stat(&mut self, text: Result<MemoryStat, UnknownReason>, at_ns: u64) {
        let text = text.unwrap_or_else(|why| {
            self.note_failure(why);
            MemoryStat::unknown(why)
        });
        for (place, value) in text.values().into_iter().enumerate() {
            self.is_new[place] |= self.text.values()[place] != value;
        }
        (self.text, self.stat_at_ns) = (text, at_ns);
        (self.marked, self.moved) = (false, 0);
    }

    /// Takes note of the usage as that of a sweep. Whether it is what it was at the one before.
    pub(super) fn sweep(&mut self) -> bool {
        let now = self.usage.known();
        let before = std::mem::replace(&mut self.swept, now);
        let moved = now.map_or(0, |now| now.abs_diff(before.unwrap_or(0)));
        self.moved = self.moved.saturating_add(moved);
        now.is_some() && now == before
    }

    /// Works out what it has, from its text and the sum of the cgroups right below it. Where all usages
    /// are of now, its own part is held against them, as they are exact: it is not below zero, nor more
    /// than what it uses beyond those below, and what can have changed there without a charge. That
    /// finds out a text that was old when it was read first, or of a moment between two reads.
    pub(super) fn combine(&mut self, below: &ChildrenSum, are_usages_current: bool) {
        let (is_new, others) = (std::mem::take(&mut self.is_new), self.counted != below.counted);
        self.counted = below.counted;
        if below.counted == 0 {
            self.stat = self.text;
            return;
        }
        let own_usage = self.usage.known().zip(below.usage).map(|(all, below)| all.saturating_sub(below));
        let own_usage = own_usage.filter(|_| are_usages_current);
        let values = std::array::from_fn(|place| {
            let text = self.text.values()[place];
            let (Reading::Known(says), Some(sum)) = (text, below.values[place]) else { return text };
            let own = &mut self.own[place];
            if is_new[place] || others {
                *own = says.cast_signed().saturating_sub(sum.cast_signed());
            }
            if let Some(usage) = own_usage {
                *own = (*own).clamp(0, usage.saturating_add(below.not_read[place]).cast_signed());
            }
            Reading::Known(sum.saturating_add_signed(*own))
        });
        self.stat = MemoryStat::of(values);
    }

    /// Its last values.
    pub(super) fn sample(&self) -> GroupSample {
        GroupSample {
            cgroup_id: self.id,
            usage: self.usage,
            usage_at_ns: self.usage_at_ns,
            working_set: working_set_of(self.usage, self.stat.inactive_file),
            stat: self.stat,
            stat_at_ns: self.stat_at_ns,
            limit: self.limit(),
            hard_limit: self.hard,
        }
    }
}

/// What the cgroups right below one have together. What one that is gone had is left over in the text
/// of the one above.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChildrenSum {
    counted: usize,
    usage: Option<u64>,
    values: [Option<u64>; 3],
    /// How much more of each there can be in those that were not read in this round.
    not_read: [u64; 3],
    /// When the first of them, and of those below them, was read.
    pub(super) oldest_ns: u64,
}

impl ChildrenSum {
    pub(super) const NONE: Self =
        Self { counted: 0, usage: Some(0), values: [Some(0); 3], not_read: [0; 3], oldest_ns: u64::MAX };

    /// Adds a cgroup, with the sum of those below it.
    pub(super) fn add(&mut self, child: &CgroupMemory, below: &Self, round_ns: u64) {
        if child.gone {
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
        for (place, value) in child.stat.values().into_iter().enumerate() {
            add(&mut self.values[place], value);
            let not_read = match child.stat_at_ns >= round_ns {
                true => below.not_read[place],
                false => usage.saturating_sub(value.known().unwrap_or(0)),
            };
            self.not_read[place] = self.not_read[place].saturating_add(not_read);
        }
    }
}
