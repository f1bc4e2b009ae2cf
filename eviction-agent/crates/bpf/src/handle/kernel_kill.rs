//! The kill order as the kernel side holds it: arming it, taking it back, and what was withheld.

use aya::maps::{Array, HashMap as BpfHashMap, MapData, MapError, PerCpuArray};
use eviction_common::{DiskKillOrder, KillOrder, MARK_EPOCH, MARK_LEVEL, Suppressed, SuppressedCount};
use thiserror::Error;

use super::BpfHandle;
use crate::sys::MapEntry;

/// How many reasons there are to leave a crossing unanswered.
pub const WITHHELD_REASONS: usize = Suppressed::ALL.len();

/// How they are called in metrics.
pub fn withheld_reasons() -> [&'static str; WITHHELD_REASONS] {
    Suppressed::ALL.map(Suppressed::name)
}

/// The number of a sample's mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SampleEpoch(pub(crate) u64);

/// A verdict that the kernel side is to carry out, in bytes and nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArmedOrder {
    /// The mark of the sample that it was made on.
    pub epoch: SampleEpoch,
    /// The victim's cgroup, which is below `level_id`.
    pub victim_id: u64,
    /// The cgroup whose line it is.
    pub level_id: u64,
    /// The working set that must not be exceeded, if the level's page counter has all usage that
    /// counts: it has not at the root, where tasks may be without a group.
    pub line: Option<u64>,
    /// What was left to the line at the sample. More than nothing.
    pub distance: u64,
    /// What can be taken from the sample on until page cache must make room, where that is not at the
    /// level's own limit: at the root, which has none.
    pub room: Option<u64>,
    /// When it expires.
    pub expires_ns: u64,
    /// Until when usage that stands at the level's limit is taken for page cache that makes room.
    pub still_until_ns: u64,
}

/// The number of a verdict; greater than that of every verdict before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrderNumber(pub u64);

/// Why a verdict does not stand.
#[derive(Debug, Error)]
pub enum ArmError {
    /// The programs were loaded without it, or this kernel does not show them what they need.
    #[error("the programs were loaded without kernel kill")]
    Absent,
    /// A distance of nothing: any process would have grown by as much.
    #[error("arm a verdict at the line itself")]
    NoDistance,
    /// The verdict before was carried out, and its record is on its way.
    #[error("the verdict before was carried out")]
    CarriedOut,
    /// A map could not be written.
    #[error("arm a verdict")]
    Map(#[from] MapError),
}

/// Numbers of samples and verdicts that were given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastOrderNumbers {
    pub(crate) epoch: u64,
    pub(crate) verdict: u64,
}

/// The maps of kernel kills, and the armed order.
pub(crate) struct KernelKillMaps {
    pub(crate) mark: Array<MapData, u64>,
    pub(crate) verdict: Array<MapData, MapEntry<KillOrder>>,
    pub(crate) ticket: BpfHashMap<MapData, u64, u8>,
    pub(crate) withheld: PerCpuArray<MapData, MapEntry<SuppressedCount>>,
    pub(crate) last_epoch: u64,
    pub(crate) is_marked: bool,
    pub(crate) last_verdict: u64,
    pub(crate) stands: Option<u64>,
    pub(crate) disk_order: Array<MapData, MapEntry<DiskKillOrder>>,
    pub(crate) disk_order_armed: Option<u64>,
}

