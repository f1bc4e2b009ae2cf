//! The rungs: every way to see a family of events that there is. A new one is a line here and a
//! thin program.
#![forbid(unsafe_code)]

use eviction_node::eventfd;
use eviction_node::timer;
use eviction_node::trigger;

use super::plan::{At, Beside, Expected, Family, Grain, Hook, Rung, When};

const IDENTITY: &[&str] = &["css_cgroup", "cgroup_kn", "kn_id"];
const WALK: &[&str] =
    &["memcg_css", "memcg_memory", "counter_usage", "counter_max", "counter_parent", "css_parent"];
const MEMBERSHIP: &[&str] = &["task_cgroups", "cset_memory", "task_pid", "task_tgid"];
const NAME: &[&str] = &["task_comm"];
const COUNTER: &[&str] = &["css_ss", "task_cgroups", "cset_memory"];
const OOM_CONTROL: &[&str] = &["oc_memcg", "oc_chosen"];
const CGROUP: &[&str] = &["cgroup_kn", "kn_id", "cgroup_root", "cgroup_level", "root_hierarchy"];

const TRY_CHARGE: &[Expected] = &[Expected::Struct("page_counter"), Expected::Number, Expected::Pointer];
const CHARGE: &[Expected] = &[Expected::Struct("page_counter"), Expected::Number];

const OOM_KILL: &[Expected] = &[Expected::Struct("oom_control")];
const VICTIM: &[Expected] = &[Expected::Struct("task_struct")];
const VICTIM_PID: &[Expected] = &[Expected::Number];

/// What stands behind the rungs for charges on every machine, in the same ladder.
pub const FALLBACKS: [&str; 4] = [eventfd::RUNG, trigger::PRESSURE, trigger::EVENTS, timer::RUNG];

/// The ladder that the rungs of a family are on: the names that one is chosen from.
pub fn ladder(family: Family) -> impl Iterator<Item = &'static str> {
    let behind = match family {
        Family::Charge | Family::Near => FALLBACKS.as_slice(),
        Family::Oom | Family::Task | Family::Reclaim | Family::Cgroup => &[],
    };
    let own = RUNGS.iter().filter(move |rung| rung.family == family).map(|rung| rung.name);
    own.chain(behind.iter().copied())
}

/// The name of every rung that can be asked for or denied.
pub fn names() -> impl Iterator<Item = &'static str> {
    RUNGS.iter().map(|rung| rung.name).chain(FALLBACKS)
}

