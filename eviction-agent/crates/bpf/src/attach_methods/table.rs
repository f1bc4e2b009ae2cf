//! Every attach method.
#![forbid(unsafe_code)]

use super::HookPoint::{Entry, Exit, Probe, RawTracepoint, ReturnProbe, Tracepoint};
use super::{AttachMethod, AttachWhen, EventClass, Expected, HookPoint, ProgramHook, batch, page_table};
use crate::btf::Argument::{Number, Pointer, Struct};

/// Every method, the best of each class first.
pub static ATTACH_METHODS: &[AttachMethod] = &[
    AttachMethod {
        name: "fexit page_counter_try_charge",
        class: EventClass::Charge,
        hooks: &[
            hook("counter_try_charge_exit", Exit("page_counter_try_charge"), TRY_CHARGE),
            hook("counter_charge_exit", Exit("page_counter_charge"), CHARGE),
        ],
        needs: &[IDENTITY, WALK, COUNTER],
        sees_every_charge: true,
        granularity: batch,
        ..PLAIN
    },
    AttachMethod {
        name: "kprobe page_counter_try_charge",
        class: EventClass::Charge,
        hooks: &[
            // The return probe comes first: a try that is seen without its return counts as charged.
            hook("counter_try_charge_return", ReturnProbe("page_counter_try_charge"), TRY_CHARGE),
            hook("counter_try_charge_probe", Probe("page_counter_try_charge"), TRY_CHARGE),
            hook("counter_charge_probe", Probe("page_counter_charge"), CHARGE),
        ],
        needs: &[IDENTITY, WALK, COUNTER],
        sees_every_charge: true,
        granularity: batch,
        ..PLAIN
    },
    AttachMethod {
        name: "tp_btf mod_memcg_state",
        class: EventClass::Charge,
        hooks: &[hook("charge_mod_memcg_state", Tracepoint("mod_memcg_state"), &[Struct("mem_cgroup")])],
        needs: &[IDENTITY, WALK],
        granularity: page_table,
        ..PLAIN
    },
    AttachMethod {
        name: "tp_btf rss_stat",
        class: EventClass::Charge,
        // The kernel has the count as an argument where it reports once for many pages.
        hooks: &[hook("charge_rss_stat", Tracepoint("rss_stat"), &[Struct("mm_struct"), Number, Number])],
        needs: &[IDENTITY, WALK, MEMBERSHIP],
        granularity: batch,
        ..PLAIN
    },
    AttachMethod {
        name: "fexit page_counter_uncharge",
        class: EventClass::ChargeNear,
        hooks: &[hook("counter_uncharge_exit", Exit("page_counter_uncharge"), CHARGE)],
        needs: &[IDENTITY, WALK, COUNTER],
        when: Some(AttachWhen::OnRelease),
        accompanies: &["fexit page_counter_try_charge"],
        ..PLAIN
    },
    AttachMethod {
        name: "kprobe page_counter_uncharge",
        class: EventClass::ChargeNear,
        hooks: &[hook("counter_uncharge_probe", Probe("page_counter_uncharge"), CHARGE)],
        needs: &[IDENTITY, WALK, COUNTER],
        // This method also accompanies the trampoline, for kernels that attach a program to a trampoline only
        // once.
        when: Some(AttachWhen::OnRelease),
        accompanies: &["kprobe page_counter_try_charge", "fexit page_counter_try_charge"],
        ..PLAIN
    },
    AttachMethod {
        name: "tp_btf count_memcg_events",
        class: EventClass::ChargeNear,
        hooks: &[hook(
            "near_count_memcg_events",
            Tracepoint("count_memcg_events"),
            &[Struct("mem_cgroup"), Number, Number],
        )],
        needs: &[IDENTITY, WALK],
        granularity: batch,
        when: Some(AttachWhen::NearThreshold),
        accompanies: &["tp_btf mod_memcg_state", ""],
        ..PLAIN
    },
    AttachMethod {
        name: "fentry oom_kill_process",
        class: EventClass::Oom,
        hooks: &[
            hook("oom_kill_process_exit", Exit("oom_kill_process"), OOM_KILL),
            hook("oom_kill_process_entry", Entry("oom_kill_process"), OOM_KILL),
            hook("oom_mark_victim", Tracepoint("mark_victim"), VICTIM),
        ],
        needs: &[IDENTITY, WALK, MEMBERSHIP, NAME, OOM_CONTROL],
        ..PLAIN
    },
    AttachMethod {
        name: "fentry oom_kill_process, oom_kill_memcg_member",
        class: EventClass::Oom,
        hooks: &[
            hook("oom_kill_process_exit", Exit("oom_kill_process"), OOM_KILL),
            hook("oom_kill_process_entry", Entry("oom_kill_process"), OOM_KILL),
            hook("oom_kill_process_member", Entry("oom_kill_memcg_member"), VICTIM),
            hook("oom_mark_victim_pid", Tracepoint("mark_victim"), VICTIM_PID),
        ],
        needs: &[IDENTITY, WALK, MEMBERSHIP, NAME, OOM_CONTROL],
        ..PLAIN
    },
    AttachMethod {
        name: "kprobe oom_kill_process",
        class: EventClass::Oom,
        hooks: &[
            hook("oom_kill_process_exit_probe", ReturnProbe("oom_kill_process"), OOM_KILL),
            hook("oom_kill_process_entry_probe", Probe("oom_kill_process"), OOM_KILL),
            hook("oom_mark_victim", Tracepoint("mark_victim"), VICTIM),
        ],
        needs: &[IDENTITY, WALK, MEMBERSHIP, NAME, OOM_CONTROL],
        ..PLAIN
    },
    AttachMethod {
        name: "kprobe oom_kill_process, oom_kill_memcg_member",
        class: EventClass::Oom,
        hooks: &[
            hook("oom_kill_process_exit_probe", ReturnProbe("oom_kill_process"), OOM_KILL),
            hook("oom_kill_process_entry_probe", Probe("oom_kill_process"), OOM_KILL),
            hook("oom_kill_process_member_probe", Probe("oom_kill_memcg_member"), VICTIM),
            hook("oom_mark_victim_pid", Tracepoint("mark_victim"), VICTIM_PID),
        ],
        needs: &[IDENTITY, WALK, MEMBERSHIP, NAME, OOM_CONTROL],
        ..PLAIN
    },
    AttachMethod {
        name: "tp_btf mark_victim(task)",
        class: EventClass::Oom,
        hooks: &[hook("oom_mark_victim", Tracepoint("mark_victim"), VICTIM)],
        needs: &[IDENTITY, WALK, MEMBERSHIP, NAME],
        ..PLAIN
    },
    AttachMethod {
        name: "tp_btf mark_victim(pid)",
        class: EventClass::Oom,
        hooks: &[hook("oom_mark_victim_pid", Tracepoint("mark_victim"), VICTIM_PID)],
        needs: &[IDENTITY, WALK, MEMBERSHIP],
        ..PLAIN
    },
    AttachMethod {
        name: "tp_btf sched_process_fork, sched_process_exec, sched_process_exit",
        class: EventClass::Task,
        hooks: &[
            hook(
                "task_fork",
                Tracepoint("sched_process_fork"),
                &[Struct("task_struct"), Struct("task_struct")],
            ),
            hook("task_exec", Tracepoint("sched_process_exec"), &[Struct("task_struct")]),
            hook("task_exit", Tracepoint("sched_process_exit"), &[Struct("task_struct")]),
        ],
        needs: &[IDENTITY, MEMBERSHIP],
        ..PLAIN
    },
    AttachMethod {
        name: "tp_btf mm_vmscan_memcg_reclaim_begin, mm_vmscan_memcg_reclaim_end",
        class: EventClass::Reclaim,
        hooks: &[
            // Its arguments are not used, since they differ between kernels.
            hook("reclaim_begin", Tracepoint("mm_vmscan_memcg_reclaim_begin"), &[]),
            hook("reclaim_end", Tracepoint("mm_vmscan_memcg_reclaim_end"), &[Number]),
        ],
        needs: &[IDENTITY, MEMBERSHIP],
        ..PLAIN
    },
    AttachMethod {
        name: "tp_btf cgroup_mkdir, cgroup_rmdir",
        class: EventClass::Cgroup,
        hooks: &[
            hook("cgroup_mkdir", Tracepoint("cgroup_mkdir"), &[Struct("cgroup"), Pointer]),
            hook("cgroup_rmdir", Tracepoint("cgroup_rmdir"), &[Struct("cgroup"), Pointer]),
        ],
        needs: &[CGROUP],
        ..PLAIN
    },
    AttachMethod {
        name: EXT4,
        class: EventClass::Disk,
        hooks: &[
            hook(
                "disk_ext4_allocate",
                Tracepoint("ext4_allocate_blocks"),
                &[Struct("ext4_allocation_request")],
            ),
            hook("disk_ext4_free", Tracepoint("ext4_free_blocks"), &[Struct("inode"), Number, Number]),
            hook("disk_ext4_allocate_inode", Tracepoint("ext4_allocate_inode"), INODE),
            hook("disk_ext4_free_inode", Tracepoint("ext4_free_inode"), INODE),
        ],
        needs: &[IDENTITY, OWNER, INODE_FIELDS, EXT4_REQUEST],
        ..PLAIN
    },
    AttachMethod {
        name: "tp_btf ext4_da_reserve_space(inode, blocks), ext4_da_release_space",
        class: EventClass::DiskNear,
        hooks: &[
            hook("disk_ext4_reserve", Tracepoint("ext4_da_reserve_space"), INODE_AND_BLOCKS),
            EXT4_RELEASE,
            EXT4_RESERVATION_USED,
        ],
        needs: &[IDENTITY, OWNER, INODE_FIELDS],
        when: Some(AttachWhen::NearDiskThreshold),
        accompanies: &[EXT4],
        ..PLAIN
    },
    AttachMethod {
        name: "tp_btf ext4_da_reserve_space(inode), ext4_da_release_space",
        class: EventClass::DiskNear,
        hooks: &[
            hook("disk_ext4_reserve_one", Tracepoint("ext4_da_reserve_space"), INODE),
            EXT4_RELEASE,
            EXT4_RESERVATION_USED,
        ],
        needs: &[IDENTITY, OWNER, INODE_FIELDS],
        when: Some(AttachWhen::NearDiskThreshold),
        accompanies: &[EXT4],
        ..PLAIN
    },
    AttachMethod {
        name: "raw_tp xfs_iomap_alloc, xfs_alloc_vextent_finish, xfs_create",
        class: EventClass::DiskXfs,
        hooks: &[
            XFS_IOMAP_ALLOC,
            hook("disk_xfs_allocate", RawTracepoint("xfs_alloc_vextent_finish"), &[Struct("xfs_alloc_arg")]),
            XFS_CREATE,
        ],
        needs: &[IDENTITY, OWNER, INODE_FIELDS, XFS, XFS_REQUEST],
        ..PLAIN
    },
    AttachMethod {
        name: "raw_tp xfs_iomap_alloc, xfs_create",
        class: EventClass::DiskXfs,
        hooks: &[XFS_IOMAP_ALLOC, XFS_CREATE],
        needs: &[IDENTITY, OWNER, INODE_FIELDS, XFS],
        ..PLAIN
    },
];