impl KernelKillMaps {
    /// Takes the token of an order: a program that does not get it kills nobody, whatever the order says. Whether the
    /// order was carried out before: then the token is gone.
    pub(super) fn take_token(&mut self, generation: u64) -> Result<bool, ArmError> {
        match self.ticket.remove(&generation) {
            Ok(()) => Ok(false),
            Err(error) if is_absent(&error) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

impl BpfHandle {
    /// Whether a verdict can stand.
    pub fn has_kernel_kill(&self) -> bool {
        self.kernel_kill.is_some()
    }

    /// Marks a sample of this cgroup, just after it was read: what a process and the cgroup grow from
    /// now on counts against the distance that the sample leaves.
    ///
    /// # Errors
    /// See [`ArmError`].
    pub fn mark_sample(&mut self, level_id: u64) -> Result<SampleEpoch, ArmError> {
        let kernel_kill = self.kernel_kill.as_mut().ok_or(ArmError::Absent)?;
        kernel_kill.last_epoch += 1;
        kernel_kill.mark.set(MARK_LEVEL, level_id, 0)?;
        kernel_kill.mark.set(MARK_EPOCH, kernel_kill.last_epoch, 0)?;
        kernel_kill.is_marked = true;
        Ok(SampleEpoch(kernel_kill.last_epoch))
    }

    /// Lets a verdict stand instead of the one before. From now on until it expires, or another
    /// call, a process of the victim may be killed by it, once.
    ///
    /// Bytes are rounded to pages so that the line is never taken for crossed too early.
    ///
    /// # Errors
    /// See [`ArmError`]. Then none stands.
    pub fn stand(&mut self, standing: &ArmedOrder) -> Result<OrderNumber, ArmError> {
        let page = self.page_bytes;
        if self.stand_down()? {
            return Err(ArmError::CarriedOut);
        }
        let kernel_kill = self.kernel_kill.as_mut().ok_or(ArmError::Absent)?;
        let ArmedOrder { epoch, victim_id, level_id, line, distance, room, expires_ns, still_until_ns } =
            *standing;
        if distance == 0 {
            return Err(ArmError::NoDistance);
        }
        kernel_kill.last_verdict += 1;
        let generation = kernel_kill.last_verdict;
        // With this page more the line is crossed, and not only reached.
        let growth = distance / page + 1;
        let mut verdict = KillOrder {
            generation,
            epoch: epoch.0,
            victim_id,
            level_id,
            expires_ns,
            usage_least: line.map_or(0, |line| line / page + 1),
            growth,
            room: room.map_or(u64::MAX, |room| room.div_ceil(page)),
            still_until_ns,
            check: 0,
        };
        verdict.check = verdict.checked();
        // The ticket first: without it nothing is carried out, and it alone does nothing.
        kernel_kill.ticket.insert(generation, 1, 0)?;
        kernel_kill.stands = Some(generation);
        if let Err(error) = kernel_kill.verdict.set(0, MapEntry(verdict), 0) {
            let _ = self.stand_down();
            return Err(error.into());
        }
        Ok(OrderNumber(generation))
    }

    /// Lets no verdict stand; whether the one that stood was carried out before. Then its record comes, if it
    /// is not there yet.
    ///
    /// # Errors
    /// If the kernel side cannot be told. The verdict expires all the same.
    pub fn stand_down(&mut self) -> Result<bool, ArmError> {
        let Some(kernel_kill) = &mut self.kernel_kill else { return Ok(false) };
        let Some(generation) = kernel_kill.stands.take() else { return Ok(false) };
        let is_carried_out = kernel_kill.take_token(generation);
        kernel_kill.verdict.set(0, MapEntry(KillOrder::NONE), 0)?;
        is_carried_out
    }

    /// The numbers that were given last: programs that are loaded in the place of these go on from them,
    /// so that a record of either tells which verdict it is of. None were given without kernel kill.
    pub fn last_numbers(&self) -> LastOrderNumbers {
        let numbers = |kernel_kill: &KernelKillMaps| LastOrderNumbers {
            epoch: kernel_kill.last_epoch,
            verdict: kernel_kill.last_verdict,
        };
        self.kernel_kill.as_ref().map(numbers).unwrap_or_default()
    }

    /// Goes on from the numbers of earlier programs.
    pub fn go_on_from(&mut self, last: LastOrderNumbers) {
        if let Some(kernel_kill) = &mut self.kernel_kill {
            (kernel_kill.last_epoch, kernel_kill.last_verdict) = (last.epoch, last.verdict);
        }
    }

    /// The same, and samples are not marked any more: no line is near, and looking costs.
    ///
    /// # Errors
    /// As [`BpfHandle::stand_down`].
    pub fn rest(&mut self) -> Result<(), ArmError> {
        self.stand_down()?;
        if let Some(kernel_kill) = &mut self.kernel_kill
            && kernel_kill.is_marked
        {
            kernel_kill.mark.set(MARK_EPOCH, 0, 0)?;
            kernel_kill.is_marked = false;
        }
        Ok(())
    }

    /// For how many verdicts (and CPUs) a crossing was not answered, by reason.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn withheld(&self) -> Result<[(&'static str, u64); WITHHELD_REASONS], MapError> {
        let mut all = Suppressed::ALL.map(|why| (why.name(), 0));
        if let Some(kernel_kill) = &self.kernel_kill {
            for (why, (_, sum)) in Suppressed::ALL.into_iter().zip(&mut all) {
                let per_cpu = kernel_kill.withheld.get(&(why as u32), 0)?;
                *sum = per_cpu.iter().map(|MapEntry(on_cpu)| on_cpu.count).sum();
            }
        }
        Ok(all)
    }
}

fn is_absent(error: &MapError) -> bool {
    match error {
        MapError::KeyNotFound => true,
        MapError::SyscallError(error) => error.io_error.kind() == std::io::ErrorKind::NotFound,
        _ => false,
    }
}
