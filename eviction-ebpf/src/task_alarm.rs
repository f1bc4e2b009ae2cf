//! Task alarms: a cgroup that forks too fast, a pids cgroup near its limit, or a node at its threshold.
//! Checked at each fork; each alarm is sent once, with a wake-up.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns},
};
use eviction_common::{
    ABSENT, Alarm, AlarmKey, Counter, Kind, MAX_ANCESTORS, PIDS_CACHE_NS, PIDS_LIMIT_MAX, PIDS_NEAR_FRACTION,
    PidsCache, STORM_WINDOW_NS, TaskAlarm, TaskStats,
};

use crate::{
    config::{offset, storm_forks},
    events::{URGENT, header, lost},
    maps::{ALARMS_SENT, EVENTS, HOST_TASKS, PID_THRESHOLD, PIDS_CACHE, add, count},
    memcg::id_of_css,
    probe_read::{Direct, Probe, Read},
};

/// The error for an existing key (EEXIST in asm-generic/errno-base.h).
const EXISTS: i32 = -17;

/// Handles the creation of `task` in the memory cgroup `memcg_id`. `stats` is the map's value of that cgroup,
/// if the map had a free entry.
///
/// # Safety
/// `task` is a pointer to a `task_struct`.
#[inline(always)]
pub(crate) unsafe fn on_fork(task: *const u8, memcg_id: u64, stats: Option<*mut TaskStats>) {
    // SAFETY: a helper without arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    if let Some(stats) = stats {
        check_fork_rate(stats, memcg_id, now_ns);
    }
    let forks = check_host_threshold(memcg_id, now_ns);
    // SAFETY: the caller's promise.
    unsafe { check_pids_limits(task, memcg_id, forks, now_ns) };
}

/// Counts the exit of a task.
#[inline(always)]
pub(crate) fn on_exit() {
    if let Some(host) = HOST_TASKS.get_ptr_mut(0) {
        // SAFETY: the map's value.
        unsafe { add(&raw mut (*host).exits, 1) };
    }
}

#[inline(always)]
fn check_fork_rate(stats: *mut TaskStats, memcg_id: u64, now_ns: u64) {
    let bound = storm_forks() as u64;
    if bound == 0 {
        return;
    }
    // SAFETY: the map's value; volatile, since other CPUs write it.
    let forks = unsafe {
        let since_ns = core::ptr::read_volatile(&raw const (*stats).window_since_ns);
        // Another CPU may have started the window just after this CPU read the time.
        if now_ns.wrapping_sub(since_ns) as i64 >= STORM_WINDOW_NS as i64 {
            core::ptr::write_volatile(&raw mut (*stats).window_since_ns, now_ns);
            core::ptr::write_volatile(&raw mut (*stats).window_forks, 1);
            return;
        }
        add(&raw mut (*stats).window_forks, 1);
        core::ptr::read_volatile(&raw const (*stats).window_forks)
    };
    if forks >= bound {
        let key = AlarmKey { id: memcg_id, alarm: Alarm::ForkStorm as u32, pad: 0 };
        send_alarm(&key, &AlarmContext { memcg_id, tasks: forks, bound, now_ns });
    }
}

/// Counts the fork and checks the threshold for the machine. Returns the number of forks.
#[inline(always)]
fn check_host_threshold(memcg_id: u64, now_ns: u64) -> u64 {
    let (Some(host), Some(setting)) = (HOST_TASKS.get_ptr_mut(0), PID_THRESHOLD.get_ptr(0)) else {
        return 0;
    };
    // SAFETY: values of maps; volatile, since other CPUs and user space write them.
    let (tasks, threshold, generation) = unsafe {
        add(&raw mut (*host).forks, 1);
        (
            core::ptr::read_volatile(host),
            core::ptr::read_volatile(&raw const (*setting).host_threshold),
            core::ptr::read_volatile(&raw const (*setting).generation),
        )
    };
    let net = tasks.net();
    if generation != 0 && net >= threshold {
        let key = AlarmKey { id: generation, alarm: Alarm::NodeTasks as u32, pad: 0 };
        send_alarm(&key, &AlarmContext { memcg_id, tasks: net as u64, bound: threshold as u64, now_ns });
    }
    tasks.forks
}

/// Checks every pids cgroup of the task, unless so few tasks were created since this CPU last did so that
/// none can be near its limit. The task counts are the kernel's own and include the new task. Forks that a
/// limit rejected do not get here. The kernel adds a task to these counts before the task is added to
/// `forks`, which was read first. So no cgroup can have grown by more than the number of forks since then.
///
/// # Safety
/// `task` is a pointer to a `task_struct`.
#[inline(always)]
unsafe fn check_pids_limits(task: *const u8, memcg_id: u64, forks: u64, now_ns: u64) {
    if offset!(cset_pids) == ABSENT || offset!(pids_counter) == ABSENT || offset!(pids_limit) == ABSENT {
        return;
    }
    let (Some(setting), Some(last)) = (PID_THRESHOLD.get_ptr(0), PIDS_CACHE.get_ptr_mut(0)) else {
        return;
    };
    // SAFETY: the caller's promise, and the types of the members; values of maps, one of which user space writes.
    unsafe {
        let set: usize = Direct::at(task, offset!(task_cgroups));
        if set == 0 {
            return;
        }
        let css: usize = Direct::at(set as *const u8, offset!(cset_pids));
        let now = core::ptr::read_volatile(&raw const (*setting).generation);
        let PidsCache { group, until_forks, until_ns, generation } = *last;
        if group != css as u64 || generation != now || forks >= until_forks || now_ns >= until_ns {
            compare_with_limits(css as *const u8, memcg_id, forks, now_ns);
        }
    }
}

