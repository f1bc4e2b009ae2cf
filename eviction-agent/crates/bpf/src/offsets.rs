//! What the kernel's BTF says: the offsets of the members that the programs read, and the arguments of what they
//! are attached to.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use eviction_common::{ABSENT, Offsets};

use super::attach_methods::{ATTACH_METHODS, HookPoint};
use super::btf::{Argument, Btf, wrong_form};

/// The facts from the kernel's BTF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BtfFacts {
    /// The offsets; [`ABSENT`] where there is none.
    pub offsets: Offsets,
    /// The bit of `cgroup_subsys_state.flags` that an online css has; 0 if not known.
    pub css_online: u32,
    /// The bit that a css has from the removal of its cgroup on; 0 if not known.
    pub css_dying: u32,
    /// Of how many memory cgroups a CPU caches charged pages at once.
    pub charge_caches: u32,
    /// The events that count pages reclaimed from a memory cgroup; empty if not known.
    pub reclaimed: Range<u32>,
    /// Why each absent offset is absent, by the name of its field in [`Offsets`].
    pub missing: Vec<(&'static str, String)>,
    /// The arguments of the tracepoints that a method needs and the kernel has.
    pub tracepoints: BTreeMap<&'static str, Vec<Argument>>,
    /// The arguments of the functions that a method needs and the kernel has.
    pub functions: BTreeMap<&'static str, Vec<Argument>>,
}

impl BtfFacts {
    /// Returns why the offset of this name is absent.
    pub fn why(&self, field: &str) -> Option<&str> {
        self.missing.iter().find(|(name, _)| *name == field).map(|(_, why)| why.as_str())
    }
}

/// Finds the offsets and the arguments. Those of xfs are in its module, if it is one.
pub fn resolve(btf: &Btf<'_>, xfs: Option<&Btf<'_>>) -> BtfFacts {
    let hook_points = || ATTACH_METHODS.iter().flat_map(|method| method.hooks).map(|hook| hook.at);
    let tracepoint = |name| btf.tracepoint(name).or_else(|| xfs?.tracepoint(name));
    // Several methods have the same hook points.
    let tracepoints: BTreeSet<_> = hook_points().filter_map(HookPoint::tracepoint).collect();
    let functions: BTreeSet<_> = hook_points().filter_map(HookPoint::function).collect();
    let mut missing = Vec::new();
    let offsets = find_offsets(btf, xfs, &mut missing);
    BtfFacts {
        offsets,
        css_online: bit(btf, "CSS_ONLINE").unwrap_or(0),
        css_dying: bit(btf, "CSS_DYING").unwrap_or(0),
        charge_caches: charge_caches(btf),
        reclaimed: reclaimed(btf),
        missing,
        tracepoints: tracepoints.into_iter().filter_map(|name| Some((name, tracepoint(name)?))).collect(),
        functions: functions.into_iter().filter_map(|name| Some((name, btf.function(name)?))).collect(),
    }
}

fn bit(btf: &Btf<'_>, name: &str) -> Result<u32, String> {
    u32::try_from(btf.enumerator(name)?).map_err(|_| wrong_form(name, "a bit"))
}

