//! Too many tasks: a cgroup that forks too fast, a group of the pids controller near its limit, a
//! node near its own. Looked at in each fork; told once, with a wake-up.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns},
};
use eviction_common::{
    ABSENT, Alarm, AlarmKey, Counter, ForkRate, Kind, MAX_ANCESTORS, PIDS_CACHE_NS, PIDS_LIMIT_MAX,
    PIDS_NEAR_FRACTION, PidsCache, STORM_WINDOW_NS, TaskAlarm,
};

use crate::{
    config::{offset, storm_forks},
    events::{URGENT, header, lost},
    maps::{ALARMS_SENT, EVENTS, HOST_TASKS, PID_THRESHOLD, PIDS_CACHE, add, count},
    memcg::id_of_css,
    probe_read::{Direct, Probe, Read},
};

/// What the kernel answers when the key is there (EEXIST in asm-generic/errno-base.h).
const EXISTS: i32 = -17;

/// `task` was made, in the memory cgroup `memcg_id`, whose rate that is in a map's value, if there was room.
///
/// # Safety
/// `task` is a pointer to a `task_struct`.
#[inline(always)]
pub(crate) unsafe fn on_fork(task: *const u8, memcg_id: u64, rate: Option<*mut ForkRate>) {
    // SAFETY: a helper without arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    if let Some(rate) = rate {
        watch_rate(rate, memcg_id, now_ns);
    }
    let forks = watch_machine(memcg_id, now_ns);
    // SAFETY: the caller's promise.
    unsafe { watch_limits(task, memcg_id, forks, now_ns) };
}

/// A task ends.
#[inline(always)]
pub(crate) fn on_exit() {
    if let Some(machine) = HOST_TASKS.get_ptr_mut(0) {
        // SAFETY: the map's value.
        unsafe { add(&raw mut (*machine).exits, 1) };
    }
}

#[inline(always)]
fn watch_rate(rate: *mut ForkRate, memcg_id: u64, now_ns: u64) {
    let bound = storm_forks() as u64;
    if bound == 0 {
        return;
    }
    // SAFETY: the map's value; volatile, since other CPUs write it.
    let forks = unsafe {
        let since_ns = core::ptr::read_volatile(&raw const (*rate).since_ns);
        // Another CPU may have begun the window a moment after this one read the time.
        if now_ns.wrapping_sub(since_ns) as i64 >= STORM_WINDOW_NS as i64 {
            core::ptr::write_volatile(&raw mut (*rate).since_ns, now_ns);
            core::ptr::write_volatile(&raw mut (*rate).forks, 1);
            return;
        }
        add(&raw mut (*rate).forks, 1);
        core::ptr::read_volatile(&raw const (*rate).forks)
    };
    if forks >= bound {
        let key = AlarmKey { id: memcg_id, alarm: Alarm::ForkStorm as u32, pad: 0 };
        tell(&key, &AlarmContext { memcg_id, tasks: forks, bound, depth: 0, now_ns });
    }
}

/// Gives how many forks there were.
#[inline(always)]
fn watch_machine(memcg_id: u64, now_ns: u64) -> u64 {
    let (Some(machine), Some(armed)) = (HOST_TASKS.get_ptr_mut(0), PID_THRESHOLD.get_ptr(0)) else {
        return 0;
    };
    // SAFETY: values of maps; volatile, since others write them.
    let (tasks, line, generation) = unsafe {
        add(&raw mut (*machine).forks, 1);
        (
            core::ptr::read_volatile(machine),
            core::ptr::read_volatile(&raw const (*armed).host_threshold),
            core::ptr::read_volatile(&raw const (*armed).generation),
        )
    };
    let net = tasks.net();
    if generation != 0 && net >= line {
        let key = AlarmKey { id: generation, alarm: Alarm::NodeTasks as u32, pad: 0 };
        tell(&key, &AlarmContext { memcg_id, tasks: net as u64, bound: line as u64, depth: 0, now_ns });
    }
    tasks.forks
}

/// Looks at every group of the pids controller that the task is in, unless so few were made since this CPU last did
/// that none can have come near its limit. Their counts are the kernel's own, and the new task is in them; those of
/// forks that a limit refused never come here. A task is in them before it is one of `forks`, which was read first: so
/// no group has got more since than there were forks.
///
/// # Safety
/// `task` is a pointer to a `task_struct`.
#[inline(always)]
unsafe fn watch_limits(task: *const u8, memcg_id: u64, forks: u64, now_ns: u64) {
    if offset!(cset_pids) == ABSENT || offset!(pids_counter) == ABSENT || offset!(pids_limit) == ABSENT {
        return;
    }
    let (Some(armed), Some(last)) = (PID_THRESHOLD.get_ptr(0), PIDS_CACHE.get_ptr_mut(0)) else {
        return;
    };
    // SAFETY: the caller's promise, and the types of the members; values of maps, of which user space writes the one.
    unsafe {
        let set: usize = Direct::at(task, offset!(task_cgroups));
        if set == 0 {
            return;
        }
        let css: usize = Direct::at(set as *const u8, offset!(cset_pids));
        let now = core::ptr::read_volatile(&raw const (*armed).generation);
        let PidsCache { group, until_forks, until_ns, generation } = *last;
        if group != css as u64 || generation != now || forks >= until_forks || now_ns >= until_ns {
            compare_with_limits(css as *const u8, memcg_id, forks, now_ns);
        }
    }
}

