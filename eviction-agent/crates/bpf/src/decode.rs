//! Decodes the bytes of a record to an [`Event`]. Any bytes end in an event or in an error that describes what
//! is wrong with them.

use bytes::{Buf, TryGetError};
use eviction_common::{
    ABI_VERSION, Alarm, DiskResource, Edge, KernelKillCause, Kind, MAX_CHAIN, NAME_BYTES, UNLIMITED_BYTES,
    ancestor_flag, oom_flag,
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
    /// The record ends before its last field.
    #[error("record of {have} bytes ends early")]
    Short {
        /// The length of the record in bytes.
        have: usize,
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
    /// The length in the header is not that of the record.
    #[error("record says it has {stated} bytes and has {have}")]
    Length {
        /// The length in the header.
        stated: u32,
        /// The length of the record in bytes.
        have: usize,
    },
    /// The record continues behind its last field.
    #[error("record of kind {kind} goes on behind its end: it has {have} bytes")]
    Long {
        /// The length of the record in bytes.
        have: usize,
        /// The record's kind.
        kind: &'static str,
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
    let have = record.len();
    let mut fields = Fields { rest: record, have, page_bytes };
    let kind = fields.u16()?;
    let abi = fields.u16()?;
    if abi != ABI_VERSION {
        return Err(DecodeError::Abi { found: abi });
    }
    let kind = Kind::from_raw(kind).ok_or(DecodeError::Kind { found: kind })?;
    let stated = fields.u32()?;
    if stated as usize != have {
        return Err(DecodeError::Length { stated, have });
    }
    let cpu = fields.u32()?;
    fields.u32()?;
    let stamp = Stamp { cpu, seq: fields.u64()?, ktime_ns: fields.u64()? };
    let event = match kind {
        Kind::ThresholdCrossed => Event::ThresholdCrossed(fields.threshold_crossed(stamp)?),
        Kind::OomKill => match fields.oom_kill(stamp)? {
            mark if mark.was_killed() == Some(false) => Event::OomMark(mark),
            kill => Event::OomKill(kill),
        },
        Kind::CgroupCreated => Event::CgroupCreated(CgroupChange { stamp, id: fields.u64()? }),
        Kind::CgroupRemoved => Event::CgroupRemoved(CgroupChange { stamp, id: fields.u64()? }),
        Kind::TaskAlarm => Event::TaskAlarm(fields.task_alarm(stamp)?),
        Kind::KernelKill => Event::KernelKill(fields.kernel_kill(stamp)?),
        Kind::DiskThresholdCrossed => Event::DiskThresholdCrossed(fields.disk_threshold_crossed(stamp)?),
    };
    match fields.rest.len() {
        0 => Ok(event),
        _ => Err(DecodeError::Long { have, kind: kind.name() }),
    }
}

fn unknown(kind: Kind, field: &'static str, value: u32) -> DecodeError {
    DecodeError::Field { kind: kind.name(), field, value: value.into() }
}

struct Fields<'a> {
    rest: &'a [u8],
    have: usize,
    page_bytes: u64,
}

impl<'a> Fields<'a> {
    fn short_record(&self) -> impl Fn(TryGetError) -> DecodeError + use<> {
        let have = self.have;
        move |_| DecodeError::Short { have }
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        self.rest.try_get_u16_ne().map_err(self.short_record())
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.rest.try_get_u32_ne().map_err(self.short_record())
    }

    fn i32(&mut self) -> Result<i32, DecodeError> {
        self.rest.try_get_i32_ne().map_err(self.short_record())
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.rest.try_get_u64_ne().map_err(self.short_record())
    }

    /// Reads pages as bytes. A counter that is below zero for a moment is a huge number, and counts as 0.
    fn pages(&mut self) -> Result<u64, DecodeError> {
        let pages = self.u64()?;
        Ok(self.bytes_of(pages))
    }

    fn bytes_of(&self, pages: u64) -> u64 {
        match i64::try_from(pages) {
            Ok(_) => pages.saturating_mul(self.page_bytes),
            Err(_) => 0,
        }
    }

    fn slice(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (slice, rest) = self.rest.split_at_checked(len).ok_or(DecodeError::Short { have: self.have })?;
        self.rest = rest;
        Ok(slice)
    }

    fn threshold_crossed(&mut self, stamp: Stamp) -> Result<ThresholdCrossed, DecodeError> {
        let cgroup_id = self.u64()?;
        let leaf_id = self.u64()?;
        let generation = self.u64()?;
        let usage = self.pages()?;
        let gross = self.pages()?;
        let tgid = self.u32()?;
        let pid = self.u32()?;
        let edge = self.u32()?;
        self.u32()?;
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
        let comm = self.comm()?;
        let trigger_comm = self.comm()?;
        let pid = self.u32()?;
        let tgid = self.u32()?;
        let oom_score_adj = self.i32()?;
        let trigger_tgid = self.u32()?;
        let rss = Rss { anon: self.pages()?, file: self.pages()?, shmem: self.pages()?, swap: self.pages()? };
        let trigger_memcg = self.u64()?;
        let owner =
            Ancestor { id: self.u64()?, usage: self.pages()?, max: self.limit()?, ..Ancestor::default() };
        let flags = self.u32()?;
        let chain_len = self.u32()?;
        let Some(unused) = MAX_CHAIN.checked_sub(chain_len as usize) else {
            return Err(unknown(Kind::OomKill, "chain length", chain_len));
        };
        let chain = (0..chain_len).map(|_| self.ancestor()).collect::<Result<Vec<_>, _>>()?;
        self.slice(unused * size_of::<eviction_common::Ancestor>())?;
        let names = self.slice(MAX_CHAIN * NAME_BYTES)?.chunks_exact(NAME_BYTES).take(chain_len as usize);
        // A name without a NUL may be cut off, so it counts as unknown.
        let end = |name: &[u8]| name.iter().position(|byte| *byte == 0).unwrap_or(0);
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

    fn comm(&mut self) -> Result<[u8; 16], DecodeError> {
        let mut comm = [0; 16];
        comm.copy_from_slice(self.slice(16)?);
        Ok(comm)
    }

    /// Reads a limit in bytes; `None` if it is the kernel's greatest.
    fn limit(&mut self) -> Result<Option<u64>, DecodeError> {
        let max = self.u64()?.saturating_mul(self.page_bytes);
        Ok((max < UNLIMITED_BYTES).then_some(max))
    }

    fn ancestor(&mut self) -> Result<Ancestor, DecodeError> {
        let id = self.u64()?;
        let usage = self.pages()?;
        let max = self.limit()?;
        let oom = self.u64()?;
        let oom_before = self.u64()?;
        let oom_kill = self.u64()?;
        let oom_kill_before = self.u64()?;
        let flags = self.u32()?;
        self.u32()?;
        let has = |flag| flags & flag != 0;
        Ok(Ancestor {
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
        })
    }

    fn task_alarm(&mut self, stamp: Stamp) -> Result<TaskAlarm, DecodeError> {
        let memcg_id = self.u64()?;
        let key_id = self.u64()?;
        let tasks = self.u64()?.cast_signed();
        let bound = self.u64()?.cast_signed();
        let tgid = self.u32()?;
        let alarm = self.u32()?;
        let alarm = Alarm::from_raw(alarm).ok_or_else(|| unknown(Kind::TaskAlarm, "alarm", alarm))?;
        Ok(TaskAlarm { stamp, alarm, memcg_id, key_id, tasks, bound, tgid })
    }

    fn kernel_kill(&mut self, stamp: Stamp) -> Result<KernelKill, DecodeError> {
        let order = self.u64()?;
        let victim_id = self.u64()?;
        let leaf_id = self.u64()?;
        let usage = self.pages()?;
        let grown = self.u64()?;
        let tgid = self.u32()?;
        let pid = self.u32()?;
        let error = self.i32()?;
        let cause = self.u32()?;
        let comm = self.comm()?;
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
        let generation = self.u64()?;
        let leaf_id = self.u64()?;
        let beyond = self.u64()?;
        let device = self.u32()?;
        let resource = self.u32()?;
        let tgid = self.u32()?;
        let pid = self.u32()?;
        let resource = DiskResource::from_raw(resource)
            .ok_or_else(|| unknown(Kind::DiskThresholdCrossed, "resource", resource))?;
        let device = user_device(device);
        Ok(DiskThresholdCrossed { stamp, device, resource, generation, beyond, leaf_id, tgid, pid })
    }
}

#[cfg(test)]
mod tests;