fn find_offsets(btf: &Btf<'_>, xfs: Option<&Btf<'_>>, missing: &mut Vec<(&'static str, String)>) -> Offsets {
    let mut take = |field: &'static str, found: Result<u32, String>| {
        found.unwrap_or_else(|why| {
            missing.push((field, why));
            ABSENT
        })
    };
    let at = |structure, member| btf.member(structure, member).map(|found| found.offset);
    let in_xfs = |structure, member| xfs.unwrap_or(btf).member(structure, member).map(|found| found.offset);
    Offsets {
        memcg_css: take("memcg_css", css_of(btf, "mem_cgroup")),
        memcg_memory: take("memcg_memory", at("mem_cgroup", "memory")),
        // These are optional: a kernel with cgroup v2 only has no such counters.
        memcg_memsw: at("mem_cgroup", "memsw").unwrap_or(ABSENT),
        memcg_kmem: at("mem_cgroup", "kmem").unwrap_or(ABSENT),
        memcg_oom: take("memcg_oom", local_event(btf, "MEMCG_OOM")),
        memcg_oom_kill: take("memcg_oom_kill", local_event(btf, "MEMCG_OOM_KILL")),
        memcg_oom_group: take("memcg_oom_group", at("mem_cgroup", "oom_group")),
        counter_usage: take("counter_usage", at("page_counter", "usage")),
        counter_max: take("counter_max", at("page_counter", "max")),
        counter_parent: take("counter_parent", at("page_counter", "parent")),
        css_cgroup: take("css_cgroup", at("cgroup_subsys_state", "cgroup")),
        css_parent: take("css_parent", at("cgroup_subsys_state", "parent")),
        css_flags: take("css_flags", bit(btf, "CSS_ONLINE").and_then(|_| at("cgroup_subsys_state", "flags"))),
        css_ss: take("css_ss", at("cgroup_subsys_state", "ss")),
        css_serial: take("css_serial", at("cgroup_subsys_state", "serial_nr")),
        cgroup_kn: take("cgroup_kn", at("cgroup", "kn")),
        cgroup_root: take("cgroup_root", at("cgroup", "root")),
        root_hierarchy: take("root_hierarchy", at("cgroup_root", "hierarchy_id")),
        kn_id: take("kn_id", at("kernfs_node", "id")),
        kn_name: take("kn_name", at("kernfs_node", "name")),
        task_cgroups: take("task_cgroups", at("task_struct", "cgroups")),
        cset_memory: take("cset_memory", element_of(btf, "css_set", "subsys", "memory_cgrp_id")),
        task_pid: take("task_pid", at("task_struct", "pid")),
        task_tgid: take("task_tgid", at("task_struct", "tgid")),
        task_comm: take("task_comm", at("task_struct", "comm")),
        task_signal: take("task_signal", at("task_struct", "signal")),
        signal_oom_score_adj: take("signal_oom_score_adj", at("signal_struct", "oom_score_adj")),
        task_mm: take("task_mm", at("task_struct", "mm")),
        oc_memcg: take("oc_memcg", at("oom_control", "memcg")),
        oc_chosen: take("oc_chosen", at("oom_control", "chosen")),
        mm_anon: take("mm_anon", resident(btf, "MM_ANONPAGES")),
        mm_file: take("mm_file", resident(btf, "MM_FILEPAGES")),
        mm_shmem: take("mm_shmem", resident(btf, "MM_SHMEMPAGES")),
        mm_swap: take("mm_swap", resident(btf, "MM_SWAPENTS")),
        cset_pids: take("cset_pids", element_of(btf, "css_set", "subsys", "pids_cgrp_id")),
        pids_counter: take("pids_counter", pids(btf, "counter")),
        pids_limit: take("pids_limit", pids(btf, "limit")),
        cgroup_self: take("cgroup_self", at("cgroup", "self")),
        inode_sb: take("inode_sb", at("inode", "i_sb")),
        // These are optional: without them the owner of a write-back is not known.
        inode_wb: at("inode", "i_wb").unwrap_or(ABSENT),
        wb_memcg_css: at("bdi_writeback", "memcg_css").unwrap_or(ABSENT),
        sb_dev: take("sb_dev", at("super_block", "s_dev")),
        sb_block_bits: take("sb_block_bits", at("super_block", "s_blocksize_bits")),
        ext4_ar_inode: take("ext4_ar_inode", at("ext4_allocation_request", "inode")),
        ext4_ar_len: take("ext4_ar_len", at("ext4_allocation_request", "len")),
        ext4_ar_flags: take("ext4_ar_flags", at("ext4_allocation_request", "flags")),
        xfs_inode_vnode: take("xfs_inode_vnode", in_xfs("xfs_inode", "i_vnode")),
        xfs_irec_start: take("xfs_irec_start", in_xfs("xfs_bmbt_irec", "br_startblock")),
        xfs_irec_count: take("xfs_irec_count", in_xfs("xfs_bmbt_irec", "br_blockcount")),
        xfs_arg_mount: take("xfs_arg_mount", in_xfs("xfs_alloc_arg", "mp")),
        xfs_arg_len: take("xfs_arg_len", in_xfs("xfs_alloc_arg", "len")),
        xfs_arg_delayed: take("xfs_arg_delayed", in_xfs("xfs_alloc_arg", "wasdel")),
        xfs_mount_super: take("xfs_mount_super", in_xfs("xfs_mount", "m_super")),
    }
}

/// Returns of how many memory cgroups a CPU caches charges: one, and from 6.16 on as many as the array has
/// (`memcg_stock_pcp.cached` in mm/memcontrol.c).
fn charge_caches(btf: &Btf<'_>) -> u32 {
    let cached = btf.member("memcg_stock_pcp", "cached");
    let many = cached.and_then(|cached| btf.len("memcg_stock_pcp.cached", &cached));
    many.ok().and_then(|many| u32::try_from(many).ok()).unwrap_or(1).max(1)
}

/// Returns the events that count reclaimed pages: one for each kind of reclaim, with consecutive numbers, as
/// mm/vmscan.c assumes too (`reclaimer_offset`). How many there are depends on the kernel.
fn reclaimed(btf: &Btf<'_>) -> Range<u32> {
    let event = |name| btf.enumerator(name).ok().and_then(|value| u32::try_from(value).ok());
    let Some(first) = event("PGSTEAL_KSWAPD") else { return 0..0 };
    let others = ["PGSTEAL_DIRECT", "PGSTEAL_KHUGEPAGED", "PGSTEAL_PROACTIVE"];
    let others = others.into_iter().filter_map(event);
    let last =
        others.fold(first, |last, value| if last.checked_add(1) == Some(value) { value } else { last });
    // The end of the range must be a number as well.
    last.checked_add(1).map_or(0..0, |end| first..end)
}