/// Looks at this group of the pids controller and those above it. Apart, as all that is seldom ([`crate::task`]).
#[inline(never)]
fn compare_with_limits(css: *const u8, memcg_id: u64, forks: u64, now_ns: u64) {
    let (Some(armed), Some(last)) = (PID_THRESHOLD.get_ptr(0), PIDS_CACHE.get_ptr_mut(0)) else {
        return;
    };
    // SAFETY: the map's value; volatile, since user space writes it.
    let (cgroup_id, line, generation) = unsafe {
        (
            core::ptr::read_volatile(&raw const (*armed).cgroup_id),
            core::ptr::read_volatile(&raw const (*armed).cgroup_threshold),
            core::ptr::read_volatile(&raw const (*armed).generation),
        )
    };
    let has_line = cgroup_id != 0 && generation != 0;
    let lowest = css as u64;
    let mut css = css as usize;
    // SAFETY: the types of the members. A css is the first member of its `pids_cgroup` (the loader checks it), and the
    // helper takes any address.
    unsafe {
        // How many tasks more may bring one of them near.
        let mut left = u64::MAX;
        for _ in 0..MAX_ANCESTORS {
            if css == 0 {
                break;
            }
            let group = css as *const u8;
            css = Direct::at(group, offset!(css_parent));
            if css == 0 {
                // The root is not counted.
                break;
            }
            let PidsUsage { tasks, limit } = read_pids(group);
            let near = if limit <= PIDS_LIMIT_MAX { limit - limit / PIDS_NEAR_FRACTION } else { u64::MAX };
            let (is_near, may_be_over) = (tasks >= near, has_line && tasks >= line);
            if !is_near {
                left = least(left, near - tasks);
            }
            if has_line && !may_be_over {
                left = least(left, line - tasks);
            }
            // Whose counts they are takes three reads more, of memory that nothing else here touches.
            if !is_near && !may_be_over {
                continue;
            }
            left = 0;
            let id = id_of_css::<Direct>(group);
            if is_near {
                let cgroup: usize = Direct::at(group, offset!(css_cgroup));
                let depth: u32 = Probe::at(cgroup as *const u8, offset!(cgroup_level));
                let key = AlarmKey { id, alarm: Alarm::PidsLimit as u32, pad: 0 };
                tell(&key, &AlarmContext { memcg_id, tasks, bound: limit, depth, now_ns });
            }
            if may_be_over && id == cgroup_id {
                let key = AlarmKey { id: generation, alarm: Alarm::NodeTasks as u32, pad: 0 };
                tell(&key, &AlarmContext { memcg_id, tasks, bound: line, depth: 0, now_ns });
            }
        }
        let until_forks = forks.saturating_add(left);
        *last = PidsCache { group: lowest, until_forks, until_ns: now_ns + PIDS_CACHE_NS, generation };
    }
}

#[inline(always)]
fn least(one: u64, other: u64) -> u64 {
    if one < other { one } else { other }
}

/// Of a group of the pids controller.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct PidsUsage {
    tasks: u64,
    limit: u64,
}

/// One call fetches both, which lie side by side in `pids_cgroup`; two calls where they do not.
///
/// # Safety
/// `group` is a pointer to a `pids_cgroup`.
#[inline(always)]
unsafe fn read_pids(group: *const u8) -> PidsUsage {
    let (counter, limit) = (offset!(pids_counter), offset!(pids_limit));
    // SAFETY: any address goes.
    unsafe {
        match limit.wrapping_sub(counter) {
            8 => Probe::at(group, counter),
            _ => PidsUsage { tasks: Probe::at(group, counter), limit: Probe::at(group, limit) },
        }
    }
}

/// What an alarm is about.
struct AlarmContext {
    memcg_id: u64,
    tasks: u64,
    bound: u64,
    depth: u32,
    now_ns: u64,
}

/// Pushes the record if nobody did yet. When it does not fit, the next fork tries again.
#[inline(never)]
fn tell(key: &AlarmKey, seen: &AlarmContext) {
    let key = *key;
    if ALARMS_SENT.get_ptr(key).is_some() {
        return;
    }
    // Of all the CPUs that see it, one puts the key in.
    match ALARMS_SENT.insert(key, seen.now_ns, BPF_NOEXIST as u64) {
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
        memcg_id: seen.memcg_id,
        key_id: key.id,
        tasks: seen.tasks,
        bound: seen.bound,
        tgid: (bpf_get_current_pid_tgid() >> 32) as u32,
        depth: seen.depth,
        alarm: key.alarm,
        pad: 0,
    });
    entry.submit(URGENT);
}
