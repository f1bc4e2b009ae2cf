//! Kernel kill: user space makes a decision in advance, and a BPF program carries it out.
//!
//! User space assigns an epoch to each sample and arms a [`KillOrder`] that refers to it. The charge program
//! kills the charging process if this process alone has grown by the headroom that was left to the threshold
//! at the sample, and all other conditions of the kill order hold.

use crate::{
    Header,
    disk_kill::{FNV_BASIS, fnv_step},
    numbered_enum::numbered_enum,
};

/// The armed kill order; the only value of map `KILL_ORDER`. The default is no order. Memory values are in
/// pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct KillOrder {
    /// The number of this kill order. Each number is used once; 0 means no kill order.
    pub generation: u64,
    /// The epoch of the sample on which the order is based. Growth of a process is counted from this epoch.
    pub epoch: u64,
    /// The cgroup of the victim. Only processes in it or below it are killed.
    pub victim_id: u64,
    /// The cgroup that has the threshold. The victim is below it.
    pub level_id: u64,
    /// The time from which the order is no longer carried out.
    pub expires_ns: u64,
    /// The threshold as a usage of the level's page counter. That counter is never below the working set, so
    /// with a lower usage the threshold is not crossed. 0 at the root, because the root's counter does not
    /// include all memory.
    pub usage_least: u64,
    /// The headroom to the threshold at the sample. The process must have grown by this amount. Usage must
    /// have grown by it as well, unless page cache is reclaimed.
    pub growth: u64,
    /// The pages that can be charged after the sample before page cache must be reclaimed, for a level
    /// without a limit that would stop its usage; `u64::MAX` if not known.
    pub room: u64,
    /// Until this time, usage that stays at the level's limit or at the end of `room` is attributed to
    /// reclaim of page cache. Later, other memory may have been freed as well.
    pub still_until_ns: u64,
    /// The checksum, see [`KillOrder::checked`]. User space does not write a map value atomically.
    pub check: u64,
}

impl KillOrder {
    /// Returns the checksum for `check`. It depends on all other fields and on their order.
    #[inline(always)]
    pub fn checked(&self) -> u64 {
        let Self {
            generation,
            epoch,
            victim_id,
            level_id,
            expires_ns,
            usage_least,
            growth,
            room,
            still_until_ns,
            check: _,
        } = *self;
        let mut sum = FNV_BASIS;
        sum = fnv_step(sum, generation);
        sum = fnv_step(sum, epoch);
        sum = fnv_step(sum, victim_id);
        sum = fnv_step(sum, level_id);
        sum = fnv_step(sum, expires_ns);
        sum = fnv_step(sum, usage_least);
        sum = fnv_step(sum, growth);
        sum = fnv_step(sum, room);
        fnv_step(sum, still_until_ns)
    }
}

/// Index into map `SAMPLE_EPOCH`: the epoch of the last sample; 0 while no threshold is near.
pub const MARK_EPOCH: u32 = 0;

/// Index into map `SAMPLE_EPOCH`: the cgroup that has the near threshold.
pub const MARK_LEVEL: u32 = 1;

/// The number of elements of map `SAMPLE_EPOCH`.
pub const MARKS: u32 = 2;

/// The pages of a process or of the level when a program first saw it after an epoch began; the value of map
/// `GROWTH_BASELINE`, whose key is the process, and the only value of map `USAGE_BASELINE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GrowthBaseline {
    /// The owner of the baseline: the address of the process's `mm_struct`, which changes at an exec, or the
    /// id of the level's cgroup.
    pub of: u64,
    /// The epoch of the baseline; 0 while it is being written.
    pub epoch: u64,
    /// Anonymous pages of the process, or usage of the level, in that epoch.
    pub pages: u64,
    /// The previous epoch, to which a kill order may still refer.
    pub before_epoch: u64,
    /// Pages in the previous epoch.
    pub before_pages: u64,
}

numbered_enum! {
    /// Why a threshold crossing did not lead to SIGKILL; the index into map `SUPPRESSED`.
    pub enum Suppressed: u32 {
        /// The kill order was being written.
        Torn = 0,
        /// The task is a kernel thread, which has no memory of its own.
        KernelThread = 1,
        /// The task is process 1, which must not be killed.
        FirstProcess = 2,
        /// The task does not belong to the victim.
        NotTheVictim = 3,
        /// The task charges a cgroup other than its own.
        Remote = 4,
        /// The kill order has expired.
        Expired = 5,
        /// The process has not grown by the headroom: others did, or it fills the page cache.
        NotGrown = 6,
        /// The process has grown by the headroom, but usage has not: other memory was freed.
        UsageStill = 7,
        /// The kill order was already carried out or withdrawn.
        Spent = 8,
        /// The record did not fit into the ring. No process is killed without a record.
        NoRoom = 9,
        /// The kernel rejected the signal.
        Refused = 10,
    }
}

impl Suppressed {
    /// Returns the name that metrics use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Torn => "partial_write",
            Self::KernelThread => "kernel_thread",
            Self::FirstProcess => "init_process",
            Self::NotTheVictim => "not_victim",
            Self::Remote => "remote_charge",
            Self::Expired => "expired",
            Self::NotGrown => "not_grown",
            Self::UsageStill => "usage_not_grown",
            Self::Spent => "consumed",
            Self::NoRoom => "ring_full",
            Self::Refused => "signal_failed",
        }
    }
}

/// How often a reason applied on one CPU; the value of map `SUPPRESSED`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SuppressedCount {
    /// The kill order for which the reason was last counted. Each order is counted once.
    pub generation: u64,
    /// The number of kill orders.
    pub count: u64,
}

/// A program carried out the armed kill order. The record is pushed at once with a wake-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct KernelKill {
    /// [`crate::Kind::KernelKill`].
    pub header: Header,
    /// [`KillOrder::generation`].
    pub generation: u64,
    /// The cgroup of the victim.
    pub victim_id: u64,
    /// The charged cgroup: the victim's or one below it.
    pub leaf_id: u64,
    /// Usage of the level at the kill, in pages; 0 for a file system.
    pub usage: u64,
    /// The growth of the process since the sample, in pages. For a file system: the bytes taken since the
    /// sample.
    pub grown: u64,
    /// The process that received SIGKILL.
    pub tgid: u32,
    /// The thread of that process that made the charge or write.
    pub pid: u32,
    /// 0, or the negative errno with which the kernel rejected the signal.
    pub error: i32,
    /// A [`KernelKillCause`].
    pub cause: u32,
    /// The name of the process, zero-padded.
    pub comm: [u8; 16],
}

numbered_enum! {
    /// The kind of order that was carried out.
    pub enum KernelKillCause: u32 {
        /// A [`KillOrder`], at a memory charge.
        Memory = 0,
        /// A [`crate::DiskKillOrder`], at a buffered write.
        Disk = 1,
    }
}

const _: () = {
    // Each number is an index into map `SUPPRESSED`.
    let mut index = 0;
    while index < Suppressed::ALL.len() {
        assert!(Suppressed::ALL[index] as usize == index);
        index += 1;
    }
    assert!(size_of::<KillOrder>() == 80);
    assert!(size_of::<GrowthBaseline>() == 40);
    assert!(size_of::<SuppressedCount>() == 16);
    assert!(size_of::<KernelKill>() == 88);
};
