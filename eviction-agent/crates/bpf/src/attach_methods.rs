//! The methods: every way to see a class of events that there is. A new one is a line here and a
//! thin program.
#![forbid(unsafe_code)]

use eviction_node::notify::{memcg_v1, memory_events, psi, timer};

use super::attach_method::{
    AttachMethod, AttachWhen, CompanionProbe, EventClass, Expected, Granularity, HookPoint, ProgramHook,
};

const IDENTITY: &[&str] = &["css_cgroup", "cgroup_kn", "kn_id"];
const WALK: &[&str] =
    &["memcg_css", "memcg_memory", "counter_usage", "counter_max", "counter_parent", "css_parent"];
const MEMBERSHIP: &[&str] = &["task_cgroups", "cset_memory", "task_pid", "task_tgid"];
const NAME: &[&str] = &["task_comm"];
const COUNTER: &[&str] = &["css_ss", "task_cgroups", "cset_memory"];
const OOM_CONTROL: &[&str] = &["oc_memcg", "oc_chosen"];
const CGROUP: &[&str] = &["cgroup_kn", "kn_id", "cgroup_root", "cgroup_level", "root_hierarchy"];

const EXT4_REQUEST: &[&str] = &["ext4_ar_inode", "ext4_ar_len", "ext4_ar_flags", "task_mm"];
const INODE_FIELDS: &[&str] = &["inode_sb", "sb_dev", "sb_block_bits"];
const OWNER: &[&str] = &["task_cgroups", "cset_memory"];

const TRY_CHARGE: &[Expected] = &[Expected::Struct("page_counter"), Expected::Number, Expected::Pointer];
const CHARGE: &[Expected] = &[Expected::Struct("page_counter"), Expected::Number];

const INODE: &[Expected] = &[Expected::Struct("inode")];
const INODE_AND_BLOCKS: &[Expected] = &[Expected::Struct("inode"), Expected::Number];
const EXT4: &str = "tp_btf ext4_allocate_blocks, ext4_free_blocks, ext4_allocate_inode, ext4_free_inode";

const EXT4_RELEASE: ProgramHook = ProgramHook {
    program: "disk_ext4_release",
    at: HookPoint::Tracepoint("ext4_da_release_space"),
    arguments: INODE_AND_BLOCKS,
};

const OOM_KILL: &[Expected] = &[Expected::Struct("oom_control")];
const VICTIM: &[Expected] = &[Expected::Struct("task_struct")];
const VICTIM_PID: &[Expected] = &[Expected::Number];

/// What stands behind the methods for charges on every machine, in the same backends.
pub const FALLBACKS: [&str; 4] = [memcg_v1::NAME, psi::NAME, memory_events::NAME, timer::NAME];

