//! Kernel kill for writers: user space makes the decision in advance, and a BPF program carries it out at the
//! buffered write that crosses a file system threshold.

use crate::{ChargingProcess, KillDecision, Suppressed};

/// The armed order; the only value of map `DISK_KILL_ORDER`. The default is no order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DiskKillOrder {
    /// The number of this order, from the same sequence as [`crate::KillOrder::generation`]; 0 means no
    /// order.
    pub generation: u64,
    /// The cgroup of the victim. Only processes in it or below it are killed.
    pub victim_id: u64,
    /// The threshold is crossed when [`crate::DiskTotal::observed`] is at least this.
    pub bytes_limit: i64,
    /// [`crate::DiskTotal::observed`] at the sample on which the order is based.
    pub bytes_then: i64,
    /// The time from which the order is no longer carried out.
    pub expires_ns: u64,
    /// The kernel's device number.
    pub device: u64,
    /// The checksum, see [`DiskKillOrder::checked`]. User space does not write a map value atomically.
    pub check: u64,
}

impl DiskKillOrder {
    /// Returns the checksum for `check`. It depends on all other fields and on their order.
    #[inline(always)]
    pub fn checked(&self) -> u64 {
        let Self { generation, victim_id, bytes_limit, bytes_then, expires_ns, device, check: _ } = *self;
        let mut sum = FNV_BASIS;
        sum = fnv_step(sum, generation);
        sum = fnv_step(sum, victim_id);
        sum = fnv_step(sum, bytes_limit as u64);
        sum = fnv_step(sum, bytes_then as u64);
        sum = fnv_step(sum, expires_ns);
        fnv_step(sum, device)
    }

    /// Returns the decision on a buffered write to a device. `taken` is [`crate::DiskTotal::observed`] including
    /// the blocks of this write. `process` is called only if the threshold is crossed: what it returns costs
    /// several calls.
    #[inline(always)]
    pub fn decide(&self, device: u64, taken: i64, process: impl FnOnce() -> ChargingProcess) -> KillDecision {
        if self.generation == 0 || self.device != device || taken < self.bytes_limit {
            return KillDecision::Pass;
        }
        if self.check != self.checked() {
            return KillDecision::Suppress(Suppressed::Torn);
        }
        match process().suppressed(self.expires_ns) {
            Some(why) => KillDecision::Suppress(why),
            None => KillDecision::Kill(taken.wrapping_sub(self.bytes_then) as u64),
        }
    }
}

pub(crate) const FNV_BASIS: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the checksum after one step of FNV-1a over a 64-bit word.
#[inline(always)]
pub(crate) fn fnv_step(sum: u64, word: u64) -> u64 {
    (sum ^ word).wrapping_mul(0x0100_0000_01b3)
}

const _: () = assert!(size_of::<DiskKillOrder>() == 56);

#[cfg(test)]
mod tests {
    use super::*;

    /// A process of the victim.
    const WRITER: ChargingProcess = ChargingProcess {
        is_within_victim: true,
        tgid: 4711,
        has_memory: true,
        is_in_charged_cgroup: true,
        now_ns: 1_000,
    };

    /// Returns the decision on a write of this process that crosses the threshold.
    fn decide(order: &DiskKillOrder, writer: ChargingProcess) -> KillDecision {
        order.decide(7, 5_000, || writer)
    }

    fn order() -> DiskKillOrder {
        let order = DiskKillOrder {
            generation: 3,
            victim_id: 9,
            bytes_limit: 5_000,
            bytes_then: 1_000,
            expires_ns: 2_000,
            device: 7,
            check: 0,
        };
        DiskKillOrder { check: order.checked(), ..order }
    }

    #[test]
    fn writer_of_the_victim_is_killed_when_it_crosses_the_threshold() {
        assert_eq!(decide(&order(), WRITER), KillDecision::Kill(4_000));
    }

    #[test]
    fn the_process_is_not_read_without_an_order_below_the_threshold_or_on_other_devices() {
        let none = DiskKillOrder::default();
        for (order, device, taken) in [(none, 7, 5_000), (order(), 7, 4_999), (order(), 8, 5_000)] {
            let decision = order.decide(device, taken, || panic!("read for {order:?}"));
            assert_eq!(decision, KillDecision::Pass);
        }
    }

    #[test]
    fn each_failed_condition_suppresses_the_kill_with_its_reason() {
        for (writer, reason) in [
            (ChargingProcess { has_memory: false, ..WRITER }, Suppressed::KernelThread),
            (ChargingProcess { is_within_victim: false, ..WRITER }, Suppressed::NotTheVictim),
            (ChargingProcess { tgid: 1, ..WRITER }, Suppressed::FirstProcess),
            (ChargingProcess { now_ns: 2_000, ..WRITER }, Suppressed::Expired),
        ] {
            assert_eq!(decide(&order(), writer), KillDecision::Suppress(reason));
        }
    }

    #[test]
    fn an_order_that_is_half_written_is_not_carried_out() {
        let torn: [fn(&mut DiskKillOrder); 6] = [
            |order| order.generation += 1,
            |order| order.victim_id += 1,
            |order| order.bytes_limit -= 1,
            |order| order.bytes_then += 1,
            |order| order.expires_ns += 1,
            |order| order.check += 1,
        ];
        for change in torn {
            let mut order = order();
            change(&mut order);
            assert_eq!(decide(&order, WRITER), KillDecision::Suppress(Suppressed::Torn), "{order:?}");
        }
    }
}
