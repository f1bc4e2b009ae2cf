//! Kernel kill for writers: a decision that user space makes ahead, and a BPF program carries out at the buffered
//! write that crosses a threshold of a disk.

use crate::Suppressed;

/// The armed order; the value of map `DISK_KILL_ORDER`, which has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DiskKillOrder {
    /// Number of this order, from the same numbers as [`crate::KillOrder::generation`]; 0 is no order.
    pub generation: u64,
    /// The cgroup of the victim. Only processes in it or below it are killed.
    pub victim_id: u64,
    /// The threshold is crossed when [`crate::DiskTotal::bytes`] is at least this.
    pub bytes_limit: i64,
    /// [`crate::DiskTotal::bytes`] at the sample that the order was made on.
    pub bytes_then: i64,
    /// From when on it is not carried out any more.
    pub expires_ns: u64,
    /// The kernel's number of the device.
    pub device: u64,
    /// [`DiskKillOrder::checked`]: user space does not write a map's value in one piece.
    pub check: u64,
}

/// A buffered write that took blocks, as a program finds it. Each fact is asked for only where it decides.
pub trait Write {
    /// The kernel's number of the device.
    fn device(&self) -> u64;
    /// [`crate::DiskTotal::bytes`] with these blocks.
    fn taken(&self) -> i64;
    /// Whether the task that writes is in this memory cgroup or below it.
    fn is_within(&self, cgroup_id: u64) -> bool;
    /// The process that writes.
    fn tgid(&self) -> u32;
    /// Whether it has memory: a task of the kernel has none.
    fn has_memory(&self) -> bool;
    /// The time.
    fn now_ns(&self) -> u64;
}

/// What is done about a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteJudgement {
    /// Nothing: the threshold is not crossed, or no order is armed for it.
    Pass,
    /// It is crossed, and the process is not killed for this reason.
    Suppress(Suppressed),
    /// The process is to be killed, by whoever takes the order's token.
    Kill,
}

impl DiskKillOrder {
    /// No order.
    pub const NONE: Self = Self {
        generation: 0,
        victim_id: 0,
        bytes_limit: i64::MAX,
        bytes_then: 0,
        expires_ns: 0,
        device: 0,
        check: 0,
    };

    /// What `check` must be: depends on every other field and on their order.
    #[inline(always)]
    pub fn checked(&self) -> u64 {
        let Self { generation, victim_id, bytes_limit, bytes_then, expires_ns, device, check: _ } = *self;
        let mut sum = FNV_BASIS;
        sum = mixed(sum, generation);
        sum = mixed(sum, victim_id);
        sum = mixed(sum, bytes_limit as u64);
        sum = mixed(sum, bytes_then as u64);
        sum = mixed(sum, expires_ns);
        mixed(sum, device)
    }

    /// What is to be done about this write.
    #[inline(always)]
    pub fn judge(&self, write: &impl Write) -> WriteJudgement {
        if self.generation == 0 || self.device != write.device() || write.taken() < self.bytes_limit {
            return WriteJudgement::Pass;
        }
        if self.check != self.checked() {
            return WriteJudgement::Suppress(Suppressed::Torn);
        }
        if !write.has_memory() {
            return WriteJudgement::Suppress(Suppressed::KernelThread);
        }
        if !write.is_within(self.victim_id) {
            return WriteJudgement::Suppress(Suppressed::NotTheVictim);
        }
        if write.tgid() == 1 {
            return WriteJudgement::Suppress(Suppressed::FirstProcess);
        }
        if write.now_ns() >= self.expires_ns {
            return WriteJudgement::Suppress(Suppressed::Expired);
        }
        WriteJudgement::Kill
    }
}

pub(crate) const FNV_BASIS: u64 = 0x9e37_79b9_7f4a_7c15;

/// One step of FNV-1a, a word at a time.
#[inline(always)]
pub(crate) fn mixed(sum: u64, word: u64) -> u64 {
    (sum ^ word).wrapping_mul(0x0100_0000_01b3)
}

const _: () = assert!(size_of::<DiskKillOrder>() == 56);

#[cfg(test)]
mod tests {
    use super::*;

    /// A process of the victim whose write crosses the threshold.
    #[derive(Clone, Copy)]
    struct Facts {
        device: u64,
        taken: i64,
        of_victim: bool,
        tgid: u32,
        has_memory: bool,
        now_ns: u64,
    }

    const WRITER: Facts =
        Facts { device: 7, taken: 5_000, of_victim: true, tgid: 4711, has_memory: true, now_ns: 1_000 };

    impl Write for Facts {
        fn device(&self) -> u64 {
            self.device
        }
        fn taken(&self) -> i64 {
            self.taken
        }
        fn is_within(&self, cgroup_id: u64) -> bool {
            assert_eq!(cgroup_id, 9);
            self.of_victim
        }
        fn tgid(&self) -> u32 {
            self.tgid
        }
        fn has_memory(&self) -> bool {
            self.has_memory
        }
        fn now_ns(&self) -> u64 {
            self.now_ns
        }
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
    fn the_writer_of_the_victim_that_crosses_is_killed() {
        assert_eq!(order().judge(&WRITER), WriteJudgement::Kill);
        assert_eq!(DiskKillOrder::NONE.judge(&WRITER), WriteJudgement::Pass);
    }

    #[test]
    fn nothing_is_done_before_the_threshold_or_on_another_device() {
        for write in [Facts { taken: 4_999, ..WRITER }, Facts { device: 8, ..WRITER }] {
            assert_eq!(order().judge(&write), WriteJudgement::Pass);
        }
    }

    #[test]
    fn each_other_fact_suppresses_the_kill_with_its_reason() {
        for (write, reason) in [
            (Facts { has_memory: false, ..WRITER }, Suppressed::KernelThread),
            (Facts { of_victim: false, ..WRITER }, Suppressed::NotTheVictim),
            (Facts { tgid: 1, ..WRITER }, Suppressed::FirstProcess),
            (Facts { now_ns: 2_000, ..WRITER }, Suppressed::Expired),
        ] {
            assert_eq!(order().judge(&write), WriteJudgement::Suppress(reason));
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
            assert_eq!(order.judge(&WRITER), WriteJudgement::Suppress(Suppressed::Torn), "{order:?}");
        }
    }
}