/// Returns the offset of the css in the structure of a controller. It must be the first member, since the
/// programs read a css as the structure around it.
fn css_of(btf: &Btf<'_>, structure: &str) -> Result<u32, String> {
    match btf.member(structure, "css")?.offset {
        0 => Ok(0),
        _ => Err(wrong_form(&format!("{structure}.css"), "its first member")),
    }
}

/// Returns the offset of the element of an array that an enumerator is the index of.
fn element_of(btf: &Btf<'_>, structure: &str, array: &str, index: &str) -> Result<u32, String> {
    let elements = btf.member(structure, array)?;
    let index = btf.enumerator(index)?;
    Ok(btf.element(&format!("{structure}.{array}"), &elements, index)?.offset)
}

fn local_event(btf: &Btf<'_>, event: &str) -> Result<u32, String> {
    element_of(btf, "mem_cgroup", "memory_events_local", event)
}

/// Returns the offset of a member of `pids_cgroup`.
fn pids(btf: &Btf<'_>, member: &str) -> Result<u32, String> {
    css_of(btf, "pids_cgroup")?;
    Ok(btf.member("pids_cgroup", member)?.offset)
}

/// Returns the offset of a count of resident pages. `mm_struct.rss_stat` is a structure around an array of
/// counts up to 6.1, and an array of per-CPU counters since.
fn resident(btf: &Btf<'_>, which: &str) -> Result<u32, String> {
    let index = btf.enumerator(which)?;
    let whole = btf.member("mm_struct", "rss_stat")?;
    if btf.structure_of(&whole) == Some("mm_rss_stat") {
        let counts = btf.member("mm_rss_stat", "count")?;
        let counts = whole.of(counts);
        return Ok(btf.element("mm_rss_stat.count", &counts, index)?.offset);
    }
    let element = btf.element("mm_struct.rss_stat", &whole, index)?;
    match btf.structure_of(&element) {
        Some("percpu_counter") => {
            let count = btf.member("percpu_counter", "count")?;
            Ok(element.of(count).offset)
        }
        _ => Err(wrong_form("mm_struct.rss_stat", "an array of per-CPU counters")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::tests::Blob;

    fn resolved(blob: &Blob) -> BtfFacts {
        resolve(&Btf::parse(&blob.bytes()).unwrap(), None)
    }

    fn counts(blob: &mut Blob) {
        let members = [("MM_FILEPAGES", 0), ("MM_ANONPAGES", 1), ("MM_SWAPENTS", 2), ("MM_SHMEMPAGES", 3)];
        blob.enumeration(&members);
    }

    #[test]
    fn charge_caches_are_one_or_the_length_of_the_array() {
        assert_eq!(resolved(&Blob::new()).charge_caches, 1, "not known");
        for (slots, charge_caches) in [(None, 1), (Some(7), 7)] {
            let mut blob = Blob::new();
            let memcg = blob.structure("mem_cgroup", 2000, &[]);
            let pointer = blob.pointer(memcg);
            let cached = slots.map_or(pointer, |slots| blob.array(pointer, slots));
            blob.structure("memcg_stock_pcp", 100, &[("cached", cached, 8)]);
            assert_eq!(resolved(&blob).charge_caches, charge_caches);
        }
    }

    #[test]
    fn reclaim_events_are_a_range_of_consecutive_numbers() {
        let found = |events: &[(&str, i32)]| {
            let mut blob = Blob::new();
            blob.enumeration(events);
            resolved(&blob).reclaimed
        };
        let (kswapd, direct) = (("PGSTEAL_KSWAPD", 20), ("PGSTEAL_DIRECT", 21));
        let (huge, proactive) = (("PGSTEAL_KHUGEPAGED", 22), ("PGSTEAL_PROACTIVE", 23));
        assert_eq!(found(&[kswapd, direct]), 20..22);
        assert_eq!(found(&[kswapd, direct, huge, proactive]), 20..24);
        assert_eq!(found(&[kswapd, direct, ("PGSTEAL_KHUGEPAGED", 30)]), 20..22, "something else is between");
        assert_eq!(found(&[direct, huge]), 0..0, "not known");
        assert_eq!(found(&[("PGSTEAL_KSWAPD", -1)]), 0..0, "no number of an event");
    }

    #[test]
    fn resident_pages_are_found_as_a_structure_of_atomics() {
        let mut blob = Blob::new();
        counts(&mut blob);
        let long = blob.int("long", 8);
        let atomic = blob.structure("", 8, &[("counter", long, 0)]);
        let atomic = blob.typedef("atomic_long_t", atomic);
        let array = blob.array(atomic, 4);
        let stat = blob.structure("mm_rss_stat", 32, &[("count", array, 0)]);
        let inner = blob.structure("", 800, &[("rss_stat", stat, 704)]);
        blob.structure("mm_struct", 1000, &[("", inner, 0)]);
        let Offsets { mm_file, mm_anon, mm_swap, mm_shmem, .. } = resolved(&blob).offsets;
        assert_eq!([mm_file, mm_anon, mm_swap, mm_shmem], [704, 712, 720, 728]);
    }

    #[test]
    fn resident_pages_are_found_as_an_array_of_per_cpu_counters() {
        let mut blob = Blob::new();
        counts(&mut blob);
        let long = blob.int("long", 8);
        let counter = blob.structure("percpu_counter", 40, &[("lock", long, 0), ("count", long, 8)]);
        let array = blob.array(counter, 4);
        blob.structure("mm_struct", 1472, &[("rss_stat", array, 960)]);
        let Offsets { mm_file, mm_anon, mm_swap, mm_shmem, .. } = resolved(&blob).offsets;
        assert_eq!([mm_file, mm_anon, mm_swap, mm_shmem], [968, 1008, 1048, 1088]);
    }

    #[test]
    fn resident_pages_of_unknown_form_are_missing_with_the_reason() {
        let mut blob = Blob::new();
        counts(&mut blob);
        let long = blob.int("long", 8);
        let array = blob.array(long, 4);
        blob.structure("mm_struct", 100, &[("rss_stat", array, 0)]);
        let resolved = resolved(&blob);
        assert_eq!(resolved.offsets.mm_anon, ABSENT);
        let why = resolved.why("mm_anon").unwrap();
        assert_eq!(why, "this kernel's mm_struct.rss_stat is not an array of per-CPU counters");
    }

    #[test]
    fn the_css_of_a_set_is_at_the_controllers_index() {
        let mut blob = Blob::new();
        blob.enumeration(&[("cpu_cgrp_id", 1), ("memory_cgrp_id", 4)]);
        let css = blob.structure("cgroup_subsys_state", 200, &[]);
        let css = blob.pointer(css);
        let array = blob.array(css, 12);
        blob.structure("css_set", 544, &[("subsys", array, 16)]);
        assert_eq!(resolved(&blob).offsets.cset_memory, 16 + 4 * size_of::<usize>() as u32);
    }

    #[test]
    fn a_css_that_is_not_the_first_member_is_refused() {
        let mut blob = Blob::new();
        let css = blob.structure("cgroup_subsys_state", 200, &[]);
        blob.structure("mem_cgroup", 2000, &[("css", css, 8)]);
        let resolved = resolved(&blob);
        assert_eq!(resolved.offsets.memcg_css, ABSENT);
        let why = resolved.why("memcg_css").unwrap();
        assert_eq!(why, "this kernel's mem_cgroup.css is not its first member");
    }

    #[test]
    fn pids_offsets_are_missing_if_the_css_is_not_the_first_member() {
        let mut blob = Blob::new();
        let css = blob.structure("cgroup_subsys_state", 200, &[]);
        let long = blob.int("long", 8);
        blob.structure("pids_cgroup", 232, &[("css", css, 0), ("counter", long, 200), ("limit", long, 208)]);
        let found = resolved(&blob).offsets;
        assert_eq!((found.pids_counter, found.pids_limit), (200, 208));

        let mut blob = Blob::new();
        let css = blob.structure("cgroup_subsys_state", 200, &[]);
        let long = blob.int("long", 8);
        blob.structure("pids_cgroup", 232, &[("counter", long, 0), ("css", css, 8)]);
        let resolved = resolved(&blob);
        assert_eq!(resolved.offsets.pids_counter, ABSENT);
        let why = resolved.why("pids_counter").unwrap();
        assert_eq!(why, "this kernel's pids_cgroup.css is not its first member");
    }

    #[test]
    fn without_the_online_bit_the_flags_are_not_read() {
        let mut blob = Blob::new();
        let int = blob.int("unsigned int", 4);
        blob.structure("cgroup_subsys_state", 200, &[("flags", int, 76)]);
        let without = resolved(&blob);
        assert_eq!((without.offsets.css_flags, without.css_online), (ABSENT, 0));
        blob.enumeration(&[("CSS_NO_REF", 1), ("CSS_ONLINE", 2)]);
        let with = resolved(&blob);
        assert_eq!((with.offsets.css_flags, with.css_online, with.css_dying), (76, 2, 0));
        blob.enumeration(&[("CSS_ONLINE", 2), ("CSS_DYING", 16)]);
        assert_eq!(resolved(&blob).css_dying, 16);
    }
}
