//! Decodes the bytes of a record to an [`Event`]. Any bytes end in an event or in an error that describes what
//! is wrong with them.
#![forbid(unsafe_code)]

use eviction_common as raw;
use eviction_common::{
    ABI_VERSION, Alarm, DiskResource, Edge, Header, KernelKillCause, Kind, NAME_BYTES, UNLIMITED_BYTES,
    ancestor_flag, oom_flag,
};
use thiserror::Error;

use super::event::{
    Ancestor, DiskThresholdCrossed, Event, KernelKill, OomEvents, OomKill, OomLimitOwner, Rss, TaskAlarm,
    ThresholdCrossed,
};
use super::handle::disk::user_device;
use super::oom_limit_owner::owner_by_counts;
use super::sys::read_entry;

/// Why the bytes of a record cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The record is shorter than a header.
    #[error("record of {found} bytes has no header")]
    Header {
        /// The size of the record in bytes.
        found: usize,
    },
    /// The BPF programs were built with another layout.
    #[error("record of ABI {found}, this is {ABI_VERSION}")]
    Abi {
        /// The ABI version in the record.
        found: u16,
    },
    /// The kind of the record is unknown.
    #[error("record of unknown kind {found}")]
    Kind {
        /// The kind in the record.
        found: u16,
    },
    /// The record, or the size that its header states, differs in size from its kind.
    #[error("record of kind {kind} has {found} bytes and states {stated}, expected {expected}")]
    Size {
        /// The record's kind.
        kind: &'static str,
        /// The size of a record of this kind in bytes.
        expected: usize,
        /// The size of the record in bytes.
        found: usize,
        /// The size in the header.
        stated: u32,
    },
    /// A field has a value that no program writes.
    #[error("record of kind {kind} has {value} as its {field}")]
    Field {
        /// The record's kind.
        kind: &'static str,
        /// The name of the field.
        field: &'static str,
        /// The value of the field.
        value: u64,
    },
}

/// Decodes records of a machine with pages of `page_bytes`.
pub fn decode(record: &[u8], page_bytes: u64) -> Result<Event, DecodeError> {
    let found = record.len();
    if found < size_of::<Header>() {
        return Err(DecodeError::Header { found });
    }
    let Header { kind, abi, len: stated, ktime_ns } = read_entry(record);
    if abi != ABI_VERSION {
        return Err(DecodeError::Abi { found: abi });
    }
    let kind = Kind::from_raw(kind).ok_or(DecodeError::Kind { found: kind })?;
    let expected = kind.record_bytes();
    if found != expected || stated as usize != expected {
        return Err(DecodeError::Size { kind: kind.name(), expected, found, stated });
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

fn unknown(kind: Kind, field: &'static str, value: u32) -> DecodeError {
    DecodeError::Field { kind: kind.name(), field, value: value.into() }
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
) -> Result<ThresholdCrossed, DecodeError> {
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

fn oom_kill(ktime_ns: u64, record: &raw::OomKill, page_bytes: u64) -> Result<OomKill, DecodeError> {
    let raw::OomKill { flags, chain_len, trigger_memcg, .. } = *record;
    let len = chain_len as usize;
    let Some((chain, names)) = record.chain.get(..len).zip(record.names.get(..len)) else {
        return Err(unknown(Kind::OomKill, "chain length", chain_len));
    };
    let has = |flag| flags & flag != 0;
    let bytes = |pages| bytes_of(pages, page_bytes);
    let rss = Rss {
        anon: bytes(record.anon),
        file: bytes(record.file),
        shmem: bytes(record.shmem),
        swap: bytes(record.swap),
    };
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
        rss: has(oom_flag::RSS).then_some(rss),
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
    let (owner, owner_inferred) = owner_by_counts(&kill, page_bytes);
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
    Ancestor {
        id,
        usage: bytes_of(usage, page_bytes),
        max: limit_of(max, page_bytes),
        events: has(ancestor_flag::EVENTS).then_some(OomEvents {
            oom,
            oom_kill,
            oom_before: has(ancestor_flag::OOM_SEEN).then_some(oom_before),
            oom_kill_before: has(ancestor_flag::KILL_SEEN).then_some(oom_kill_before),
        }),
        oom_group: has(ancestor_flag::GROUP),
    }
}

fn task_alarm(ktime_ns: u64, record: raw::TaskAlarm) -> Result<TaskAlarm, DecodeError> {
    let raw::TaskAlarm { header: _, memcg_id, key_id, tasks, bound, tgid, alarm } = record;
    let alarm = Alarm::from_raw(alarm).ok_or_else(|| unknown(Kind::TaskAlarm, "alarm", alarm))?;
    let (tasks, bound) = (tasks.cast_signed(), bound.cast_signed());
    Ok(TaskAlarm { ktime_ns, alarm, memcg_id, key_id, tasks, bound, tgid })
}

fn kernel_kill(ktime_ns: u64, record: raw::KernelKill, page_bytes: u64) -> Result<KernelKill, DecodeError> {
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
) -> Result<DiskThresholdCrossed, DecodeError> {
    let raw::DiskThresholdCrossed { header: _, generation, leaf_id, beyond, device, resource, tgid, pid } =
        record;
    let resource = DiskResource::from_raw(resource)
        .ok_or_else(|| unknown(Kind::DiskThresholdCrossed, "resource", resource))?;
    let device = user_device(device);
    Ok(DiskThresholdCrossed { ktime_ns, device, resource, generation, beyond, leaf_id, tgid, pid })
}

#[cfg(test)]
mod tests;
