//! Figures of all memory cgroups at a glance: usage, limit and inactive page cache in one pass of the
//! BPF iterator over cgroups (from 6.1), some 0.5 µs a cgroup (thrice that where
//! nothing of it is in the processor's caches). It remembers where they were, so that as long as no
//! cgroup comes or goes they are read again without it, in a fraction of the time, and without a lock.
//!
//! Usage is the page counter's own. The inactive page cache is the size of each memory cgroup's
//! list, which the kernel keeps exactly, summed up over the tree here: unlike memory.stat it has
//! nothing to flush and does not stand still (`mem_cgroup_update_lru_size` in mm/memcontrol.c).
//! Cgroups that were removed may hold page cache that only memory.stat knows of; the program says
//! how many there are below a cgroup.
//!
//! For the iterator the kernel walks under `cgroup_mutex`, which whoever makes a cgroup holds as well, perhaps while
//! the kernel looks for free memory. So this is not for a thread that must not wait.

mod again;
mod link;
mod rows;
mod setup;

use std::error::Error;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use aya::maps::Map;
use aya::programs::{Iter, ProgramError};
use aya::{Btf, Ebpf};
use eviction_common::Usage;

pub use setup::UsageFacts;
pub(super) use setup::{read_nodes, resolve};

use again::{Again, Said};
use link::{create_iter, create_link};
use rows::Rows;

use super::brief::brief;
use super::load::LoadOptions;
use super::probe::Facts;
use crate::source::file::retry;
use crate::source::info::SourceInfo;

/// What it is called in logs, metrics, `check` and options.
pub const NAME: &str = "iter cgroup";

/// What is used without it.
pub const WITHOUT: &str = "kept descriptors";

/// The figures of a cgroup at one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupUsage {
    /// Its id.
    pub id: u64,
    /// Bytes in use, those of cgroups below included.
    pub usage: u64,
    /// The limit, bytes; `None` without one.
    pub limit: Option<u64>,
    /// How often a charge met the limit; newer kernels count it on cgroup v1 alone.
    pub failures: u64,
    /// Bytes of inactive page cache, those of cgroups below included; `None` where the kernel does
    /// not tell, or where removed cgroups below may hold more.
    pub inactive_file: Option<u64>,
    /// When it was read: nanoseconds of CLOCK_MONOTONIC.
    pub at_ns: u64,
}

/// What came of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Cgroups for which there was no room: the figures are not complete.
    pub left_out: u64,
    /// Whether the kernel's tree was walked for it.
    pub walked: bool,
}

/// The iterator, made for one cgroup and all below it. Dropping it takes it out of the kernel.
#[derive(Debug)]
pub struct Usages {
    link: OwnedFd,
    /// Or why the tree is walked each time.
    again: Result<Again, String>,
    rows: Rows,
    walk: Option<Walk>,
    page_bytes: u64,
    below: Vec<Below>,
}

/// What the last walk through the kernel's tree left behind.
#[derive(Clone, Copy, Debug)]
struct Walk {
    /// Its number: rows that have another are not of it.
    session: u64,
    /// How many rows there are.
    rows: usize,
    left_out: u64,
}

/// What the cgroups of one level have in sum.
#[derive(Clone, Copy, Debug, Default)]
struct Below {
    inactive_file: u64,
    unknown: bool,
}

impl Usages {
    /// The figures of all cgroups as of now; they are in `out` then (which is cleared), in the order of the tree. The
    /// kernel's tree is walked only if it is another than it was the last time.
    ///
    /// # Errors
    /// Those of [`Self::walk`].
    pub fn read(&mut self, out: &mut Vec<GroupUsage>) -> io::Result<Looked> {
        let (Ok(again), Some(walk)) = (&self.again, self.walk) else { return self.walk(out) };
        match again.read(walk.rows, walk.session) {
            Ok(Said::Done) => {
                out.clear();
                self.tell(walk, out);
                Ok(Looked { left_out: walk.left_out, walked: false })
            }
            // What it cannot now it may another time.
            Ok(Said::Changed | Said::Unable) | Err(_) => self.walk(out),
        }
    }