/// Every rung, the best of each family first.
pub static RUNGS: &[Rung] = &[
    Rung {
        name: "fexit page_counter_try_charge",
        family: Family::Charge,
        hooks: &[
            Hook {
                program: "counter_try_charge_exit",
                at: At::Exit("page_counter_try_charge"),
                arguments: TRY_CHARGE,
            },
            Hook { program: "counter_charge_exit", at: At::Exit("page_counter_charge"), arguments: CHARGE },
        ],
        needs: &[IDENTITY, WALK, COUNTER],
        sees_every_charge: true,
        grain: Grain::Batch,
        beside: None,
    },
    Rung {
        name: "kprobe page_counter_try_charge",
        family: Family::Charge,
        hooks: &[
            // The return first: a try that is seen without it counts as charged.
            Hook {
                program: "counter_try_charge_return",
                at: At::ReturnProbe("page_counter_try_charge"),
                arguments: TRY_CHARGE,
            },
            Hook {
                program: "counter_try_charge_probe",
                at: At::Probe("page_counter_try_charge"),
                arguments: TRY_CHARGE,
            },
            Hook { program: "counter_charge_probe", at: At::Probe("page_counter_charge"), arguments: CHARGE },
        ],
        needs: &[IDENTITY, WALK, COUNTER],
        sees_every_charge: true,
        grain: Grain::Batch,
        beside: None,
    },
    Rung {
        name: "tp_btf mod_memcg_state",
        family: Family::Charge,
        hooks: &[Hook {
            program: "charge_mod_memcg_state",
            at: At::Tracepoint("mod_memcg_state"),
            arguments: &[Expected::Struct("mem_cgroup")],
        }],
        needs: &[IDENTITY, WALK],
        sees_every_charge: false,
        grain: Grain::PageTable,
        beside: None,
    },
    Rung {
        name: "tp_btf rss_stat",
        family: Family::Charge,
        hooks: &[Hook {
            program: "charge_rss_stat",
            at: At::Tracepoint("rss_stat"),
            // The count is given where the kernel tells once for many pages.
            arguments: &[Expected::Struct("mm_struct"), Expected::Number, Expected::Number],
        }],
        needs: &[IDENTITY, WALK, MEMBERSHIP],
        sees_every_charge: false,
        grain: Grain::Batch,
        beside: None,
    },
    Rung {
        name: "fexit page_counter_uncharge",
        family: Family::Near,
        hooks: &[Hook {
            program: "counter_uncharge_exit",
            at: At::Exit("page_counter_uncharge"),
            arguments: CHARGE,
        }],
        needs: &[IDENTITY, WALK, COUNTER],
        sees_every_charge: false,
        grain: Grain::None,
        beside: Some(Beside { rungs: &["fexit page_counter_try_charge"], when: When::WayDown }),
    },
    Rung {
        name: "kprobe page_counter_uncharge",
        family: Family::Near,
        hooks: &[Hook {
            program: "counter_uncharge_probe",
            at: At::Probe("page_counter_uncharge"),
            arguments: CHARGE,
        }],
        needs: &[IDENTITY, WALK, COUNTER],
        sees_every_charge: false,
        grain: Grain::None,
        // Also where a trampoline takes a program once only.
        beside: Some(Beside {
            rungs: &["kprobe page_counter_try_charge", "fexit page_counter_try_charge"],
            when: When::WayDown,
        }),
    },
    Rung {
        name: "tp_btf count_memcg_events",
        family: Family::Near,
        hooks: &[Hook {
            program: "near_count_memcg_events",
            at: At::Tracepoint("count_memcg_events"),
            arguments: &[Expected::Struct("mem_cgroup"), Expected::Number, Expected::Number],
        }],
        needs: &[IDENTITY, WALK],
        sees_every_charge: false,
        grain: Grain::Batch,
        beside: Some(Beside { rungs: &["tp_btf mod_memcg_state", ""], when: When::NearLine }),
    },
    Rung {
        name: "fentry oom_kill_process",
        family: Family::Oom,
        hooks: &[
            Hook { program: "choice_done", at: At::Exit("oom_kill_process"), arguments: OOM_KILL },
            Hook { program: "choice_made", at: At::Entry("oom_kill_process"), arguments: OOM_KILL },
            Hook { program: "oom_mark_victim", at: At::Tracepoint("mark_victim"), arguments: VICTIM },
        ],
        needs: &[IDENTITY, WALK, MEMBERSHIP, NAME, OOM_CONTROL],
        sees_every_charge: false,
        grain: Grain::None,
        beside: None,
    },
    Rung {
        name: "fentry oom_kill_process, oom_kill_memcg_member",
        family: Family::Oom,
        hooks: &[
            Hook { program: "choice_done", at: At::Exit("oom_kill_process"), arguments: OOM_KILL },
            Hook { program: "choice_made", at: At::Entry("oom_kill_process"), arguments: OOM_KILL },
            Hook { program: "choice_member", at: At::Entry("oom_kill_memcg_member"), arguments: VICTIM },
            Hook { program: "oom_mark_victim_pid", at: At::Tracepoint("mark_victim"), arguments: VICTIM_PID },
        ],
        needs: &[IDENTITY, WALK, MEMBERSHIP, NAME, OOM_CONTROL],
        sees_every_charge: false,
        grain: Grain::None,
        beside: None,
    },
    Rung {
        name: "kprobe oom_kill_process",
        family: Family::Oom,
        hooks: &[
            Hook {
                program: "choice_done_probe",
                at: At::ReturnProbe("oom_kill_process"),
                arguments: OOM_KILL,
            },
            Hook { program: "choice_made_probe", at: At::Probe("oom_kill_process"), arguments: OOM_KILL },
            Hook { program: "oom_mark_victim", at: At::Tracepoint("mark_victim"), arguments: VICTIM },
        ],
        needs: &[IDENTITY, WALK, MEMBERSHIP, NAME, OOM_CONTROL],
        sees_every_charge: false,
        grain: Grain::None,
        beside: None,
    },
    Rung {
        name: "kprobe oom_kill_process, oom_kill_memcg_member",
        family: Family::Oom,
        hooks: &[
            Hook {
                program: "choice_done_probe",
                at: At::ReturnProbe("oom_kill_process"),
                arguments: OOM_KILL,
            },
            Hook { program: "choice_made_probe", at: At::Probe("oom_kill_process"), arguments: OOM_KILL },
            Hook {
                program: "choice_member_probe",
                at: At::Probe("oom_kill_memcg_member"),
                arguments: VICTIM,
            },
            Hook { program: "oom_mark_victim_pid", at: At::Tracepoint("mark_victim"), arguments: VICTIM_PID },
        ],
        needs: &[IDENTITY, WALK, MEMBERSHIP, NAME, OOM_CONTROL],
        sees_every_charge: false,
        grain: Grain::None,
        beside: None,
    },
    Rung {
        name: "tp_btf mark_victim(task)",
        family: Family::Oom,
        hooks: &[Hook { program: "oom_mark_victim", at: At::Tracepoint("mark_victim"), arguments: VICTIM }],
        needs: &[IDENTITY, WALK, MEMBERSHIP, NAME],
        sees_every_charge: false,
        grain: Grain::None,
        beside: None,
    },
    Rung {
        name: "tp_btf mark_victim(pid)",
        family: Family::Oom,
        hooks: &[Hook {
            program: "oom_mark_victim_pid",
            at: At::Tracepoint("mark_victim"),
            arguments: VICTIM_PID,
        }],
        needs: &[IDENTITY, WALK, MEMBERSHIP],
        sees_every_charge: false,
        grain: Grain::None,
        beside: None,
    },
    Rung {
        name: "tp_btf sched_process_fork, sched_process_exec, sched_process_exit",
        family: Family::Task,
        hooks: &[
            Hook {
                program: "task_fork",
                at: At::Tracepoint("sched_process_fork"),
                arguments: &[Expected::Struct("task_struct"), Expected::Struct("task_struct")],
            },
            Hook {
                program: "task_exec",
                at: At::Tracepoint("sched_process_exec"),
                arguments: &[Expected::Struct("task_struct")],
            },
            Hook {
                program: "task_exit",
                at: At::Tracepoint("sched_process_exit"),
                arguments: &[Expected::Struct("task_struct")],
            },
        ],
        needs: &[IDENTITY, MEMBERSHIP],
        sees_every_charge: false,
        grain: Grain::None,
        beside: None,
    },
    Rung {
        name: "tp_btf mm_vmscan_memcg_reclaim_begin, mm_vmscan_memcg_reclaim_end",
        family: Family::Reclaim,
        hooks: &[
            // Nothing is taken from its arguments, which are others on each kernel.
            Hook {
                program: "reclaim_begin",
                at: At::Tracepoint("mm_vmscan_memcg_reclaim_begin"),
                arguments: &[],
            },
            Hook {
                program: "reclaim_end",
                at: At::Tracepoint("mm_vmscan_memcg_reclaim_end"),
                arguments: &[Expected::Number],
            },
        ],
        needs: &[IDENTITY, MEMBERSHIP],
        sees_every_charge: false,
        grain: Grain::None,
        beside: None,
    },
    Rung {
        name: "tp_btf cgroup_mkdir, cgroup_rmdir",
        family: Family::Cgroup,
        hooks: &[
            Hook {
                program: "cgroup_made",
                at: At::Tracepoint("cgroup_mkdir"),
                arguments: &[Expected::Struct("cgroup"), Expected::Pointer],
            },
            Hook {
                program: "cgroup_gone",
                at: At::Tracepoint("cgroup_rmdir"),
                arguments: &[Expected::Struct("cgroup"), Expected::Pointer],
            },
        ],
        needs: &[CGROUP],
        sees_every_charge: false,
        grain: Grain::None,
        beside: None,
    },
];
