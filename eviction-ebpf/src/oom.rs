//! Out-of-memory kills, recorded before the victim is killed.

use aya_ebpf::{
    EbpfContext as _,
    helpers::{
        bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_get_current_task, bpf_ktime_get_ns,
        generated::bpf_probe_read_kernel_str,
    },
    macros::btf_tracepoint,
    programs::BtfTracePointContext,
};
use aya_log_ebpf::debug;
use eviction_common::{
    ABSENT, Ancestor, Counter, Kind, MAX_CHAIN, NAME_BYTES, OomCounts, OomKill, ancestor_flag, oom_flag,
};

use crate::{
    config::{abi_matches, hierarchy, offset},
    events::{URGENT, header, lost},
    maps::{EVENTS, OOM_COUNTS, count},
    memcg::Memcg,
    oom_context,
    probe_read::{Probe, Read},
};

/// `mark_victim` on kernels that pass the victim itself.
#[btf_tracepoint(function = "mark_victim")]
pub(crate) fn oom_mark_victim(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: the first argument is a `task_struct`, which the loader checks in BTF.
    unsafe { on_kill(&ctx, ctx.arg(0), 0) };
    0
}

/// `mark_victim` on kernels that pass only the pid of the victim. The victim is the running task, or the task
/// that `oom_kill_process` handles. If it is neither, the memory cgroups are those of the task that exceeded
/// the limit, which is below the limit's owner as well.
#[btf_tracepoint(function = "mark_victim")]
pub(crate) fn oom_mark_victim_pid(ctx: BtfTracePointContext) -> i32 {
    // Read by the helper: if a kernel passes a task here after all, the verifier does not allow a comparison.
    // SAFETY: the first argument is an int, which the loader checks in BTF.
    let pid: u32 = unsafe { Probe::at(ctx.as_ptr().cast(), 0) };
    let context = oom_context::current();
    let victim = match pid == bpf_get_current_pid_tgid() as u32 {
        // SAFETY: a helper without arguments.
        true => unsafe { bpf_get_current_task() as *const u8 },
        false if context.is_null() => core::ptr::null(),
        // SAFETY: the map's value.
        false => unsafe { (*context).victim as *const u8 },
    };
    // SAFETY: the running task or the one that the kernel holds while it kills it.
    unsafe { on_kill(&ctx, victim, pid) };
    0
}

/// # Safety
/// `victim` is null or a pointer to a `task_struct`.
#[inline(always)]
unsafe fn on_kill(ctx: &BtfTracePointContext, victim: *const u8, pid: u32) {
    if !abi_matches() {
        return;
    }
    // SAFETY: the caller's promise, or the running task.
    let (own, memcg) = unsafe {
        let running = bpf_get_current_task() as *const u8;
        (Memcg::of_task(running), Memcg::of_task(if victim.is_null() { running } else { victim }))
    };
    let Some(mut entry) = EVENTS.reserve::<OomKill>(0) else {
        lost(Counter::LostOomKill);
        // The next kill must not be compared with counts from before this one.
        if !memcg.is_null() {
            store_event_counts(memcg);
        }
        return;
    };
    let record = entry.as_mut_ptr();
    // SAFETY: `record` points to a record inside the ring. All its fields are written here, except the elements
    // of the chain behind `chain_len`. Tasks are read by a helper that takes any address.
    let tgid = unsafe {
        (*record).header = header::<OomKill>(Kind::OomKill);
        (*record).trigger_tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
        (*record).trigger_comm = bpf_get_current_comm().unwrap_or_default();
        (*record).trigger_memcg = match own.is_null() {
            true => 0,
            false => own.id::<Probe>(),
        };
        init_victim(record, pid);
        (*record).flags = match victim.is_null() {
            true => oom_flag::PID_ONLY,
            false => write_victim(record, victim),
        };
        (*record).chain_len = 0;
        if !memcg.is_null() {
            write_chain(record, memcg);
        }
        write_limit_owner(record);
        (*record).tgid
    };
    entry.submit(URGENT);
    debug!(ctx, "the kernel chose process {} as its victim", tgid);
}

/// Writes the owner of the limit, if the kernel provided it.
///
/// # Safety
/// `record` points to a record whose chain is written.
#[inline(always)]
unsafe fn write_limit_owner(record: *mut OomKill) {
    let context = oom_context::current();
    // SAFETY: the caller's promise, and the map's value.
    unsafe {
        if context.is_null() {
            (*record).owner_id = 0;
            (*record).owner_usage = 0;
            (*record).owner_max = 0;
            return;
        }
        (*record).owner_id = (*context).owner_id;
        (*record).owner_usage = (*context).owner_usage;
        (*record).owner_max = (*context).owner_max;
        (*record).flags |= oom_flag::OWNER;
        let own = &raw mut (*record).chain[0];
        if (*record).chain_len > 0 && (*own).id == (*context).memcg_id {
            (*own).oom_kill_before = (*context).oom_kill;
            (*own).flags |= ancestor_flag::KILL_SEEN;
            // If the kernel kills a whole group, another victim may be in the same cgroup.
            (*context).oom_kill = (*own).oom_kill;
        }
    }
}

