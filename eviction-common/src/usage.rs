//! What the iterator over cgroups writes, and what it is loaded with.

/// How many memory nodes the iterator sums up; on a machine with more it tells no page cache.
pub const MAX_NODES: u32 = 16;

/// How many zones of a node it sums up.
pub const MAX_ZONES: u32 = 8;

/// From one zone to the next there is a number for each list of pages, at most so many
/// (`NR_LRU_LISTS` in include/linux/mmzone.h); where there are more it tells no page cache.
pub const MAX_LISTS: u32 = 5;

/// How many generations of pages a kernel keeps (`MAX_NR_GENS` in include/linux/mmzone.h).
pub const GENERATIONS: u32 = 4;

/// Of how many of them, the youngest, pages count as active (`lru_gen_is_active` in
/// include/linux/mm_inline.h).
pub const ACTIVE_GENERATIONS: u32 = 2;

/// The second read-only global, of the iterator alone: offsets in bytes, or [`crate::ABSENT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct UsageSetup {
    /// `bpf_iter_meta.session_id`.
    pub meta_session: u32,
    /// `bpf_iter_meta.seq_num`.
    pub meta_number: u32,
    /// `cgroup.subsys[memory_cgrp_id]`.
    pub cgroup_memory: u32,
    /// `cgroup.nr_dying_descendants`.
    pub cgroup_dying: u32,
    /// `page_counter.failcnt`.
    pub counter_failures: u32,
    /// `mem_cgroup.nodeinfo`: an array of pointers, one for each memory node.
    pub memcg_nodes: u32,
    /// `mem_cgroup_per_node.lru_zone_size[0][LRU_INACTIVE_FILE]`.
    pub node_inactive_file: u32,
    /// From one zone to the next in that array.
    pub zone_stride: u32,
    /// `mem_cgroup_per_node.lruvec.lrugen.max_seq`; absent where pages are not kept by generations.
    pub generation: u32,
    /// `mem_cgroup_per_node.lruvec.lrugen.nr_pages[0][LRU_GEN_FILE][0]`, a number for each zone.
    pub generation_file: u32,
    /// From one generation to the next in that array.
    pub generation_stride: u32,
    /// How many zones there are; 0 where the page cache cannot be told.
    pub zones: u32,
    /// How many memory nodes there may be; 0 where the page cache cannot be told.
    pub nodes: u32,
    /// `cgroup_root.kf_root`; absent where cgroups are not to be read again without a walk.
    pub root_nodes: u32,
    /// `kernfs_root.last_id_lowbits`.
    pub nodes_last: u32,
    /// How many rows are read again at once: the verifier goes through all of it, and the program is not preempted.
    pub again_rows: u32,
}

impl UsageSetup {
    /// Nothing is known.
    pub const NONE: Self = Self {
        meta_session: crate::ABSENT,
        meta_number: crate::ABSENT,
        cgroup_memory: crate::ABSENT,
        cgroup_dying: crate::ABSENT,
        counter_failures: crate::ABSENT,
        memcg_nodes: crate::ABSENT,
        node_inactive_file: crate::ABSENT,
        zone_stride: 0,
        generation: crate::ABSENT,
        generation_file: crate::ABSENT,
        generation_stride: 0,
        zones: 0,
        nodes: 0,
        root_nodes: crate::ABSENT,
        nodes_last: crate::ABSENT,
        again_rows: 0,
    };

    /// On a machine of so many memory nodes, at least 1.
    pub const fn on_nodes(self, nodes: u32) -> Self {
        Self { nodes, again_rows: AGAIN_ROWS / if nodes > 1 { nodes } else { 1 }, ..self }
    }
}

/// A memory cgroup at one pass of the iterator; the value of map `USAGES`, whose key is its number in
/// the pass plus one. The first value is of the pass itself: its session, and as `id` how many
/// cgroups it came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Usage {
    /// Of which pass it is; values of other passes stand for cgroups without figures in this one.
    pub session: u64,
    /// The cgroup's id.
    pub id: u64,
    /// Pages in use, those of cgroups below included.
    pub usage: u64,
    /// The limit, pages.
    pub max: u64,
    /// How often a charge met the limit; newer kernels count it on cgroup v1 alone.
    pub failures: u64,
    /// Pages of page cache that have not been used lately, without those of cgroups below.
    pub inactive_file: u64,
    /// When it was read.
    pub ktime_ns: u64,
    /// Cgroups below that were removed, and still may hold pages.
    pub dying: u32,
    /// How deep it is below the root of the hierarchy; the rows of a pass are in the order of the
    /// tree, each parent before its children.
    pub level: u16,
    /// 1 if `inactive_file` is told.
    pub has_inactive_file: u16,
}

impl Usage {
    /// No figure.
    pub const EMPTY: Self = Self {
        session: 0,
        id: 0,
        usage: 0,
        max: 0,
        failures: 0,
        inactive_file: 0,
        ktime_ns: 0,
        dying: 0,
        level: 0,
        has_inactive_file: 0,
    };
}

/// Where the iterator found a memory cgroup; the value of map `PLACES`, whose key is that of its row in `USAGES`;
/// it is of the row's pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Place {
    /// Address of its css, and of the memory cgroup.
    pub css: u64,
    /// The css' number, which no other ever gets (`css_serial_nr_next` in kernel/cgroup/cgroup.c).
    pub serial: u64,
    /// Address of the lists of its first memory node, which lives as long as it does.
    pub lists: u64,
}

/// What the iterator found at the beginning of its last pass; the one value of map `START`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Start {
    /// Address of the cgroup that it began with, which the iterator's link holds.
    pub cgroup: u64,
    /// The last number that was given to a directory or file of the hierarchy: another one once a cgroup was made, or a
    /// controller switched on for one (`__kernfs_new_node` in fs/kernfs/dir.c).
    pub last_node: u32,
    /// How many cgroups below it were removed and are still there; counted at all that are above one.
    pub dying: u32,
}

/// How many rows are read again at once, where there is one memory node: for some dozens of microseconds.
pub const AGAIN_ROWS: u32 = 64;

/// What the program that reads rows again answers: all of them are of now.
pub const AGAIN_DONE: u32 = 0;

/// The cgroups are others than those of the last pass.
pub const AGAIN_CHANGED: u32 = 1;

/// It cannot on this kernel.
pub const AGAIN_UNABLE: u32 = 2;

/// So far all that is wanted of a memory cgroup's own structure may lie apart, bytes; where it is more, the tree is
/// walked each time.
pub const SPAN_BYTES: u32 = 512;

const _: () = {
    assert!(size_of::<UsageSetup>() == 64);
    assert!(size_of::<Usage>() == 64);
    assert!(size_of::<Place>() == 24);
    assert!(size_of::<Start>() == 16);
};
