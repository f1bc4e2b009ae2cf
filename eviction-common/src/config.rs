//! The read-only global variable with which the programs are loaded.

/// The offset of a member that the running kernel does not have. The global is frozen before the programs are
/// loaded, so the verifier removes the code that needs the member.
pub const ABSENT: u32 = u32::MAX;

/// The maximum number of cgroup levels that a charge is followed upwards.
pub const MAX_ANCESTORS: usize = 24;

/// The maximum number of ancestors of a victim that an [`crate::OomKill`] lists.
pub const MAX_CHAIN: usize = 16;

macro_rules! offsets {
    ($($(#[$doc:meta])+ $member:ident,)+) => {
        /// The offsets of the members that the programs read, in bytes from the start of their structure, or
        /// [`ABSENT`]. The loader resolves them from the BTF of the running kernel.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(C)]
        pub struct Offsets {
            $($(#[$doc])+ pub $member: u32,)+
        }

        impl Offsets {
            /// All offsets are [`ABSENT`].
            pub const NONE: Self = Self { $($member: ABSENT,)+ };
        }
    };
}

offsets! {
    /// `mem_cgroup.css`. It must be 0, since the programs use the address of a css as that of its memory
    /// cgroup.
    memcg_css,
    /// `mem_cgroup.memory`.
    memcg_memory,
    /// `mem_cgroup.memsw`; absent where there is no cgroup v1.
    memcg_memsw,
    /// `mem_cgroup.kmem`; absent where there is no cgroup v1.
    memcg_kmem,
    /// `mem_cgroup.memory_events_local[MEMCG_OOM]`.
    memcg_oom,
    /// `mem_cgroup.memory_events_local[MEMCG_OOM_KILL]`.
    memcg_oom_kill,
    /// `mem_cgroup.oom_group`.
    memcg_oom_group,
    /// `page_counter.usage`.
    counter_usage,
    /// `page_counter.max`.
    counter_max,
    /// `page_counter.parent`.
    counter_parent,
    /// `cgroup_subsys_state.cgroup`.
    css_cgroup,
    /// `cgroup_subsys_state.parent`.
    css_parent,
    /// `cgroup_subsys_state.flags`.
    css_flags,
    /// `cgroup_subsys_state.ss`.
    css_ss,
    /// `cgroup_subsys_state.serial_nr`.
    css_serial,
    /// `cgroup.kn`.
    cgroup_kn,
    /// `cgroup.root`.
    cgroup_root,
    /// `cgroup_root.hierarchy_id`.
    root_hierarchy,
    /// `kernfs_node.id`.
    kn_id,
    /// `kernfs_node.name`.
    kn_name,
    /// `task_struct.cgroups`.
    task_cgroups,
    /// `css_set.subsys[memory_cgrp_id]`.
    cset_memory,
    /// `task_struct.pid`.
    task_pid,
    /// `task_struct.tgid`.
    task_tgid,
    /// `task_struct.comm`.
    task_comm,
    /// `task_struct.signal`.
    task_signal,
    /// `signal_struct.oom_score_adj`.
    signal_oom_score_adj,
    /// `task_struct.mm`.
    task_mm,
    /// `oom_control.memcg`.
    oc_memcg,
    /// `oom_control.chosen`.
    oc_chosen,
    /// The count of `MM_ANONPAGES` in `mm_struct`.
    mm_anon,
    /// The count of `MM_FILEPAGES`.
    mm_file,
    /// The count of `MM_SHMEMPAGES`.
    mm_shmem,
    /// The count of `MM_SWAPENTS`.
    mm_swap,
    /// `css_set.subsys[pids_cgrp_id]`.
    cset_pids,
    /// `pids_cgroup.counter`; [`ABSENT`] also where `css` is not the first member of `pids_cgroup`.
    pids_counter,
    /// `pids_cgroup.limit`.
    pids_limit,
    /// `cgroup.self`, the css through which its parent is found.
    cgroup_self,
    /// `inode.i_sb`.
    inode_sb,
    /// `inode.i_wb`; [`ABSENT`] if the kernel does not support cgroup write-back.
    inode_wb,
    /// `bdi_writeback.memcg_css`; [`ABSENT`] in the same case.
    wb_memcg_css,
    /// `super_block.s_dev`.
    sb_dev,
    /// `super_block.s_blocksize_bits`.
    sb_block_bits,
    /// `ext4_allocation_request.inode`.
    ext4_ar_inode,
    /// `ext4_allocation_request.len`.
    ext4_ar_len,
    /// `ext4_allocation_request.flags`.
    ext4_ar_flags,
    /// `xfs_inode.i_vnode`.
    xfs_inode_vnode,
    /// `xfs_bmbt_irec.br_startblock`.
    xfs_irec_start,
    /// `xfs_bmbt_irec.br_blockcount`.
    xfs_irec_count,
    /// `xfs_alloc_arg.mp`.
    xfs_arg_mount,
    /// `xfs_alloc_arg.len`.
    xfs_arg_len,
    /// `xfs_alloc_arg.wasdel`.
    xfs_arg_delayed,
    /// `xfs_mount.m_super`.
    xfs_mount_super,
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

const _: () = assert!(size_of::<ProgramConfig>() == 4 * (8 + 53));