/// The backends that the methods of a class are on: the names that one is chosen from.
pub fn backends(class: EventClass) -> impl Iterator<Item = &'static str> {
    let behind = match class {
        EventClass::Charge | EventClass::Near => FALLBACKS.as_slice(),
        EventClass::Oom
        | EventClass::Task
        | EventClass::Reclaim
        | EventClass::Cgroup
        | EventClass::Disk
        | EventClass::DiskNear => &[],
    };
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
            ProgramHook {
                program: "counter_try_charge_exit",
                at: HookPoint::Exit("page_counter_try_charge"),
                arguments: TRY_CHARGE,
            },
            ProgramHook {
                program: "counter_charge_exit",
                at: HookPoint::Exit("page_counter_charge"),
                arguments: CHARGE,
            },
        ],
        needs: &[IDENTITY, WALK, COUNTER],
        sees_every_charge: true,
        granularity: Granularity::Batch,
        companion: None,
    },
    AttachMethod {
        name: "kprobe page_counter_try_charge",
        class: EventClass::Charge,
        hooks: &[
            // The return first: a try that is seen without it counts as charged.
            ProgramHook {
                program: "counter_try_charge_return",
                at: HookPoint::ReturnProbe("page_counter_try_charge"),
                arguments: TRY_CHARGE,
            },
            ProgramHook {
                program: "counter_try_charge_probe",
                at: HookPoint::Probe("page_counter_try_charge"),
                arguments: TRY_CHARGE,
            },
            ProgramHook {
                program: "counter_charge_probe",
                at: HookPoint::Probe("page_counter_charge"),
                arguments: CHARGE,
            },
        ],
        needs: &[IDENTITY, WALK, COUNTER],
        sees_every_charge: true,
        granularity: Granularity::Batch,
        companion: None,
    },
    AttachMethod {
        name: "tp_btf mod_memcg_state",
        class: EventClass::Charge,
        hooks: &[ProgramHook {
            program: "charge_mod_memcg_state",
            at: HookPoint::Tracepoint("mod_memcg_state"),
            arguments: &[Expected::Struct("mem_cgroup")],
        }],
        needs: &[IDENTITY, WALK],
        sees_every_charge: false,
        granularity: Granularity::PageTable,
        companion: None,
    },
    AttachMethod {
        name: "tp_btf rss_stat",
        class: EventClass::Charge,
        hooks: &[ProgramHook {
            program: "charge_rss_stat",
            at: HookPoint::Tracepoint("rss_stat"),
            // The count is given where the kernel tells once for many pages.
            arguments: &[Expected::Struct("mm_struct"), Expected::Number, Expected::Number],
        }],
        needs: &[IDENTITY, WALK, MEMBERSHIP],
        sees_every_charge: false,
        granularity: Granularity::Batch,
        companion: None,
    },
    AttachMethod {
        name: "fexit page_counter_uncharge",
        class: EventClass::Near,
        hooks: &[ProgramHook {
            program: "counter_uncharge_exit",
            at: HookPoint::Exit("page_counter_uncharge"),
            arguments: CHARGE,
        }],
        needs: &[IDENTITY, WALK, COUNTER],
        sees_every_charge: false,
        granularity: Granularity::None,
        companion: Some(CompanionProbe {
            methods: &["fexit page_counter_try_charge"],
            when: AttachWhen::WayDown,
        }),
    },
    AttachMethod {
        name: "kprobe page_counter_uncharge",
        class: EventClass::Near,
        hooks: &[ProgramHook {
            program: "counter_uncharge_probe",
            at: HookPoint::Probe("page_counter_uncharge"),
            arguments: CHARGE,
        }],
        needs: &[IDENTITY, WALK, COUNTER],
        sees_every_charge: false,
        granularity: Granularity::None,
        // Also where a trampoline takes a program once only.
        companion: Some(CompanionProbe {
            methods: &["kprobe page_counter_try_charge", "fexit page_counter_try_charge"],
            when: AttachWhen::WayDown,
        }),
    },
    AttachMethod {
        name: "tp_btf count_memcg_events",
        class: EventClass::Near,
        hooks: &[ProgramHook {
            program: "near_count_memcg_events",
            at: HookPoint::Tracepoint("count_memcg_events"),
            arguments: &[Expected::Struct("mem_cgroup"), Expected::Number, Expected::Number],
        }],
        needs: &[IDENTITY, WALK],
        sees_every_charge: false,
        granularity: Granularity::Batch,
        companion: Some(CompanionProbe {
            methods: &["tp_btf mod_memcg_state", ""],
            when: AttachWhen::NearLine,
        }),
    },
    AttachMethod {
        name: "fentry oom_kill_process",
        class: EventClass::Oom,
        hooks: &[
            ProgramHook {
                program: "oom_kill_process_exit",
                at: HookPoint::Exit("oom_kill_process"),
                arguments: OOM_KILL,
            },
            ProgramHook {
                program: "oom_kill_process_entry",
                at: HookPoint::Entry("oom_kill_process"),
                arguments: OOM_KILL,
            },
            ProgramHook {
                program: "oom_mark_victim",
                at: HookPoint::Tracepoint("mark_victim"),
                arguments: VICTIM,
            },
        ],
        needs: &[IDENTITY, WALK, MEMBERSHIP, NAME, OOM_CONTROL],
        sees_every_charge: false,
        granularity: Granularity::None,
        companion: None,
    },
    AttachMethod {
        name: "fentry oom_kill_process, oom_kill_memcg_member",
        class: EventClass::Oom,
        hooks: &[
            ProgramHook {
                program: "oom_kill_process_exit",
                at: HookPoint::Exit("oom_kill_process"),
                arguments: OOM_KILL,
            },
            ProgramHook {
                program: "oom_kill_process_entry",
                at: HookPoint::Entry("oom_kill_process"),
                arguments: OOM_KILL,
            },
            ProgramHook {
                program: "oom_kill_process_member",
                at: HookPoint::Entry("oom_kill_memcg_member"),
                arguments: VICTIM,
            },
            ProgramHook {
                program: "oom_mark_victim_pid",
                at: HookPoint::Tracepoint("mark_victim"),
                arguments: VICTIM_PID,
            },
        ],
        needs: &[IDENTITY, WALK, MEMBERSHIP, NAME, OOM_CONTROL],
        sees_every_charge: false,
        granularity: Granularity::None,
        companion: None,
    },
    AttachMethod {
        name: "kprobe oom_kill_process",
        class: EventClass::Oom,
        hooks: &[
            ProgramHook {
                program: "oom_kill_process_exit_probe",
                at: HookPoint::ReturnProbe("oom_kill_process"),
                arguments: OOM_KILL,
            },
            ProgramHook {
                program: "oom_kill_process_entry_probe",
                at: HookPoint::Probe("oom_kill_process"),
                arguments: OOM_KILL,
            },
            ProgramHook {
                program: "oom_mark_victim",
                at: HookPoint::Tracepoint("mark_victim"),
                arguments: VICTIM,
            },
        ],
        needs: &[IDENTITY, WALK, MEMBERSHIP, NAME, OOM_CONTROL],
        sees_every_charge: false,
        granularity: Granularity::None,
        companion: None,
    },
    AttachMethod {
        name: "kprobe oom_kill_process, oom_kill_memcg_member",
        class: EventClass::Oom,
        hooks: &[
            ProgramHook {
                program: "oom_kill_process_exit_probe",
                at: HookPoint::ReturnProbe("oom_kill_process"),
                arguments: OOM_KILL,
            },
            ProgramHook {
                program: "oom_kill_process_entry_probe",
                at: HookPoint::Probe("oom_kill_process"),
                arguments: OOM_KILL,
            },
            ProgramHook {
                program: "oom_kill_process_member_probe",
                at: HookPoint::Probe("oom_kill_memcg_member"),
                arguments: VICTIM,
            },
            ProgramHook {
                program: "oom_mark_victim_pid",
                at: HookPoint::Tracepoint("mark_victim"),
                arguments: VICTIM_PID,
            },
        ],
        needs: &[IDENTITY, WALK, MEMBERSHIP, NAME, OOM_CONTROL],
        sees_every_charge: false,
        granularity: Granularity::None,
        companion: None,
    },
    AttachMethod {
        name: "tp_btf mark_victim(task)",
        class: EventClass::Oom,
        hooks: &[ProgramHook {
            program: "oom_mark_victim",
            at: HookPoint::Tracepoint("mark_victim"),
            arguments: VICTIM,
        }],
        needs: &[IDENTITY, WALK, MEMBERSHIP, NAME],
        sees_every_charge: false,
        granularity: Granularity::None,
        companion: None,
    },
    AttachMethod {
        name: "tp_btf mark_victim(pid)",
        class: EventClass::Oom,
        hooks: &[ProgramHook {
            program: "oom_mark_victim_pid",
            at: HookPoint::Tracepoint("mark_victim"),
            arguments: VICTIM_PID,
        }],
        needs: &[IDENTITY, WALK, MEMBERSHIP],
        sees_every_charge: false,
        granularity: Granularity::None,
        companion: None,
    },
    AttachMethod {
        name: "tp_btf sched_process_fork, sched_process_exec, sched_process_exit",
        class: EventClass::Task,
        hooks: &[
            ProgramHook {
                program: "task_fork",
                at: HookPoint::Tracepoint("sched_process_fork"),
                arguments: &[Expected::Struct("task_struct"), Expected::Struct("task_struct")],
            },
            ProgramHook {
                program: "task_exec",
                at: HookPoint::Tracepoint("sched_process_exec"),
                arguments: &[Expected::Struct("task_struct")],
            },
            ProgramHook {
                program: "task_exit",
                at: HookPoint::Tracepoint("sched_process_exit"),
                arguments: &[Expected::Struct("task_struct")],
            },
        ],
        needs: &[IDENTITY, MEMBERSHIP],
        sees_every_charge: false,
        granularity: Granularity::None,
        companion: None,
    },
    AttachMethod {
        name: "tp_btf mm_vmscan_memcg_reclaim_begin, mm_vmscan_memcg_reclaim_end",
        class: EventClass::Reclaim,
        hooks: &[
            // Nothing is taken from its arguments, which are others on each kernel.
            ProgramHook {
                program: "reclaim_begin",
                at: HookPoint::Tracepoint("mm_vmscan_memcg_reclaim_begin"),
                arguments: &[],
            },
            ProgramHook {
                program: "reclaim_end",
                at: HookPoint::Tracepoint("mm_vmscan_memcg_reclaim_end"),
                arguments: &[Expected::Number],
            },
        ],
        needs: &[IDENTITY, MEMBERSHIP],
        sees_every_charge: false,
        granularity: Granularity::None,
        companion: None,
    },
    AttachMethod {
        name: "tp_btf cgroup_mkdir, cgroup_rmdir",
        class: EventClass::Cgroup,
        hooks: &[
            ProgramHook {
                program: "cgroup_mkdir",
                at: HookPoint::Tracepoint("cgroup_mkdir"),
                arguments: &[Expected::Struct("cgroup"), Expected::Pointer],
            },
            ProgramHook {
                program: "cgroup_rmdir",
                at: HookPoint::Tracepoint("cgroup_rmdir"),
                arguments: &[Expected::Struct("cgroup"), Expected::Pointer],
            },
        ],
        needs: &[CGROUP],
        sees_every_charge: false,
        granularity: Granularity::None,
        companion: None,
    },
    AttachMethod {
        name: EXT4,
        class: EventClass::Disk,
        hooks: &[
            ProgramHook {
                program: "disk_ext4_allocate",
                at: HookPoint::Tracepoint("ext4_allocate_blocks"),
                arguments: &[Expected::Struct("ext4_allocation_request")],
            },
            ProgramHook {
                program: "disk_ext4_free",
                at: HookPoint::Tracepoint("ext4_free_blocks"),
                arguments: &[Expected::Struct("inode"), Expected::Number, Expected::Number],
            },
            ProgramHook {
                program: "disk_ext4_allocate_inode",
                at: HookPoint::Tracepoint("ext4_allocate_inode"),
                arguments: INODE,
            },
            ProgramHook {
                program: "disk_ext4_free_inode",
                at: HookPoint::Tracepoint("ext4_free_inode"),
                arguments: INODE,
            },
        ],
        needs: &[IDENTITY, OWNER, INODE_FIELDS, EXT4_REQUEST],
        sees_every_charge: false,
        granularity: Granularity::None,
        companion: None,
    },
    AttachMethod {
        name: "tp_btf ext4_da_reserve_space(inode, blocks), ext4_da_release_space",
        class: EventClass::DiskNear,
        hooks: &[
            ProgramHook {
                program: "disk_ext4_reserve",
                at: HookPoint::Tracepoint("ext4_da_reserve_space"),
                arguments: INODE_AND_BLOCKS,
            },
            EXT4_RELEASE,
        ],
        needs: &[IDENTITY, OWNER, INODE_FIELDS],
        sees_every_charge: true,
        granularity: Granularity::None,
        companion: Some(CompanionProbe { methods: &[EXT4], when: AttachWhen::NearDisk }),
    },
    AttachMethod {
        name: "tp_btf ext4_da_reserve_space(inode), ext4_da_release_space",
        class: EventClass::DiskNear,
        hooks: &[
            ProgramHook {
                program: "disk_ext4_reserve_one",
                at: HookPoint::Tracepoint("ext4_da_reserve_space"),
                arguments: INODE,
            },
            EXT4_RELEASE,
        ],
        needs: &[IDENTITY, OWNER, INODE_FIELDS],
        sees_every_charge: true,
        granularity: Granularity::None,
        companion: Some(CompanionProbe { methods: &[EXT4], when: AttachWhen::NearDisk }),
    },
];
