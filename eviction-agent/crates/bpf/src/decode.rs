//! Decodes the bytes of a record to an [`Event`]. Any bytes end in an event or in an error that describes what
//! is wrong with them.

use bytes::Buf;
use eviction_common::{
    ABI_VERSION, Alarm, DiskResource, Edge, Header, KernelKillCause, Kind, MAX_CHAIN, NAME_BYTES,
    UNLIMITED_BYTES, ancestor_flag, oom_flag,
};
use thiserror::Error;

use super::event::{
    Ancestor, CgroupChange, DiskThresholdCrossed, Event, KernelKill, OomEvents, OomKill, OomLimitOwner, Rss,
    Stamp, TaskAlarm, ThresholdCrossed,
};
use super::handle::disk::user_device;

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
    let mut fields = Fields { rest: record, page_bytes };
    let kind = fields.u16();
    let abi = fields.u16();
    if abi != ABI_VERSION {
        return Err(DecodeError::Abi { found: abi });
    }
    let kind = Kind::from_raw(kind).ok_or(DecodeError::Kind { found: kind })?;
    let stated = fields.u32();
    let expected = kind.record_bytes();
    if found != expected || stated as usize != expected {
        return Err(DecodeError::Size { kind: kind.name(), expected, found, stated });
    }
    let cpu = fields.u32();
    fields.u32();
    let stamp = Stamp { cpu, seq: fields.u64(), ktime_ns: fields.u64() };
    let event = match kind {
        Kind::ThresholdCrossed => Event::ThresholdCrossed(fields.threshold_crossed(stamp)?),
        Kind::OomKill => match fields.oom_kill(stamp)? {
            mark if mark.was_killed() == Some(false) => Event::OomMark(mark),
            kill => Event::OomKill(kill),
        },
        Kind::CgroupCreated => Event::CgroupCreated(CgroupChange { stamp, id: fields.u64() }),
        Kind::CgroupRemoved => Event::CgroupRemoved(CgroupChange { stamp, id: fields.u64() }),
        Kind::TaskAlarm => Event::TaskAlarm(fields.task_alarm(stamp)?),
        Kind::KernelKill => Event::KernelKill(fields.kernel_kill(stamp)?),
        Kind::DiskThresholdCrossed => Event::DiskThresholdCrossed(fields.disk_threshold_crossed(stamp)?),
    };
    debug_assert!(fields.rest.is_empty(), "fields of kind {} are left", kind.name());
    Ok(event)
}

fn unknown(kind: Kind, field: &'static str, value: u32) -> DecodeError {
    DecodeError::Field { kind: kind.name(), field, value: value.into() }
}

/// The unread fields of a record. No read runs past the end, because [`decode`] has checked the size.
struct Fields<'a> {
    rest: &'a [u8],
    page_bytes: u64,
}