/// Writes the fields of the victim that the kernel has. Returns their flags.
///
/// # Safety
/// `record` points to a record in which [`init_victim`] wrote all of them, and `task` to a `task_struct`.
#[inline(always)]
unsafe fn write_victim(record: *mut OomKill, task: *const u8) -> u32 {
    let mut flags = 0;
    // SAFETY: the caller's promise, and the types of the members.
    unsafe {
        (*record).pid = Probe::at(task, offset!(task_pid));
        (*record).tgid = Probe::at(task, offset!(task_tgid));
        (*record).comm = Probe::at(task, offset!(task_comm));
        if offset!(task_signal) != ABSENT && offset!(signal_oom_score_adj) != ABSENT {
            let signal: usize = Probe::at(task, offset!(task_signal));
            if signal != 0 {
                let adjustment: i16 = Probe::at(signal as *const u8, offset!(signal_oom_score_adj));
                (*record).oom_score_adj = adjustment as i32;
                flags |= oom_flag::SCORE;
            }
        }
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

/// Initializes the fields of the victim: `pid` as its pid and tgid, and 0 for all others.
///
/// # Safety
/// `record` points to a record.
#[inline(always)]
unsafe fn init_victim(record: *mut OomKill, pid: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        (*record).pid = pid;
        (*record).tgid = pid;
        (*record).comm = [0; 16];
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
unsafe fn write_chain(record: *mut OomKill, memcg: Memcg) {
    let mut memcg = memcg;
    // SAFETY: a helper without arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    for index in 0..MAX_CHAIN {
        // SAFETY: the caller's promise; `index` is inside the chain.
        unsafe {
            (*record).chain[index] = read_ancestor(&memcg, now_ns);
            write_name(&raw mut (*record).names[index], &memcg);
            (*record).chain_len = index as u32 + 1;
        }
        match memcg.parent::<Probe>() {
            Some(parent) => memcg = parent,
            None => return,
        }
    }
    // SAFETY: the caller's promise.
    unsafe { (*record).flags |= oom_flag::CUT };
}

/// # Safety
/// `name` points to room inside a record.
#[inline(always)]
unsafe fn write_name(name: *mut [u8; NAME_BYTES], memcg: &Memcg) {
    let from = memcg.name();
    // SAFETY: the caller's promise; the helper checks the address that it reads.
    unsafe {
        if from.is_null() || bpf_probe_read_kernel_str(name.cast(), NAME_BYTES as u32, from.cast()) < 0 {
            (*name)[0] = 0;
        }
    }
}

/// Reads every memory cgroup from `memcg` up to the root, which stores their event counts for the next kill.
#[inline(always)]
fn store_event_counts(memcg: Memcg) {
    let mut memcg = memcg;
    for _ in 0..MAX_CHAIN {
        read_ancestor(&memcg, 0);
        match memcg.parent::<Probe>() {
            Some(parent) => memcg = parent,
            None => return,
        }
    }
}

/// Reads one memory cgroup, together with the event counts of the last reading.
#[inline(always)]
fn read_ancestor(memcg: &Memcg, now_ns: u64) -> Ancestor {
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
    // On cgroup v1 the member exists, but not the feature.
    if hierarchy() == 0 && memcg.has_oom_group() {
        ancestor.flags |= ancestor_flag::GROUP;
    }
    let Some((oom, oom_kill)) = memcg.oom_events() else {
        return ancestor;
    };
    ancestor.oom = oom;
    ancestor.oom_kill = oom_kill;
    ancestor.flags |= ancestor_flag::EVENTS;
    // SAFETY: the kernel makes one kill at a time, so only a charge can write it at the same time. A charge
    // inserts it once and never changes it.
    if let Some(before) = unsafe { OOM_COUNTS.get(ancestor.id) }
        && before.ktime_ns + OomCounts::MIN_AGE_NS < now_ns
    {
        ancestor.oom_before = before.oom;
        ancestor.oom_kill_before = before.oom_kill;
        ancestor.flags |= ancestor_flag::OOM_SEEN | ancestor_flag::KILL_SEEN;
    }
    let counts = OomCounts { oom, oom_kill, ktime_ns: 0 };
    if OOM_COUNTS.insert(ancestor.id, counts, 0).is_err() {
        count(Counter::OomCountsFull);
    }
    ancestor
}
