//! What thresholds of memory ask for beside the amount.

use serde::Serialize;

use crate::milli_units::Nanos;
use crate::policy::preferences::{MemoryPreferences, MemoryPsi, PsiKind};
use crate::reading::{Reading, UnknownReason};
use crate::snapshot::MemoryDetail;
use crate::units::Limit;

use super::ThresholdBasis;

/// Whether what thresholds of memory ask for beside the amount is there. Only an open gate
/// lets one be met, or be held by its minimum reclaim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryConditions {
    /// It is, or nothing is asked for.
    #[default]
    Open,
    /// Tasks do not stall for memory as much as is asked for.
    TooLittleStall,
    /// Not as much swap is used as is asked for.
    TooLittleSwapUsed,
    /// Nobody knows, for this reason.
    Unknown(UnknownReason),
}

impl MemoryConditions {
    /// A condition that is known not to be fulfilled counts more than one that is not known.
    pub(crate) fn of(detail: &MemoryDetail, asked: &MemoryPreferences) -> Self {
        let MemoryPreferences { measure: _, psi, swap_used_at_least } = asked;
        let stall = psi.as_ref().map_or(Reading::Known(true), |asked| stalls(detail, asked));
        let swap = swap_used_at_least.as_ref().map_or(Reading::Known(true), |asked| swaps(detail, asked));
        match (stall, swap) {
            (Reading::Known(false), _) => Self::TooLittleStall,
            (_, Reading::Known(false)) => Self::TooLittleSwapUsed,
            (Reading::Unknown(why), _) | (_, Reading::Unknown(why)) => Self::Unknown(why),
            (Reading::Known(true), Reading::Known(true)) => Self::Open,
        }
    }
}

fn stalls(detail: &MemoryDetail, asked: &MemoryPsi) -> Reading<bool> {
    let MemoryPsi { kind, avg10, trigger: _ } = *asked;
    let Some(percent) = avg10 else { return detail.stalled };
    let share = match kind {
        PsiKind::Some => detail.some_avg10,
        PsiKind::Full => detail.full_avg10,
    };
    share.map(|hundredths| hundredths as f64 >= percent * 100.0)
}

/// Swap that is full is enough, however much was asked for.
fn swaps(detail: &MemoryDetail, asked: &Limit) -> Reading<bool> {
    let (used, total) = match (detail.swap_used, detail.swap_total) {
        (Reading::Known(used), Reading::Known(total)) => (used, total),
        (Reading::Unknown(why), _) | (_, Reading::Unknown(why)) => return Reading::Unknown(why),
    };
    let bytes = |bytes: u64| Nanos::from_units(i128::from(bytes));
    let asked = ThresholdBasis::of(asked.value()).at(i64::try_from(total).unwrap_or(i64::MAX));
    Reading::Known(bytes(used) >= asked.min(bytes(total)))
}
