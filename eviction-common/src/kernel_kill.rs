//! Kernel kill: a decision that user space makes ahead and a BPF program carries out.
//!
//! User space marks each sample with an epoch, and arms a [`KillOrder`] that refers to it. The charge
//! program kills the process that charges, if that process alone has grown by all that was left to the
//! threshold when the sample was taken, and everything else that the kill order asks for holds as well.

use crate::{
    Header,
    disk_kill::{FNV_BASIS, mixed},
};

/// The armed kill order; the value of map `KILL_ORDER`, which has one. Figures of memory are in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct KillOrder {
    /// Number of this kill order; none is used twice, and 0 is no kill order.
    pub generation: u64,
    /// The sample that it was made on: what a process has grown is counted from its mark.
    pub epoch: u64,
    /// The cgroup of the victim. Only processes in it or below it are killed.
    pub victim_id: u64,
    /// The cgroup whose threshold it is: the victim's is below it.
    pub level_id: u64,
    /// From when on it is not carried out any more.
    pub expires_ns: u64,
    /// The threshold, where usage is what the level's page counter says: it is never less than the working
    /// set, so with less the threshold is not crossed. 0 at the root, whose counter has not all of it.
    pub usage_least: u64,
    /// The distance to the threshold at the sample. The process must have grown by as much, and usage as
    /// well unless page cache makes room.
    pub growth: u64,
    /// What can be taken from the sample on until page cache must make room, where the level has no
    /// limit at which its usage would stand; `u64::MAX` where that is not known.
    pub room: u64,
    /// Until when usage that stands at the level's limit, or there, is taken for page cache that makes room.
    /// Later something else may have been freed as well.
    pub still_until_ns: u64,
    /// [`KillOrder::checked`]: user space does not write a map's value in one piece.
    pub check: u64,
}

impl KillOrder {
    /// No kill order.
    pub const NONE: Self = Self {
        generation: 0,
        epoch: 0,
        victim_id: 0,
        level_id: 0,
        expires_ns: 0,
        usage_least: 0,
        growth: 0,
        room: u64::MAX,
        still_until_ns: 0,
        check: 0,
    };

    /// What `check` must be: depends on every other field and on their order.
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
        sum = mixed(sum, generation);
        sum = mixed(sum, epoch);
        sum = mixed(sum, victim_id);
        sum = mixed(sum, level_id);
        sum = mixed(sum, expires_ns);
        sum = mixed(sum, usage_least);
        sum = mixed(sum, growth);
        sum = mixed(sum, room);
        mixed(sum, still_until_ns)
    }
}

/// Indices into map `SAMPLE_EPOCH`: the number of the last sample, 0 while no threshold is near.
pub const MARK_EPOCH: u32 = 0;

/// The cgroup whose threshold is near.
pub const MARK_LEVEL: u32 = 1;

/// How many there are.
pub const MARKS: u32 = 2;

/// What a process or the level had when it was first seen after a mark; the value of map `GROWTH_BASELINE`,
/// whose key is the process, and of map `USAGE_BASELINE`, which has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GrowthBaseline {
    /// Whose it is: the address of the process's memory, another one after an exec; or the id of the
    /// level's cgroup.
    pub of: u64,
    /// Which mark; 0 while it is being written.
    pub epoch: u64,
    /// Anonymous pages of the process then, or usage of the level.
    pub pages: u64,
    /// The mark before, which a kill order still may refer to.
    pub before_epoch: u64,
    /// Pages then.
    pub before_pages: u64,
}

/// Why a crossing was not answered with SIGKILL; the index into map `SUPPRESSED`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Suppressed {
    /// The kill order was being written.
    Torn = 0,
    /// The task is one of the kernel's, which has no memory of its own.
    KernelThread = 1,
    /// The task is the first process, which must never die.
    FirstProcess = 2,
    /// The task is not of the victim.
    NotTheVictim = 3,
    /// The task charges to another cgroup than its own.
    Remote = 4,
    /// The kill order is too old.
    Expired = 5,
    /// The process has not grown by the distance: others did, or it fills the page cache.
    NotGrown = 6,
    /// The process has grown by the distance, but usage has not: something else was freed.
    UsageStill = 7,
    /// The kill order was carried out already, or withdrawn.
    Spent = 8,
    /// The record did not fit into the ring: nobody is killed without a record.
    NoRoom = 9,
    /// The kernel refused the signal.
    Refused = 10,
}

impl Suppressed {
    /// How many there are.
    pub const COUNT: u32 = 11;

    /// All, in their order.
    pub const ALL: [Self; Self::COUNT as usize] = [
        Self::Torn,
        Self::KernelThread,
        Self::FirstProcess,
        Self::NotTheVictim,
        Self::Remote,
        Self::Expired,
        Self::NotGrown,
        Self::UsageStill,
        Self::Spent,
        Self::NoRoom,
        Self::Refused,
    ];

    /// How it is called in metrics.
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

/// How often, on one CPU; the value of map `SUPPRESSED`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SuppressedCount {
    /// The kill order for which it was counted last: once for each is enough.
    pub generation: u64,
    /// For how many kill orders.
    pub count: u64,
}

/// A program carried out the armed kill order. Pushed at once and with a wake-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct KernelKill {
    /// [`crate::Kind::KernelKill`].
    pub header: Header,
    /// [`KillOrder::generation`].
    pub generation: u64,
    /// The victim's cgroup.
    pub victim_id: u64,
    /// The cgroup that was charged: the victim's or one below it.
    pub leaf_id: u64,
    /// Usage of the level then, pages. For a disk 0.
    pub usage: u64,
    /// By how many pages the process had grown since the sample. For a disk: bytes that were taken of it since then.
    pub grown: u64,
    /// The process that was sent SIGKILL.
    pub tgid: u32,
    /// Its thread that charged.
    pub pid: u32,
    /// 0, or the error with which the kernel refused the signal (a negative errno).
    pub error: i32,
    /// A [`KernelKillCause`].
    pub cause: u32,
    /// Its name, zero-padded.
    pub comm: [u8; 16],
}

/// Which order was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum KernelKillCause {
    /// A [`KillOrder`], at a charge of memory.
    Memory = 0,
    /// A [`crate::DiskKillOrder`], at a buffered write.
    Disk = 1,
}

impl KernelKillCause {
    /// The one with this number.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            0 => Some(Self::Memory),
            1 => Some(Self::Disk),
            _ => None,
        }
    }
}

const _: () = {
    assert!(size_of::<KillOrder>() == 80);
    assert!(size_of::<GrowthBaseline>() == 40);
    assert!(size_of::<SuppressedCount>() == 16);
    assert!(size_of::<KernelKill>() == 104);
};