    /// The same by a walk through the kernel's tree, whatever is known of it.
    ///
    /// # Errors
    /// What the kernel says, for instance that the cgroup is gone.
    pub fn walk(&mut self, out: &mut Vec<GroupUsage>) -> io::Result<Looked> {
        out.clear();
        self.walk = None;
        let pass = create_iter(self.link.as_fd())?;
        // The program writes nothing into the iterator's output, so that one call does it all.
        let mut nothing = [0_u8; 64];
        while retry(|| rustix::io::read(&pass, &mut nothing))? > 0 {}
        let end = self.rows.get(0).unwrap_or(Usage::EMPTY);
        let seen = self.rows.get(1).map_or(end.session, |first| first.session);
        if seen != end.session {
            return Err(io::Error::other("the iterator did not come to its end"));
        }
        let room = self.rows.len().saturating_sub(1);
        let rows = usize::try_from(end.id).unwrap_or(usize::MAX);
        let kept = rows.min(room);
        self.rows.reach(kept + 1)?;
        let left_out = (rows - kept) as u64;
        let walk = Walk { session: end.session, rows: kept, left_out };
        self.walk = Some(walk);
        self.tell(walk, out);
        Ok(Looked { left_out, walked: true })
    }

    /// Finds out whether the second program works here.
    fn prove(&mut self) {
        let (Ok(again), Some(walk)) = (&self.again, self.walk) else { return };
        match again.read(walk.rows, walk.session) {
            Ok(Said::Done | Said::Changed) => {}
            Ok(Said::Unable) => self.again = Err("this kernel is not as its BTF says".to_owned()),
            Err(error) => self.again = Err(error.to_string()),
        }
    }

    /// Hands on what is in the rows.
    fn tell(&mut self, walk: Walk, out: &mut Vec<GroupUsage>) {
        let page = self.page_bytes;
        self.below.clear();
        for number in (1..=walk.rows).rev() {
            let Some(row) = self.rows.get(number).filter(|row| row.session == walk.session) else { continue };
            let inactive_file = sum_up(&mut self.below, &row);
            out.push(GroupUsage {
                id: row.id,
                usage: row.usage.saturating_mul(page),
                limit: limit(row.max, page),
                failures: row.failures,
                inactive_file: inactive_file.map(|pages| pages.saturating_mul(page)),
                at_ns: row.ktime_ns,
            });
        }
        out.reverse();
    }
}

/// The inactive page cache of a cgroup with all below it, which come before it: rows are taken from
/// the last to the first.
fn sum_up(below: &mut Vec<Below>, row: &Usage) -> Option<u64> {
    let level = usize::from(row.level);
    // Also of those whose own parent was passed over.
    let deeper = below.drain((level + 1).min(below.len())..);
    let children = deeper.fold(Below::default(), |sum, one| Below {
        inactive_file: sum.inactive_file.saturating_add(one.inactive_file),
        unknown: sum.unknown | one.unknown,
    });
    if below.len() <= level {
        below.resize(level + 1, Below::default());
    }
    let sum = children.inactive_file.saturating_add(row.inactive_file);
    let unknown = children.unknown || row.has_inactive_file == 0;
    below[level].inactive_file = below[level].inactive_file.saturating_add(sum);
    below[level].unknown |= unknown;
    (!unknown && row.dying == 0).then_some(sum)
}

/// No limit is the greatest signed long in pages (PAGE_COUNTER_MAX in linux/page_counter.h).
fn limit(pages: u64, page_bytes: u64) -> Option<u64> {
    (pages < i64::MAX.unsigned_abs() / page_bytes).then(|| pages * page_bytes)
}