impl Fields<'_> {
    fn u16(&mut self) -> u16 {
        self.rest.get_u16_ne()
    }

    fn u32(&mut self) -> u32 {
        self.rest.get_u32_ne()
    }

    fn i32(&mut self) -> i32 {
        self.rest.get_i32_ne()
    }

    fn u64(&mut self) -> u64 {
        self.rest.get_u64_ne()
    }

    /// Reads pages as bytes. A counter that is below zero for a moment is a huge number, and counts as 0.
    fn pages(&mut self) -> u64 {
        let pages = self.u64();
        self.bytes_of(pages)
    }

    fn bytes_of(&self, pages: u64) -> u64 {
        match i64::try_from(pages) {
            Ok(_) => pages.saturating_mul(self.page_bytes),
            Err(_) => 0,
        }
    }

    fn threshold_crossed(&mut self, stamp: Stamp) -> Result<ThresholdCrossed, DecodeError> {
        let cgroup_id = self.u64();
        let leaf_id = self.u64();
        let generation = self.u64();
        let usage = self.pages();
        let gross = self.pages();
        let tgid = self.u32();
        let pid = self.u32();
        let edge = self.u32();
        self.u32();
        Ok(ThresholdCrossed {
            stamp,
            cgroup_id,
            leaf_id,
            generation,
            edge: Edge::from_raw(edge).ok_or_else(|| unknown(Kind::ThresholdCrossed, "edge", edge))?,
            usage,
            gross,
            tgid,
            pid,
        })
    }

    fn oom_kill(&mut self, stamp: Stamp) -> Result<OomKill, DecodeError> {
        let comm = self.comm();
        let trigger_comm = self.comm();
        let pid = self.u32();
        let tgid = self.u32();
        let oom_score_adj = self.i32();
        let trigger_tgid = self.u32();
        let rss = Rss { anon: self.pages(), file: self.pages(), shmem: self.pages(), swap: self.pages() };
        let trigger_memcg = self.u64();
        let owner =
            Ancestor { id: self.u64(), usage: self.pages(), max: self.limit(), ..Ancestor::default() };
        let flags = self.u32();
        let chain_len = self.u32();
        let Some(unused) = MAX_CHAIN.checked_sub(chain_len as usize) else {
            return Err(unknown(Kind::OomKill, "chain length", chain_len));
        };
        let chain: Vec<_> = (0..chain_len).map(|_| self.ancestor()).collect();
        self.rest.advance(unused * size_of::<eviction_common::Ancestor>());
        let (names, rest) = self.rest.split_at(MAX_CHAIN * NAME_BYTES);
        self.rest = rest;
        let names = names.chunks_exact(NAME_BYTES).take(chain_len as usize);
        // The kernel truncates a long name and ends it with a NUL. A name that fills its buffer counts as unknown.
        let is_whole = |end: &usize| *end < NAME_BYTES - 1;
        let end = |name: &[u8]| name.iter().position(|byte| *byte == 0).filter(is_whole).unwrap_or(0);
        let names: Vec<Box<[u8]>> = names.map(|name| name[..end(name)].into()).collect();
        let has = |flag| flags & flag != 0;
        let owner = match (has(oom_flag::OWNER), owner.id) {
            (false, _) => OomLimitOwner::Unknown,
            (true, 0) => OomLimitOwner::Global,
            (true, _) => OomLimitOwner::Memcg(owner),
        };
        Ok(OomKill {
            stamp,
            tgid,
            pid,
            comm,
            oom_score_adj: has(oom_flag::SCORE).then_some(oom_score_adj),
            rss: has(oom_flag::RSS).then_some(rss),
            trigger_tgid,
            trigger_comm,
            trigger_memcg: (trigger_memcg != 0).then_some(trigger_memcg),
            owner,
            truncated: has(oom_flag::CUT),
            pid_only: has(oom_flag::PID_ONLY),
            chain,
            names,
        })
    }

    fn comm(&mut self) -> [u8; 16] {
        let mut comm = [0; 16];
        self.rest.copy_to_slice(&mut comm);
        comm
    }

    /// Reads a limit in bytes; `None` if it is the kernel's greatest.
    fn limit(&mut self) -> Option<u64> {
        let max = self.u64().saturating_mul(self.page_bytes);
        (max < UNLIMITED_BYTES).then_some(max)
    }

    fn ancestor(&mut self) -> Ancestor {
        let id = self.u64();
        let usage = self.pages();
        let max = self.limit();
        let oom = self.u64();
        let oom_before = self.u64();
        let oom_kill = self.u64();
        let oom_kill_before = self.u64();
        let flags = self.u32();
        self.u32();
        let has = |flag| flags & flag != 0;
        Ancestor {
            id,
            usage,
            max,
            events: has(ancestor_flag::EVENTS).then_some(OomEvents {
                oom,
                oom_kill,
                oom_before: has(ancestor_flag::OOM_SEEN).then_some(oom_before),
                oom_kill_before: has(ancestor_flag::KILL_SEEN).then_some(oom_kill_before),
            }),
            oom_group: has(ancestor_flag::GROUP),
        }
    }

    fn task_alarm(&mut self, stamp: Stamp) -> Result<TaskAlarm, DecodeError> {
        let memcg_id = self.u64();
        let key_id = self.u64();
        let tasks = self.u64().cast_signed();
        let bound = self.u64().cast_signed();
        let tgid = self.u32();
        let alarm = self.u32();
        let alarm = Alarm::from_raw(alarm).ok_or_else(|| unknown(Kind::TaskAlarm, "alarm", alarm))?;
        Ok(TaskAlarm { stamp, alarm, memcg_id, key_id, tasks, bound, tgid })
    }

    fn kernel_kill(&mut self, stamp: Stamp) -> Result<KernelKill, DecodeError> {
        let order = self.u64();
        let victim_id = self.u64();
        let leaf_id = self.u64();
        let usage = self.pages();
        let grown = self.u64();
        let tgid = self.u32();
        let pid = self.u32();
        let error = self.i32();
        let cause = self.u32();
        let comm = self.comm();
        let error = (error != 0).then_some(error);
        let cause =
            KernelKillCause::from_raw(cause).ok_or_else(|| unknown(Kind::KernelKill, "cause", cause))?;
        let grown = match cause {
            KernelKillCause::Memory => self.bytes_of(grown),
            KernelKillCause::Disk => grown,
        };
        Ok(KernelKill { stamp, order, cause, victim_id, leaf_id, usage, grown, tgid, pid, error, comm })
    }

    fn disk_threshold_crossed(&mut self, stamp: Stamp) -> Result<DiskThresholdCrossed, DecodeError> {
        let generation = self.u64();
        let leaf_id = self.u64();
        let beyond = self.u64();
        let device = self.u32();
        let resource = self.u32();
        let tgid = self.u32();
        let pid = self.u32();
        let resource = DiskResource::from_raw(resource)
            .ok_or_else(|| unknown(Kind::DiskThresholdCrossed, "resource", resource))?;
        let device = user_device(device);
        Ok(DiskThresholdCrossed { stamp, device, resource, generation, beyond, leaf_id, tgid, pid })
    }
}

#[cfg(test)]
mod tests;
