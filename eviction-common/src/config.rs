//! The read-only global variable with which the programs are loaded.

/// The offset of a member that the running kernel does not have. The global is frozen before the programs are
/// loaded, so the verifier removes the code that needs the member.
pub const ABSENT: u32 = u32::MAX;

/// The maximum number of cgroup levels that a charge is followed upwards.
pub const MAX_ANCESTORS: usize = 24;

/// The maximum number of ancestors of a victim that an [`crate::OomKill`] lists.
pub const MAX_CHAIN: usize = 16;

/// The offsets of the members that the programs read, in bytes from the start of their structure, or
/// [`ABSENT`]. The loader resolves them from the BTF of the running kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Offsets {
    /// `mem_cgroup.css`. It must be 0, since the programs use the address of a css as that of its memory
    /// cgroup.
    pub memcg_css: u32,
    /// `mem_cgroup.memory`.
    pub memcg_memory: u32,
    /// `mem_cgroup.memsw`; absent where there is no cgroup v1.
    pub memcg_memsw: u32,
    /// `mem_cgroup.kmem`; absent where there is no cgroup v1.
    pub memcg_kmem: u32,
    /// `mem_cgroup.memory_events_local[MEMCG_OOM]`.
    pub memcg_oom: u32,
    /// `mem_cgroup.memory_events_local[MEMCG_OOM_KILL]`.
    pub memcg_oom_kill: u32,
    /// `mem_cgroup.oom_group`.
    pub memcg_oom_group: u32,
    /// `page_counter.usage`.
    pub counter_usage: u32,
    /// `page_counter.max`.
    pub counter_max: u32,
    /// `page_counter.parent`.
    pub counter_parent: u32,
    /// `cgroup_subsys_state.cgroup`.
    pub css_cgroup: u32,
    /// `cgroup_subsys_state.parent`.
    pub css_parent: u32,
    /// `cgroup_subsys_state.flags`.
    pub css_flags: u32,
    /// `cgroup_subsys_state.ss`.
    pub css_ss: u32,
    /// `cgroup_subsys_state.serial_nr`.
    pub css_serial: u32,
    /// `cgroup.kn`.
    pub cgroup_kn: u32,
    /// `cgroup.level`.
    pub cgroup_level: u32,
    /// `cgroup.root`.
    pub cgroup_root: u32,
    /// `cgroup_root.hierarchy_id`.
    pub root_hierarchy: u32,
    /// `kernfs_node.id`.
    pub kn_id: u32,
    /// `kernfs_node.name`.
    pub kn_name: u32,
    /// `task_struct.cgroups`.
    pub task_cgroups: u32,
    /// `css_set.subsys[memory_cgrp_id]`.
    pub cset_memory: u32,
    /// `task_struct.pid`.
    pub task_pid: u32,
    /// `task_struct.tgid`.
    pub task_tgid: u32,
    /// `task_struct.comm`.
    pub task_comm: u32,
    /// `task_struct.signal`.
    pub task_signal: u32,
    /// `signal_struct.oom_score_adj`.
    pub signal_oom_score_adj: u32,
    /// `task_struct.real_cred`.
    pub task_cred: u32,
    /// `cred.uid`.
    pub cred_uid: u32,
    /// `task_struct.mm`.
    pub task_mm: u32,
    /// `oom_control.memcg`.
    pub oc_memcg: u32,
    /// `oom_control.chosen`.
    pub oc_chosen: u32,
    /// The count of `MM_ANONPAGES` in `mm_struct`.
    pub mm_anon: u32,
    /// The count of `MM_FILEPAGES`.
    pub mm_file: u32,
    /// The count of `MM_SHMEMPAGES`.
    pub mm_shmem: u32,
    /// The count of `MM_SWAPENTS`.
    pub mm_swap: u32,
    /// `css_set.subsys[pids_cgrp_id]`.
    pub cset_pids: u32,
    /// `pids_cgroup.counter`; [`ABSENT`] also where `css` is not the first member of `pids_cgroup`.
    pub pids_counter: u32,
    /// `pids_cgroup.limit`.
    pub pids_limit: u32,
    /// `cgroup.self`, the css through which its parent is found.
    pub cgroup_self: u32,
    /// `inode.i_sb`.
    pub inode_sb: u32,
    /// `inode.i_wb`; [`ABSENT`] if the kernel does not support cgroup write-back.
    pub inode_wb: u32,
    /// `bdi_writeback.memcg_css`; [`ABSENT`] in the same case.
    pub wb_memcg_css: u32,
    /// `super_block.s_dev`.
    pub sb_dev: u32,
    /// `super_block.s_blocksize_bits`.
    pub sb_block_bits: u32,
    /// `ext4_allocation_request.inode`.
    pub ext4_ar_inode: u32,
    /// `ext4_allocation_request.len`.
    pub ext4_ar_len: u32,
    /// `ext4_allocation_request.flags`.
    pub ext4_ar_flags: u32,
    /// `xfs_inode.i_vnode`.
    pub xfs_inode_vnode: u32,
    /// `xfs_bmbt_irec.br_startblock`.
    pub xfs_irec_start: u32,
    /// `xfs_bmbt_irec.br_blockcount`.
    pub xfs_irec_count: u32,
    /// `xfs_alloc_arg.mp`.
    pub xfs_arg_mount: u32,
    /// `xfs_alloc_arg.len`.
    pub xfs_arg_len: u32,
    /// `xfs_alloc_arg.wasdel`.
    pub xfs_arg_delayed: u32,
    /// `xfs_mount.m_super`.
    pub xfs_mount_super: u32,
}