/// Loads the iterator and makes it for the cgroup of the options, whose maps `ebpf` has.
pub(super) fn attach(
    facts: &Facts,
    options: &LoadOptions,
    folder: &Path,
    ebpf: &mut Ebpf,
    btf: &Btf,
) -> Result<Usages, Box<dyn Error>> {
    if let Some(why) = options.choice.refusal(NAME, [NAME]) {
        return Err(why.into());
    }
    let told = facts.btf.as_ref().map_err(String::clone)?.usages.as_ref().map_err(String::clone)?;
    let program: &mut Iter = ebpf.program_mut("usages").ok_or(ProgramError::NotLoaded)?.try_into()?;
    program.load("cgroup", btf)?;
    let link = create_link(program.fd()?.as_fd(), folder)?;
    let again = match &told.no_again {
        None => Again::load(ebpf, &told.setup).map_err(|error| brief(&*error)),
        Some(why) => Err(why.clone()),
    };
    // Not before: a program is loaded with the descriptors of all its maps.
    let rows = match ebpf.take_map("USAGES") {
        Some(Map::Array(map)) => Rows::of(map)?,
        _ => return Err("the object has no map USAGES".into()),
    };
    let page_bytes = rustix::param::page_size() as u64;
    let mut usages = Usages { link, again, rows, walk: None, page_bytes, below: Vec::new() };
    // Attached is not yet seen to work.
    let mut seen = Vec::new();
    usages.walk(&mut seen)?;
    usages.prove();
    if seen.is_empty() {
        return Err("it comes by no memory cgroup".into());
    }
    Ok(usages)
}

/// What `check`, the log and the metrics say of it.
pub(super) fn info(attached: Result<&Usages, String>, facts: &Facts) -> SourceInfo {
    let told = facts.btf.as_ref().ok().and_then(|btf| btf.usages.as_ref().ok());
    let usages = match attached {
        Ok(usages) => usages,
        Err(why) => return without(&why),
    };
    let what = match told.and_then(|told| told.no_page_cache.as_deref()) {
        None => "usage and inactive file of all at once, never stale".to_owned(),
        Some(why) => format!("usage alone: {why}"),
    };
    let reason = match &usages.again {
        Ok(_) => what,
        Err(why) => format!("{what}; the tree is walked each time: {why}"),
    };
    of(NAME, reason)
}

/// The same where there is none, and why.
pub fn without(why: &str) -> SourceInfo {
    of(WITHOUT, format!("{NAME}: {why}"))
}

fn of(rung: &'static str, reason: String) -> SourceInfo {
    SourceInfo::plain("cgroup usage", rung, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(level: u16, inactive_file: u64) -> Usage {
        Usage { level, inactive_file, has_inactive_file: 1, ..Usage::EMPTY }
    }

    /// The sums of rows in the order of the tree.
    fn sums(rows: &[Usage]) -> Vec<Option<u64>> {
        let mut below = Vec::new();
        let mut sums: Vec<_> = rows.iter().rev().map(|row| sum_up(&mut below, row)).collect();
        sums.reverse();
        sums
    }

    #[test]
    fn page_cache_is_summed_up_over_the_tree() {
        let tree = [row(1, 1), row(2, 10), row(3, 100), row(3, 200), row(2, 20), row(4, 1000)];
        assert_eq!(sums(&tree), [1331, 310, 100, 200, 1020, 1000].map(Some), "one without its parent");
        let expected = [331, 310, 100, 200, 20].map(Some);
        assert_eq!(sums(&tree[..5]), expected[..5]);
    }

    #[test]
    fn what_removed_cgroups_hold_is_not_known() {
        let dying = Usage { dying: 1, ..row(2, 10) };
        let tree = [Usage { dying: 1, ..row(1, 1) }, dying, row(3, 100), row(2, 20)];
        assert_eq!(sums(&tree), [None, None, Some(100), Some(20)]);
        let silent = Usage { has_inactive_file: 0, ..row(3, 0) };
        assert_eq!(sums(&[row(1, 1), row(2, 10), silent, row(2, 20)]), [None, None, None, Some(20)]);
    }

    #[test]
    fn limits_are_in_pages_of_any_size() {
        for page in [4096, 16 << 10, 64 << 10] {
            assert_eq!(limit(i64::MAX.unsigned_abs() / page, page), None);
            assert_eq!(limit(u64::MAX, page), None);
            assert_eq!(limit(3, page), Some(3 * page));
            assert_eq!(limit(0, page), Some(0));
        }
    }
}
