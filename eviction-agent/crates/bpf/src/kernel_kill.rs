//! The standing verdict as the kernel side holds it: marks, arming, what was withheld.

use aya::maps::{Array, HashMap as BpfHashMap, MapData, MapError, PerCpuArray};
use eviction_common::{KillOrder, Suppressed, SuppressedCount};
use thiserror::Error;

use super::sys::MapEntry;

/// How many reasons there are to leave a crossing unanswered.
pub const WITHHELD_REASONS: usize = Suppressed::ALL.len();

/// How they are called in metrics.
pub fn withheld_reasons() -> [&'static str; WITHHELD_REASONS] {
    Suppressed::ALL.map(Suppressed::name)
}

/// The number of a sample's mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SampleEpoch(pub(super) u64);

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
    pub(super) epoch: u64,
    pub(super) verdict: u64,
}

/// The maps of kernel kills, and the armed order.
pub(super) struct KernelKillMaps {
    pub(super) mark: Array<MapData, u64>,
    pub(super) verdict: Array<MapData, MapEntry<KillOrder>>,
    pub(super) ticket: BpfHashMap<MapData, u64, u8>,
    pub(super) withheld: PerCpuArray<MapData, MapEntry<SuppressedCount>>,
    pub(super) last_epoch: u64,
    pub(super) is_marked: bool,
    pub(super) last_verdict: u64,
    pub(super) stands: Option<u64>,
}