/// The fields of most methods.
const PLAIN: AttachMethod = AttachMethod {
    name: "",
    class: EventClass::Charge,
    hooks: &[],
    needs: &[],
    sees_every_charge: false,
    granularity: |_| 0,
    when: None,
    accompanies: &[],
};

const fn hook(program: &'static str, at: HookPoint, arguments: &'static [Expected]) -> ProgramHook {
    ProgramHook { program, at, arguments }
}

const IDENTITY: &[&str] = &["css_cgroup", "cgroup_kn", "kn_id"];
const WALK: &[&str] =
    &["memcg_css", "memcg_memory", "counter_usage", "counter_max", "counter_parent", "css_parent"];
const MEMBERSHIP: &[&str] = &["task_cgroups", "cset_memory", "task_pid", "task_tgid"];
const NAME: &[&str] = &["task_comm"];
const COUNTER: &[&str] = &["css_ss", "task_cgroups", "cset_memory"];
const OOM_CONTROL: &[&str] = &["oc_memcg", "oc_chosen"];
const CGROUP: &[&str] = &["cgroup_kn", "kn_id", "cgroup_root", "root_hierarchy"];

const EXT4_REQUEST: &[&str] = &["ext4_ar_inode", "ext4_ar_len", "ext4_ar_flags", "task_mm"];
const XFS: &[&str] = &["xfs_inode_vnode", "xfs_irec_start", "xfs_irec_count"];
const XFS_REQUEST: &[&str] = &["xfs_arg_mount", "xfs_arg_len", "xfs_arg_delayed", "xfs_mount_super"];
const INODE_FIELDS: &[&str] = &["inode_sb", "sb_dev", "sb_block_bits"];
const OWNER: &[&str] = &["task_cgroups", "cset_memory"];

