//! Why no verdict stands.

use std::fmt;

use serde::Serialize;

use crate::eviction::EvaluationEnd;
use crate::reading::UnknownReason;

/// Why nobody may be killed without another look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "reason", content = "detail")]
pub enum NotArmedReason {
    /// The policy does not want it.
    Off,
    /// No hard threshold of `memory.available` counts: soft ones never have a verdict.
    NoHardLine,
    /// What is available is not measured by the working set, whose growth charges bound.
    OtherMeasure,
    /// The threshold asks for pressure or swap as well, which the kernel side does not see.
    AsksForMore,
    /// What is available is not known.
    Unknown(UnknownReason),
    /// A hard threshold is met: the ordinary way is under way.
    CrossedAlready,
    /// Nothing is left to the line: growth by nothing would be growth enough.
    AtTheLine,
    /// The line is far.
    Far,
    /// A changed policy waits to take effect.
    PolicyWaits,
    /// Nobody would go: how the pass would end.
    NobodyGoes(EvaluationEnd),
    /// Somebody would go, but for something else.
    GoesForSomethingElse,
    /// The pod is on its way already.
    GoesAlready,
    /// The pod is critical.
    Critical,
    /// The pod opts out of evictions, or a rule protects it.
    Protected,
    /// What the pod uses is not known.
    UsageUnknown,
    /// Another pod is its equal: which of the two goes is chance.
    Alike,
}

impl NotArmedReason {
    /// Each of them, with anything for what is within.
    pub const ALL: [Self; 16] = [
        Self::Off,
        Self::NoHardLine,
        Self::OtherMeasure,
        Self::AsksForMore,
        Self::Unknown(UnknownReason::Absent),
        Self::CrossedAlready,
        Self::AtTheLine,
        Self::Far,
        Self::PolicyWaits,
        Self::NobodyGoes(EvaluationEnd::NoPressure),
        Self::GoesForSomethingElse,
        Self::GoesAlready,
        Self::Critical,
        Self::Protected,
        Self::UsageUnknown,
        Self::Alike,
    ];

    /// How it is called in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::NoHardLine => "no_hard_threshold",
            Self::OtherMeasure => "other_measure",
            Self::AsksForMore => "more_conditions",
            Self::Unknown(_) => "signal_unavailable",
            Self::CrossedAlready => "threshold_met",
            Self::AtTheLine => "at_threshold",
            Self::Far => "far",
            Self::PolicyWaits => "config_pending",
            Self::NobodyGoes(_) => "no_candidate",
            Self::GoesForSomethingElse => "other_signal",
            Self::GoesAlready => "eviction_in_flight",
            Self::Critical => "critical",
            Self::Protected => "protected",
            Self::UsageUnknown => "usage_unknown",
            Self::Alike => "equal_rank",
        }
    }
}

impl fmt::Display for NotArmedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name().replace('_', " "))
    }
}
