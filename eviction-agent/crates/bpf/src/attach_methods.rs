//! The table of attach methods: every way to see a class of events that there is, and what it needs of the
//! kernel. A new one is an entry here and a thin program.
#![forbid(unsafe_code)]

use std::fmt;

use eviction_common::{BATCH_PAGES, MIN_CHANGE_PAGES};
use eviction_node::notify::{memcg_v1, memory_events, psi, timer};

use super::btf::Argument;
use Expected::{Number, Pointer, Struct};
use HookPoint::{Entry, Exit, Probe, ReturnProbe, Tracepoint};

eviction_core::named_enum! {
    /// What a program tells about.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum EventClass {
        /// Charges of memory cgroups: crossings and the dirty set.
        Charge = "charge",
        /// What the method for charges does not see, by a hook that costs too much to be attached all
        /// the time.
        ChargeNear = "charge near",
        /// Out-of-memory kills.
        Oom = "oom",
        /// Forks, execs and exits.
        Task = "task",
        /// Time spent in memcg direct reclaim.
        Reclaim = "reclaim",
        /// Cgroups made and removed.
        Cgroup = "cgroup",
        /// Blocks and inodes of ext4: allocated and freed.
        Disk = "disk",
        /// Blocks of ext4 that buffered writes reserve, by hooks that cost too much to be attached all the time.
        DiskNear = "disk near",
        /// Blocks and inodes of xfs: reserved, allocated and created.
        DiskXfs = "disk xfs",
    }
}

impl EventClass {
    /// The type of the file systems that it is about; it is loaded where the node has one ([`LoadOptions::disks`]).
    ///
    /// [`LoadOptions::disks`]: crate::LoadOptions::disks
    pub const fn file_system(self) -> Option<&'static str> {
        match self {
            Self::Disk | Self::DiskNear => Some("ext4"),
            Self::DiskXfs => Some("xfs"),
            _ => None,
        }
    }
}

impl fmt::Display for EventClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One way to see a class of events: programs that are attached together.
#[derive(Debug)]
pub struct AttachMethod {
    /// Its name in logs, metrics, `check` and options.
    pub name: &'static str,
    /// What it tells about.
    pub class: EventClass,
    /// Its programs.
    pub hooks: &'static [ProgramHook],
    /// The members without which it is of no use, by the names of their fields in
    /// [`eviction_common::Offsets`].
    pub(super) needs: &'static [&'static [&'static str]],
    pub(super) sees_every_charge: bool,
    pub(super) granularity: Granularity,
    /// Of a hook for a time, beside what and when.
    pub(super) companion: Option<CompanionProbe>,
}

/// What a hook that is attached for a time is good for.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompanionProbe {
    /// The methods for charges, or for disks, that it goes with.
    pub(super) methods: &'static [&'static str],
    /// When it is attached.
    pub(super) when: AttachWhen,
}

/// When a hook for a time is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttachWhen {
    /// While a line is near: it sees growth that the other passes over.
    NearThreshold,
    /// While it is to be seen how pressure ends: the other sees no memory given back.
    OnRelease,
    /// While a threshold on a disk is near: the other sees what is written by write-back only.
    NearDiskThreshold,
}

/// How far a cgroup can grow before a method sees it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Granularity {
    /// That says nothing about it.
    None,
    /// What one page of page tables maps, and what is passed over.
    PageTable,
    /// What each CPU charges ahead at once.
    Batch,
}

impl Granularity {
    pub(super) fn bytes(self, page_bytes: u64) -> u64 {
        match self {
            Self::None => 0,
            // An entry is 8 bytes on every machine that BPF programs are compiled for.
            Self::PageTable => page_bytes / 8 * page_bytes + MIN_CHANGE_PAGES * page_bytes,
            Self::Batch => BATCH_PAGES * page_bytes,
        }
    }
}

/// One program of the object, and where it goes.
#[derive(Debug)]
pub struct ProgramHook {
    /// Its name in the object.
    pub program: &'static str,
    /// What it is attached to.
    pub at: HookPoint,
    /// What its first arguments have to be.
    pub(super) arguments: &'static [Expected],
}