const TRY_CHARGE: &[Expected] = &[Struct("page_counter"), Number, Pointer];
const CHARGE: &[Expected] = &[Struct("page_counter"), Number];

const INODE: &[Expected] = &[Struct("inode")];
const INODE_AND_BLOCKS: &[Expected] = &[Struct("inode"), Number];
const EXT4: &str = "tp_btf ext4_allocate_blocks, ext4_free_blocks, ext4_allocate_inode, ext4_free_inode";

const EXT4_RELEASE: ProgramHook =
    hook("disk_ext4_release", Tracepoint("ext4_da_release_space"), INODE_AND_BLOCKS);
const EXT4_RESERVATION_USED: ProgramHook = hook(
    "disk_ext4_reservation_used",
    Tracepoint("ext4_da_update_reserve_space"),
    &[Struct("inode"), Number, Number],
);

const XFS_IOMAP_ALLOC: ProgramHook = hook(
    "disk_xfs_iomap_alloc",
    RawTracepoint("xfs_iomap_alloc"),
    &[Struct("xfs_inode"), Number, Number, Number, Struct("xfs_bmbt_irec")],
);
const XFS_CREATE: ProgramHook = hook("disk_xfs_create", RawTracepoint("xfs_create"), &[Struct("xfs_inode")]);

const OOM_KILL: &[Expected] = &[Struct("oom_control")];
const VICTIM: &[Expected] = &[Struct("task_struct")];
const VICTIM_PID: &[Expected] = &[Number];
