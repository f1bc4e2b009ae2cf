//! Decodes the bytes of a record to an [`Event`]. Any bytes end in an event or in an error that describes what
//! is wrong with them.
#![forbid(unsafe_code)]

use eviction_common as raw;
use eviction_common::{
    ABI_VERSION, Alarm, DiskResource, Edge, Header, KernelKillCause, Kind, NAME_BYTES, UNLIMITED_BYTES,
    ancestor_flag, oom_flag,
};

use super::event::{
    Ancestor, DiskThresholdCrossed, Event, KernelKill, OomKill, OomLimitOwner, TaskAlarm, ThresholdCrossed,
};
use super::handle::disk::user_device;
use super::sys::read_entry;

/// Decodes a record of a machine with pages of `page_bytes`.
///
/// # Errors
/// What is wrong with the record: it is too short, of another ABI, of an unknown kind, of a size that differs from
/// that of its kind, or a field has a value that no program writes.
pub fn decode(record: &[u8], page_bytes: u64) -> Result<Event, String> {
    let found = record.len();
    if found < size_of::<Header>() {
        return Err(format!("record of {found} bytes has no header"));
    }
    let Header { kind, abi, len: stated, ktime_ns } = read_entry(record);
    if abi != ABI_VERSION {
        return Err(format!("record of ABI {abi}, this is {ABI_VERSION}"));
    }
    let kind = Kind::from_raw(kind).ok_or_else(|| format!("record of unknown kind {kind}"))?;
    let expected = kind.record_bytes();
    if found != expected || stated as usize != expected {
        let kind = kind.name();
        return Err(format!(
            "record of kind {kind} has {found} bytes and states {stated}, expected {expected}"
        ));
    }
    let cgroup_id = || read_entry::<raw::CgroupChange>(record).id;
    Ok(match kind {
        Kind::ThresholdCrossed => {
            Event::ThresholdCrossed(threshold_crossed(ktime_ns, read_entry(record), page_bytes)?)
        }
        Kind::OomKill => match oom_kill(ktime_ns, &read_entry(record), page_bytes)? {
            mark if mark.was_killed() == Some(false) => Event::OomMark(mark),
            kill => Event::OomKill(kill),
        },
        Kind::CgroupCreated => Event::CgroupCreated(cgroup_id()),
        Kind::CgroupRemoved => Event::CgroupRemoved(cgroup_id()),
        Kind::TaskAlarm => Event::TaskAlarm(task_alarm(ktime_ns, read_entry(record))?),
        Kind::KernelKill => Event::KernelKill(kernel_kill(ktime_ns, read_entry(record), page_bytes)?),
        Kind::DiskThresholdCrossed => {
            Event::DiskThresholdCrossed(disk_threshold_crossed(ktime_ns, read_entry(record))?)
        }
    })
}

fn unknown(kind: Kind, field: &str, value: u32) -> String {
    format!("record of kind {} has {value} as its {field}", kind.name())
}

/// Converts a count of pages. A counter that is below zero for a moment is a huge number, and counts as 0.
fn bytes_of(pages: u64, page_bytes: u64) -> u64 {
    match i64::try_from(pages) {
        Ok(_) => pages.saturating_mul(page_bytes),
        Err(_) => 0,
    }
}

/// Converts a limit in pages; `None` if it is the kernel's greatest.
fn limit_of(pages: u64, page_bytes: u64) -> Option<u64> {
    let max = pages.saturating_mul(page_bytes);
    (max < UNLIMITED_BYTES).then_some(max)
}

fn threshold_crossed(
    ktime_ns: u64,
    record: raw::ThresholdCrossed,
    page_bytes: u64,
) -> Result<ThresholdCrossed, String> {
    let raw::ThresholdCrossed { cgroup_id, leaf_id, generation, usage, gross, tgid, pid, edge, .. } = record;
    Ok(ThresholdCrossed {
        ktime_ns,
        cgroup_id,
        leaf_id,
        generation,
        edge: Edge::from_raw(edge).ok_or_else(|| unknown(Kind::ThresholdCrossed, "edge", edge))?,
        usage: bytes_of(usage, page_bytes),
        gross: bytes_of(gross, page_bytes),
        tgid,
        pid,
    })
}

