//! Out-of-memory kills, taken down before the victim dies.

use aya_ebpf::{
    helpers::{bpf_get_current_pid_tgid, bpf_get_current_task, bpf_ktime_get_ns},
    macros::btf_tracepoint,
    programs::BtfTracePointContext,
};
use aya_log_ebpf::debug;
use eviction_common::{
    ABSENT, Ancestor, Counter, Kind, MAX_CHAIN, OomKill, SeenOom, ancestor_flag, oom_flag,
};

use crate::{
    emit::{URGENT, header, lost},
    maps::{RING, SEEN_OOM, count},
    memcg::Memcg,
    read::{Probe, Read},
    setup::{is_ours, offset},
};

/// `mark_victim` where the kernel gives the victim itself.
#[btf_tracepoint(function = "mark_victim")]
pub(crate) fn oom_mark_victim(ctx: BtfTracePointContext) -> i32 {
    let task: *const u8 = ctx.arg(0);
    // SAFETY: the first argument is a `task_struct`, which the loader checks in BTF.
    unsafe { on_kill(&ctx, Some(task), 0) };
    0
}

/// `mark_victim` where the kernel gives the victim's pid alone. The memory cgroups are taken of
/// the task that asked for a page too many: it is below the limit's owner as well.
#[btf_tracepoint(function = "mark_victim")]
pub(crate) fn oom_mark_victim_pid(ctx: BtfTracePointContext) -> i32 {
    let pid: i32 = ctx.arg(0);
    // SAFETY: without a task there is nothing to promise.
    unsafe { on_kill(&ctx, None, pid as u32) };
    0
}

/// # Safety
/// `victim` is a pointer to a `task_struct`.
#[inline(always)]
unsafe fn on_kill(ctx: &BtfTracePointContext, victim: Option<*const u8>, pid: u32) {
    if !is_ours() {
        return;
    }
    // SAFETY: the caller's promise, or the running task.
    let memcg = unsafe { Memcg::of_task(victim.unwrap_or(bpf_get_current_task() as *const u8)) };
    let Some(mut entry) = RING.reserve::<OomKill>(0) else {
        lost(Counter::LostOomKill);
        // The next kill is not to be compared with what was before this one.
        if !memcg.is_null() {
            pass(memcg);
        }
        return;
    };
    let record = entry.as_mut_ptr();
    let trigger = bpf_get_current_pid_tgid();
    // SAFETY: `record` points to a record inside the ring, whose every figure is written here
    // but for those of the chain behind `chain_len`; tasks are read by a helper that takes any address.
    let tgid = unsafe {
        (*record).header = header::<OomKill>(Kind::OomKill);
        (*record).trigger_tgid = (trigger >> 32) as u32;
        (*record).trigger_pid = trigger as u32;
        (*record).flags = match victim {
            Some(task) => describe(record, task),
            None => {
                describe_pid(record, pid);
                oom_flag::PID_ONLY
            }
        };
        (*record).chain_len = 0;
        if !memcg.is_null() {
            climb(record, memcg);
        }
        (*record).tgid
    };
    entry.submit(URGENT);
    debug!(ctx, "the kernel chose process {} as its victim", tgid);
}

