//! Arming a kill order in the kernel, and taking it back.

use aya::maps::MapError;
use eviction_common::{KillOrder, MARK_EPOCH, MARK_LEVEL, Suppressed};

use super::BpfHandle;
use crate::kernel_kill::{
    ArmError, ArmedOrder, KernelKillMaps, LastOrderNumbers, OrderNumber, SampleEpoch, WITHHELD_REASONS,
};
use crate::sys::MapEntry;

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
        // Who does not get the ticket kills nobody, whatever the verdict says. It is gone already
        // when the verdict was carried out.
        let removed = kernel_kill.ticket.remove(&generation);
        kernel_kill.verdict.set(0, MapEntry(KillOrder::NONE), 0)?;
        match removed {
            Ok(()) => Ok(false),
            Err(error) if is_absent(&error) => Ok(true),
            Err(error) => Err(error.into()),
        }
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