fn oom_kill(ktime_ns: u64, record: &raw::OomKill, page_bytes: u64) -> Result<OomKill, String> {
    let raw::OomKill { flags, chain_len, trigger_memcg, .. } = *record;
    let len = chain_len as usize;
    let Some((chain, names)) = record.chain.get(..len).zip(record.names.get(..len)) else {
        return Err(unknown(Kind::OomKill, "chain length", chain_len));
    };
    let has = |flag| flags & flag != 0;
    let bytes = |pages| bytes_of(pages, page_bytes);
    let resident = |pages| has(oom_flag::RSS).then(|| bytes(pages));
    let owner = match (has(oom_flag::OWNER), record.owner_id) {
        (false, _) => OomLimitOwner::Unknown,
        (true, 0) => OomLimitOwner::Global,
        (true, id) => OomLimitOwner::Memcg(Ancestor {
            id,
            usage: bytes(record.owner_usage),
            max: limit_of(record.owner_max, page_bytes),
            ..Ancestor::default()
        }),
    };
    let kill = OomKill {
        ktime_ns,
        tgid: record.tgid,
        pid: record.pid,
        comm: record.comm,
        oom_score_adj: has(oom_flag::SCORE).then_some(record.oom_score_adj),
        anon: resident(record.anon),
        file: resident(record.file),
        shmem: resident(record.shmem),
        swap: resident(record.swap),
        trigger_tgid: record.trigger_tgid,
        trigger_comm: record.trigger_comm,
        trigger_memcg: (trigger_memcg != 0).then_some(trigger_memcg),
        owner,
        owner_inferred: false,
        truncated: has(oom_flag::CUT),
        pid_only: has(oom_flag::PID_ONLY),
        chain: chain.iter().map(|group| ancestor(group, page_bytes)).collect(),
        names: names.iter().map(whole_name).collect(),
    };
    if kill.owner != OomLimitOwner::Unknown {
        return Ok(kill);
    }
    let (owner, owner_inferred) = kill.owner_by_counts(page_bytes);
    Ok(OomKill { owner, owner_inferred, ..kill })
}

/// Returns the name in a buffer. The kernel truncates a long name and ends it with a NUL; a name that fills its
/// buffer counts as unknown, which is empty.
fn whole_name(buffer: &[u8; NAME_BYTES]) -> Box<[u8]> {
    let end = buffer.iter().position(|byte| *byte == 0).filter(|end| *end < NAME_BYTES - 1);
    buffer[..end.unwrap_or(0)].into()
}

fn ancestor(group: &raw::Ancestor, page_bytes: u64) -> Ancestor {
    let raw::Ancestor { id, usage, max, oom, oom_before, oom_kill, oom_kill_before, flags, pad: _ } = *group;
    let has = |flag| flags & flag != 0;
    // Without the present count the one before means nothing.
    let counted = |flag, count| (has(ancestor_flag::EVENTS) && has(flag)).then_some(count);
    Ancestor {
        id,
        usage: bytes_of(usage, page_bytes),
        max: limit_of(max, page_bytes),
        oom: counted(ancestor_flag::EVENTS, oom),
        oom_before: counted(ancestor_flag::OOM_SEEN, oom_before),
        oom_kill: counted(ancestor_flag::EVENTS, oom_kill),
        oom_kill_before: counted(ancestor_flag::KILL_SEEN, oom_kill_before),
        oom_group: has(ancestor_flag::GROUP),
    }
}

fn task_alarm(ktime_ns: u64, record: raw::TaskAlarm) -> Result<TaskAlarm, String> {
    let raw::TaskAlarm { header: _, memcg_id, key_id, tasks, bound, tgid, alarm } = record;
    let alarm = Alarm::from_raw(alarm).ok_or_else(|| unknown(Kind::TaskAlarm, "alarm", alarm))?;
    let (tasks, bound) = (tasks.cast_signed(), bound.cast_signed());
    Ok(TaskAlarm { ktime_ns, alarm, memcg_id, key_id, tasks, bound, tgid })
}

fn kernel_kill(ktime_ns: u64, record: raw::KernelKill, page_bytes: u64) -> Result<KernelKill, String> {
    let raw::KernelKill {
        generation, victim_id, leaf_id, usage, grown, tgid, pid, error, cause, comm, ..
    } = record;
    let cause = KernelKillCause::from_raw(cause).ok_or_else(|| unknown(Kind::KernelKill, "cause", cause))?;
    Ok(KernelKill {
        ktime_ns,
        order: generation,
        cause,
        victim_id,
        leaf_id,
        usage: bytes_of(usage, page_bytes),
        grown: match cause {
            KernelKillCause::Memory => bytes_of(grown, page_bytes),
            KernelKillCause::Disk => grown,
        },
        tgid,
        pid,
        error: (error != 0).then_some(error),
        comm,
    })
}

fn disk_threshold_crossed(
    ktime_ns: u64,
    record: raw::DiskThresholdCrossed,
) -> Result<DiskThresholdCrossed, String> {
    let raw::DiskThresholdCrossed { header: _, generation, leaf_id, beyond, device, resource, tgid, pid } =
        record;
    let resource = DiskResource::from_raw(resource)
        .ok_or_else(|| unknown(Kind::DiskThresholdCrossed, "resource", resource))?;
    let device = user_device(device);
    Ok(DiskThresholdCrossed { ktime_ns, device, resource, generation, beyond, leaf_id, tgid, pid })
}

#[cfg(test)]
mod tests;