/// A place in the kernel that a program is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookPoint {
    /// A tracepoint, by BTF.
    Tracepoint(&'static str),
    /// Where a function begins, by BTF and a trampoline.
    Entry(&'static str),
    /// Where a function returns, by the same.
    Exit(&'static str),
    /// Where a function begins, by a breakpoint or what stands for one.
    Probe(&'static str),
    /// Where a function returns, by the same.
    ReturnProbe(&'static str),
}

impl HookPoint {
    /// The tracepoint, if it is one.
    pub fn tracepoint(self) -> Option<&'static str> {
        match self {
            Self::Tracepoint(name) => Some(name),
            Self::Entry(_) | Self::Exit(_) | Self::Probe(_) | Self::ReturnProbe(_) => None,
        }
    }

    /// The function, if it is one.
    pub fn function(self) -> Option<&'static str> {
        match self {
            Self::Tracepoint(_) => None,
            Self::Entry(name) | Self::Exit(name) | Self::Probe(name) | Self::ReturnProbe(name) => Some(name),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Expected {
    Struct(&'static str),
    Pointer,
    Number,
}

impl Expected {
    pub(super) fn is(self, argument: &Argument) -> bool {
        match (self, argument) {
            (Self::Struct(name), Argument::Struct(found)) => name == found,
            (Self::Pointer, Argument::Pointer) | (Self::Number, Argument::Number) => true,
            _ => false,
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Struct(name) => write!(f, "struct {name} *"),
            Self::Pointer => f.write_str("pointer"),
            Self::Number => f.write_str("number"),
        }
    }
}

/// What most methods say.
const PLAIN: AttachMethod = AttachMethod {
    name: "",
    class: EventClass::Charge,
    hooks: &[],
    needs: &[],
    sees_every_charge: false,
    granularity: Granularity::None,
    companion: None,
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
const CGROUP: &[&str] = &["cgroup_kn", "kn_id", "cgroup_root", "cgroup_level", "root_hierarchy"];

const EXT4_REQUEST: &[&str] = &["ext4_ar_inode", "ext4_ar_len", "ext4_ar_flags", "task_mm"];
const XFS: &[&str] = &[
    "xfs_inode_vnode",
    "xfs_irec_start",
    "xfs_irec_count",
    "xfs_arg_mount",
    "xfs_arg_len",
    "xfs_arg_delayed",
    "xfs_mount_super",
];
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

const XFS_EXTENT: &[Expected] = &[Struct("xfs_inode"), Number, Number, Number, Struct("xfs_bmbt_irec")];

const OOM_KILL: &[Expected] = &[Struct("oom_control")];
const VICTIM: &[Expected] = &[Struct("task_struct")];
const VICTIM_PID: &[Expected] = &[Number];

/// What stands behind the methods for charges on every machine, in the same backends.
pub const FALLBACKS: [&str; 4] = [memcg_v1::NAME, psi::NAME, memory_events::NAME, timer::NAME];

/// The backends that the methods of a class are on: the names that one is chosen from.
pub fn backends(class: EventClass) -> impl Iterator<Item = &'static str> {
    let is_of_charges = matches!(class, EventClass::Charge | EventClass::ChargeNear);
    let behind = if is_of_charges { FALLBACKS.as_slice() } else { &[] };
    let own = ATTACH_METHODS.iter().filter(move |method| method.class == class).map(|method| method.name);
    own.chain(behind.iter().copied())
}

/// The name of every method that can be asked for or denied.
pub fn names() -> impl Iterator<Item = &'static str> {
    ATTACH_METHODS.iter().map(|method| method.name).chain(FALLBACKS)
}

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
        granularity: Granularity::Batch,
        ..PLAIN
    },
    AttachMethod {
        name: "kprobe page_counter_try_charge",
        class: EventClass::Charge,
        hooks: &[
            // The return first: a try that is seen without it counts as charged.
            hook("counter_try_charge_return", ReturnProbe("page_counter_try_charge"), TRY_CHARGE),
            hook("counter_try_charge_probe", Probe("page_counter_try_charge"), TRY_CHARGE),
            hook("counter_charge_probe", Probe("page_counter_charge"), CHARGE),
        ],
        needs: &[IDENTITY, WALK, COUNTER],
        sees_every_charge: true,
        granularity: Granularity::Batch,
        ..PLAIN
    },
    AttachMethod {
        name: "tp_btf mod_memcg_state",
        class: EventClass::Charge,
        hooks: &[hook("charge_mod_memcg_state", Tracepoint("mod_memcg_state"), &[Struct("mem_cgroup")])],
        needs: &[IDENTITY, WALK],
        granularity: Granularity::PageTable,
        ..PLAIN
    },
    AttachMethod {
        name: "tp_btf rss_stat",
        class: EventClass::Charge,
        // The count is given where the kernel tells once for many pages.
        hooks: &[hook("charge_rss_stat", Tracepoint("rss_stat"), &[Struct("mm_struct"), Number, Number])],
        needs: &[IDENTITY, WALK, MEMBERSHIP],
        granularity: Granularity::Batch,
        ..PLAIN
    },
    AttachMethod {
        name: "fexit page_counter_uncharge",
        class: EventClass::ChargeNear,
        hooks: &[hook("counter_uncharge_exit", Exit("page_counter_uncharge"), CHARGE)],
        needs: &[IDENTITY, WALK, COUNTER],
        companion: Some(CompanionProbe {
            methods: &["fexit page_counter_try_charge"],
            when: AttachWhen::OnRelease,
        }),
        ..PLAIN
    },
    AttachMethod {
        name: "kprobe page_counter_uncharge",
        class: EventClass::ChargeNear,
        hooks: &[hook("counter_uncharge_probe", Probe("page_counter_uncharge"), CHARGE)],
        needs: &[IDENTITY, WALK, COUNTER],
        // Also where a trampoline takes a program once only.
        companion: Some(CompanionProbe {
            methods: &["kprobe page_counter_try_charge", "fexit page_counter_try_charge"],
            when: AttachWhen::OnRelease,
        }),
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
        granularity: Granularity::Batch,
        companion: Some(CompanionProbe {
            methods: &["tp_btf mod_memcg_state", ""],
            when: AttachWhen::NearThreshold,
        }),
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
            // Nothing is taken from its arguments, which are others on each kernel.
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
        sees_every_charge: true,
        companion: Some(CompanionProbe { methods: &[EXT4], when: AttachWhen::NearDiskThreshold }),
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
        sees_every_charge: true,
        companion: Some(CompanionProbe { methods: &[EXT4], when: AttachWhen::NearDiskThreshold }),
        ..PLAIN
    },
    AttachMethod {
        name: "tp_btf xfs_iomap_alloc, xfs_alloc_vextent_finish, xfs_create",
        class: EventClass::DiskXfs,
        hooks: &[
            hook("disk_xfs_iomap_alloc", Tracepoint("xfs_iomap_alloc"), XFS_EXTENT),
            hook("disk_xfs_allocate", Tracepoint("xfs_alloc_vextent_finish"), &[Struct("xfs_alloc_arg")]),
            hook("disk_xfs_create", Tracepoint("xfs_create"), &[Struct("xfs_inode")]),
        ],
        needs: &[IDENTITY, OWNER, INODE_FIELDS, XFS],
        ..PLAIN
    },
];
