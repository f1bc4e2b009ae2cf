//! The rungs: every way to see a family of events that there is. A new one is a line here and a
//! thin program.
#![forbid(unsafe_code)]

use super::plan::{Expected, Family, Grain, Hook, Rung};

const IDENTITY: &[&str] = &["css_cgroup", "cgroup_kn", "kn_id"];
const WALK: &[&str] =
    &["memcg_css", "memcg_memory", "counter_usage", "counter_max", "counter_parent", "css_parent"];
const MEMBERSHIP: &[&str] = &["task_cgroups", "cset_memory", "task_pid", "task_tgid"];
const NAME: &[&str] = &["task_comm"];
const CGROUP: &[&str] = &["cgroup_kn", "kn_id", "cgroup_root", "cgroup_level", "root_hierarchy"];

/// Every rung, the best of each family first.
pub static RUNGS: &[Rung] = &[
    Rung {
        name: "tp_btf mod_memcg_state",
        family: Family::Charge,
        hooks: &[Hook {
            program: "charge_mod_memcg_state",
            tracepoint: "mod_memcg_state",
            arguments: &[Expected::Struct("mem_cgroup")],
        }],
        needs: &[IDENTITY, WALK],
        sees_every_charge: false,
        grain: Grain::PageTable,
    },
    Rung {
        name: "tp_btf count_memcg_events",
        family: Family::Near,
        hooks: &[Hook {
            program: "near_count_memcg_events",
            tracepoint: "count_memcg_events",
            arguments: &[Expected::Struct("mem_cgroup")],
        }],
        needs: &[IDENTITY, WALK],
        sees_every_charge: false,
        grain: Grain::Batch,
    },
    Rung {
        name: "tp_btf mark_victim(task)",
        family: Family::Oom,
        hooks: &[Hook {
            program: "oom_mark_victim",
            tracepoint: "mark_victim",
            arguments: &[Expected::Struct("task_struct")],
        }],
        needs: &[IDENTITY, WALK, MEMBERSHIP, NAME],
        sees_every_charge: false,
        grain: Grain::None,
    },
    Rung {
        name: "tp_btf mark_victim(pid)",
        family: Family::Oom,
        hooks: &[Hook {
            program: "oom_mark_victim_pid",
            tracepoint: "mark_victim",
            arguments: &[Expected::Number],
        }],
        needs: &[IDENTITY, WALK, MEMBERSHIP],
        sees_every_charge: false,
        grain: Grain::None,
    },
    Rung {
        name: "tp_btf sched_process_fork, sched_process_exit",
        family: Family::Task,
        hooks: &[
            Hook {
                program: "task_fork",
                tracepoint: "sched_process_fork",
                arguments: &[Expected::Struct("task_struct"), Expected::Struct("task_struct")],
            },
            Hook {
                program: "task_exit",
                tracepoint: "sched_process_exit",
                arguments: &[Expected::Struct("task_struct")],
            },
        ],
        needs: &[IDENTITY, MEMBERSHIP],
        sees_every_charge: false,
        grain: Grain::None,
    },
    Rung {
        name: "tp_btf cgroup_mkdir, cgroup_rmdir",
        family: Family::Cgroup,
        hooks: &[
            Hook {
                program: "cgroup_made",
                tracepoint: "cgroup_mkdir",
                arguments: &[Expected::Struct("cgroup"), Expected::Pointer],
            },
            Hook {
                program: "cgroup_gone",
                tracepoint: "cgroup_rmdir",
                arguments: &[Expected::Struct("cgroup"), Expected::Pointer],
            },
        ],
        needs: &[CGROUP],
        sees_every_charge: false,
        grain: Grain::None,
    },
];