/// Checks this pids cgroup and its ancestors. A separate function, as it is called rarely.
#[inline(never)]
fn compare_with_limits(css: *const u8, memcg_id: u64, forks: u64, now_ns: u64) {
    let (Some(setting), Some(last)) = (PID_THRESHOLD.get_ptr(0), PIDS_CACHE.get_ptr_mut(0)) else {
        return;
    };
    // SAFETY: the map's value; volatile, since user space writes it.
    let (cgroup_id, threshold, generation) = unsafe {
        (
            core::ptr::read_volatile(&raw const (*setting).cgroup_id),
            core::ptr::read_volatile(&raw const (*setting).cgroup_threshold),
            core::ptr::read_volatile(&raw const (*setting).generation),
        )
    };
    let has_threshold = cgroup_id != 0 && generation != 0;
    let lowest = css as u64;
    let mut css = css as usize;
    // SAFETY: the types of the members. A css is the first member of its `pids_cgroup` (the loader checks
    // it), and the helper takes any address.
    unsafe {
        // The number of further tasks that bring one of them near its limit.
        let mut left = u64::MAX;
        for _ in 0..MAX_ANCESTORS {
            if css == 0 {
                break;
            }
            let group = css as *const u8;
            css = Direct::at(group, offset!(css_parent));
            if css == 0 {
                // The kernel does not count the tasks of the root.
                break;
            }
            let PidsUsage { tasks, limit } = read_pids(group);
            let near = if limit <= PIDS_LIMIT_MAX { limit - limit / PIDS_NEAR_FRACTION } else { u64::MAX };
            let (is_near, may_be_over) = (tasks >= near, has_threshold && tasks >= threshold);
            if !is_near {
                left = min(left, near - tasks);
            }
            if has_threshold && !may_be_over {
                left = min(left, threshold - tasks);
            }
            // Reading the id takes three more reads, of memory that is not used otherwise here.
            if !is_near && !may_be_over {
                continue;
            }
            left = 0;
            let id = id_of_css::<Direct>(group);
            if is_near {
                let key = AlarmKey { id, alarm: Alarm::PidsLimit as u32, pad: 0 };
                send_alarm(&key, &AlarmContext { memcg_id, tasks, bound: limit, now_ns });
            }
            if may_be_over && id == cgroup_id {
                let key = AlarmKey { id: generation, alarm: Alarm::NodeTasks as u32, pad: 0 };
                send_alarm(&key, &AlarmContext { memcg_id, tasks, bound: threshold, now_ns });
            }
        }
        let until_forks = forks.saturating_add(left);
        *last = PidsCache { group: lowest, until_forks, until_ns: now_ns + PIDS_CACHE_NS, generation };
    }
}

#[inline(always)]
fn min(one: u64, other: u64) -> u64 {
    if one < other { one } else { other }
}

/// The task count and the limit of a pids cgroup.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct PidsUsage {
    tasks: u64,
    limit: u64,
}

/// Reads count and limit with one call if they are adjacent in `pids_cgroup`, else with two calls.
///
/// # Safety
/// `group` is a pointer to a `pids_cgroup`.
#[inline(always)]
unsafe fn read_pids(group: *const u8) -> PidsUsage {
    let (counter, limit) = (offset!(pids_counter), offset!(pids_limit));
    // SAFETY: any address can be read.
    unsafe {
        match limit.wrapping_sub(counter) {
            8 => Probe::at(group, counter),
            _ => PidsUsage { tasks: Probe::at(group, counter), limit: Probe::at(group, limit) },
        }
    }
}

/// The values of an alarm.
struct AlarmContext {
    memcg_id: u64,
    tasks: u64,
    bound: u64,
    now_ns: u64,
}

/// Pushes the record if no program has done so yet. If the record does not fit, the next fork tries again.
#[inline(never)]
fn send_alarm(key: &AlarmKey, context: &AlarmContext) {
    let key = *key;
    if ALARMS_SENT.get_ptr(key).is_some() {
        return;
    }
    // Of all CPUs that see the condition, one inserts the key.
    match ALARMS_SENT.insert(key, context.now_ns, BPF_NOEXIST as u64) {
        Ok(()) => {}
        Err(EXISTS) => return,
        Err(_) => {
            count(Counter::AlarmsSentFull);
            return;
        }
    }
    let Some(mut entry) = EVENTS.reserve::<TaskAlarm>(0) else {
        let _ = ALARMS_SENT.remove(key);
        lost(Counter::LostTaskAlarm);
        return;
    };
    entry.write(TaskAlarm {
        header: header::<TaskAlarm>(Kind::TaskAlarm),
        memcg_id: context.memcg_id,
        key_id: key.id,
        tasks: context.tasks,
        bound: context.bound,
        tgid: (bpf_get_current_pid_tgid() >> 32) as u32,
        alarm: key.alarm,
    });
    entry.submit(URGENT);
}
