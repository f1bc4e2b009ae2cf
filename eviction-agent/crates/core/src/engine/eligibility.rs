//! Whether a pod goes when its turn has come.

use crate::pods::{KnownPod, PodSet};
use crate::policy::DiskRanking;
use crate::protection::{EvictionGuard, EvictionRequest, Refusal};
use crate::rank::Measure;
use crate::snapshot::PodStats;

/// A pod of which it is asked whether it may go.
pub(super) struct EvictionCandidate<'a> {
    pub(super) pods: &'a PodSet,
    pub(super) place: u32,
    pub(super) known: &'a KnownPod,
    pub(super) stats: Option<PodStats<'a>>,
}

/// Why the pod does not go, if it does not. `measure` is what is short on the node; nothing is
/// if it goes for its own limits.
pub(super) fn refusal(
    guard: &EvictionGuard,
    ask: EvictionRequest,
    measure: Option<Measure>,
    turn: &EvictionCandidate<'_>,
) -> Option<Refusal> {
    let EvictionCandidate { pods, place, known, stats } = *turn;
    guard.refusal(ask, known).or_else(|| {
        let by_what_is_freed = known.disk_ranking == DiskRanking::ByWhatIsFreed;
        let frees_nothing = |measure: Measure| measure.frees_nothing(pods, place, stats);
        (by_what_is_freed && measure.is_some_and(frees_nothing)).then_some(Refusal::FreesNothing)
    })
}