impl Offsets {
    /// All offsets are [`ABSENT`].
    pub const NONE: Self = Self {
        memcg_css: ABSENT,
        memcg_memory: ABSENT,
        memcg_memsw: ABSENT,
        memcg_kmem: ABSENT,
        memcg_oom: ABSENT,
        memcg_oom_kill: ABSENT,
        memcg_oom_group: ABSENT,
        counter_usage: ABSENT,
        counter_max: ABSENT,
        counter_parent: ABSENT,
        css_cgroup: ABSENT,
        css_parent: ABSENT,
        css_flags: ABSENT,
        css_ss: ABSENT,
        css_serial: ABSENT,
        cgroup_kn: ABSENT,
        cgroup_level: ABSENT,
        cgroup_root: ABSENT,
        root_hierarchy: ABSENT,
        kn_id: ABSENT,
        kn_name: ABSENT,
        task_cgroups: ABSENT,
        cset_memory: ABSENT,
        task_pid: ABSENT,
        task_tgid: ABSENT,
        task_comm: ABSENT,
        task_signal: ABSENT,
        signal_oom_score_adj: ABSENT,
        task_cred: ABSENT,
        cred_uid: ABSENT,
        task_mm: ABSENT,
        oc_memcg: ABSENT,
        oc_chosen: ABSENT,
        mm_anon: ABSENT,
        mm_file: ABSENT,
        mm_shmem: ABSENT,
        mm_swap: ABSENT,
        cset_pids: ABSENT,
        pids_counter: ABSENT,
        pids_limit: ABSENT,
        cgroup_self: ABSENT,
        inode_sb: ABSENT,
        inode_wb: ABSENT,
        wb_memcg_css: ABSENT,
        sb_dev: ABSENT,
        sb_block_bits: ABSENT,
        ext4_ar_inode: ABSENT,
        ext4_ar_len: ABSENT,
        ext4_ar_flags: ABSENT,
        xfs_inode_vnode: ABSENT,
        xfs_irec_start: ABSENT,
        xfs_irec_count: ABSENT,
        xfs_arg_mount: ABSENT,
        xfs_arg_len: ABSENT,
        xfs_arg_delayed: ABSENT,
        xfs_mount_super: ABSENT,
    };
}

/// The configuration with which the programs are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ProgramConfig {
    /// [`crate::ABI_VERSION`] of the loader.
    pub abi: u32,
    /// The hierarchy of the memory controller, as in /proc/cgroups; 0 is cgroup v2. Changes of cgroups in
    /// other hierarchies are not recorded.
    pub hierarchy: i32,
    /// The bit of `cgroup_subsys_state.flags` that is set until some time after the cgroup is removed
    /// (`CSS_ONLINE`: a worker clears it in `offline_css`, kernel/cgroup/cgroup.c).
    pub css_online: u32,
    /// The bit of the same flags that is set from the removal on (`CSS_DYING`: `kill_css`); 0 if not known.
    pub css_dying: u32,
    /// The first of the events that count reclaimed pages (`PGSTEAL_KSWAPD` in linux/vm_event_item.h).
    pub reclaimed_first: u32,
    /// The number of consecutive events of this kind, one for each kind of reclaimer; 0 if not known.
    pub reclaimed_events: u32,
    /// The number of tasks that a memory cgroup may create in [`crate::STORM_WINDOW_NS`] before an alarm is
    /// sent; 0 means no limit.
    pub storm_forks: u32,
    /// Whether a kill order may be armed. With 0 the verifier removes the code of the kernel kill, including
    /// its signal.
    pub kernel_kill: u32,
    /// The offsets of the members.
    pub offsets: Offsets,
}

impl ProgramConfig {
    /// The value in the object file, which the loader overrides.
    pub const NONE: Self = Self {
        abi: 0,
        hierarchy: 0,
        css_online: 0,
        css_dying: 0,
        reclaimed_first: 0,
        reclaimed_events: 0,
        storm_forks: 0,
        kernel_kill: 0,
        offsets: Offsets::NONE,
    };
}

const _: () = assert!(size_of::<ProgramConfig>() == 4 * (8 + 56));