/// Writes what is known of the victim; gives the flags of what is.
///
/// # Safety
/// `record` points to a record, and `task` to a `task_struct`.
#[inline(always)]
unsafe fn describe(record: *mut OomKill, task: *const u8) -> u32 {
    let mut flags = 0;
    // SAFETY: the caller's promise, and the types of the members.
    unsafe {
        (*record).pid = Probe::at(task, offset!(task_pid));
        (*record).tgid = Probe::at(task, offset!(task_tgid));
        (*record).comm = Probe::at(task, offset!(task_comm));
        (*record).uid = 0;
        if offset!(task_cred) != ABSENT && offset!(cred_uid) != ABSENT {
            let cred: usize = Probe::at(task, offset!(task_cred));
            if cred != 0 {
                (*record).uid = Probe::at(cred as *const u8, offset!(cred_uid));
                flags |= oom_flag::UID;
            }
        }
        (*record).oom_score_adj = 0;
        if offset!(task_signal) != ABSENT && offset!(signal_oom_score_adj) != ABSENT {
            let signal: usize = Probe::at(task, offset!(task_signal));
            if signal != 0 {
                let adjustment: i16 = Probe::at(signal as *const u8, offset!(signal_oom_score_adj));
                (*record).oom_score_adj = adjustment as i32;
                flags |= oom_flag::SCORE;
            }
        }
        (*record).anon = 0;
        (*record).file = 0;
        (*record).shmem = 0;
        (*record).swap = 0;
        if offset!(task_mm) != ABSENT && offset!(mm_anon) != ABSENT {
            let mm: usize = Probe::at(task, offset!(task_mm));
            if mm != 0 {
                let mm = mm as *const u8;
                (*record).anon = Probe::at(mm, offset!(mm_anon));
                (*record).file = Probe::at(mm, offset!(mm_file));
                (*record).shmem = Probe::at(mm, offset!(mm_shmem));
                (*record).swap = Probe::at(mm, offset!(mm_swap));
                flags |= oom_flag::RSS;
            }
        }
    }
    flags
}

/// # Safety
/// `record` points to a record.
#[inline(always)]
unsafe fn describe_pid(record: *mut OomKill, pid: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        (*record).pid = pid;
        (*record).tgid = pid;
        (*record).comm = [0; 16];
        (*record).uid = 0;
        (*record).oom_score_adj = 0;
        (*record).anon = 0;
        (*record).file = 0;
        (*record).shmem = 0;
        (*record).swap = 0;
    }
}

/// Writes the chain of memory cgroups from `memcg` up to the root.
///
/// # Safety
/// `record` points to a record.
#[inline(always)]
unsafe fn climb(record: *mut OomKill, memcg: Memcg) {
    let mut memcg = memcg;
    // SAFETY: a helper without arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    for place in 0..MAX_CHAIN {
        // SAFETY: the caller's promise; `place` is inside the chain.
        unsafe {
            (*record).chain[place] = look(&memcg, now_ns);
            (*record).chain_len = place as u32 + 1;
        }
        match memcg.parent::<Probe>() {
            Some(parent) => memcg = parent,
            None => return,
        }
    }
    // SAFETY: the caller's promise.
    unsafe { (*record).flags |= oom_flag::CUT };
}

/// Looks at every memory cgroup from `memcg` up to the root, for the next kill's sake.
#[inline(always)]
fn pass(memcg: Memcg) {
    let mut memcg = memcg;
    for _ in 0..MAX_CHAIN {
        look(&memcg, 0);
        match memcg.parent::<Probe>() {
            Some(parent) => memcg = parent,
            None => return,
        }
    }
}

/// The figures of one memory cgroup, beside its event counts as they were last seen.
#[inline(always)]
fn look(memcg: &Memcg, now_ns: u64) -> Ancestor {
    let mut ancestor = Ancestor {
        id: memcg.id::<Probe>(),
        usage: memcg.usage::<Probe>(),
        max: memcg.max::<Probe>(),
        oom: 0,
        oom_before: 0,
        oom_kill: 0,
        oom_kill_before: 0,
        flags: 0,
        pad: 0,
    };
    let Some((oom, oom_kill)) = memcg.oom_events() else {
        return ancestor;
    };
    ancestor.oom = oom;
    ancestor.oom_kill = oom_kill;
    ancestor.flags |= ancestor_flag::EVENTS;
    // SAFETY: kills are made one at a time, so nobody writes it meanwhile but a charge, which puts
    // it in once and never changes it.
    if let Some(before) = unsafe { SEEN_OOM.get(ancestor.id) }
        && before.ktime_ns + SeenOom::UNSURE_NS < now_ns
    {
        ancestor.oom_before = before.oom;
        ancestor.oom_kill_before = before.oom_kill;
        ancestor.flags |= ancestor_flag::SEEN;
    }
    let seen = SeenOom { oom, oom_kill, ktime_ns: 0 };
    if SEEN_OOM.insert(ancestor.id, seen, 0).is_err() {
        count(Counter::SeenFull);
    }
    ancestor
}
