//! Node conditions, which outlive their cause by the transition period, and the admission of pods
//! while they hold.

use serde::{Deserialize, Serialize};

use crate::pod::Toleration;
use crate::pods::KnownPod;
use crate::signal::NodeCondition;
use crate::time::{Timestamp, since};
use crate::units::GoDuration;

/// Which conditions were raised, and when last.
///
/// The order is that of the thresholds which raised them, then that of former evaluations: one of
/// the orders of the kubelet's map. It shows in the message of a refused admission.
#[derive(Clone, Debug)]
pub struct Conditions {
    known: Vec<RaisedCondition>,
    active: Vec<RaisedCondition>,
    last_sync: Option<Timestamp>,
}

/// A condition that was raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaisedCondition {
    /// Which.
    pub condition: NodeCondition,
    /// By the last evaluation in which a threshold that raises it was met.
    pub at: Timestamp,
}

impl Default for Conditions {
    /// With room for all there are: a condition is raised when memory is short.
    fn default() -> Self {
        let [known, active] = [NodeCondition::COUNT; 2].map(Vec::with_capacity);
        Self { known, active, last_sync: None }
    }
}

impl Conditions {
    /// Conditions that hold, in the order described at [`Conditions`].
    pub fn active(&self) -> &[RaisedCondition] {
        &self.active
    }

    /// Takes over a condition that was raised before the start. The later time counts.
    pub(crate) fn seed(&mut self, raised: RaisedCondition) {
        for list in [&mut self.known, &mut self.active] {
            match list.iter_mut().find(|known| known.condition == raised.condition) {
                Some(known) => known.at = known.at.max(raised.at),
                None => list.push(raised),
            }
        }
    }

    /// When they were raised last, or could have been.
    pub(crate) fn last_sync(&self) -> Option<Timestamp> {
        self.last_sync
    }

    /// All that were raised, whether they hold or not.
    pub(crate) fn known(&self) -> &[RaisedCondition] {
        &self.known
    }

    /// Takes over what was raised before; what is known already stays.
    pub(crate) fn restore(
        &mut self,
        at: Timestamp,
        raised: impl Iterator<Item = RaisedCondition>,
        period: GoDuration,
    ) {
        for raised in raised {
            if !self.known.iter().any(|other| other.condition == raised.condition) {
                self.known.push(raised);
            }
        }
        self.update_active(at, period);
    }

    /// Raises conditions now; a condition holds while it is younger than the period. Mirrors
    /// `helpers.go: nodeConditionsLastObservedAt, nodeConditionsObservedSince`.
    pub(crate) fn raise(
        &mut self,
        at: Timestamp,
        raised: impl Iterator<Item = NodeCondition>,
        period: GoDuration,
    ) {
        self.last_sync = Some(at);
        let mut now = 0;
        for condition in raised {
            if !self.known[..now].iter().any(|other| other.condition == condition) {
                self.known.retain(|other| other.condition != condition);
                self.known.insert(now, RaisedCondition { condition, at });
                now += 1;
            }
        }
        self.update_active(at, period);
    }

    fn update_active(&mut self, at: Timestamp, period: GoDuration) {
        self.active.clear();
        let holds = |raised: &&RaisedCondition| since(at, raised.at) < period;
        self.active.extend(self.known.iter().filter(holds));
    }
}

/// The taint that a node under memory pressure has.
const MEMORY_PRESSURE_TAINT: &str = "node.kubernetes.io/memory-pressure";
const NO_SCHEDULE: &str = "NoSchedule";

/// Critical pods always may. Under memory pressure alone all may but BestEffort pods that do
/// not tolerate its taint; under any other condition none.
pub(crate) fn admits(conditions: &[RaisedCondition], known: &KnownPod) -> bool {
    match conditions {
        [] => true,
        _ if known.critical => true,
        [only] if only.condition == NodeCondition::MemoryPressure => {
            !known.best_effort || known.pod.tolerations.iter().any(tolerates_memory_pressure)
        }
        _ => false,
    }
}

/// `v1.Toleration.ToleratesTaint`. The taint has no value, so that the comparisons of
/// numbers, `Lt` and `Gt`, never match.
fn tolerates_memory_pressure(toleration: &Toleration) -> bool {
    let Toleration { key, operator, value, effect } = toleration;
    let is_or_any = |text: &str, wanted: &str| text.is_empty() || text == wanted;
    is_or_any(effect, NO_SCHEDULE)
        && is_or_any(key, MEMORY_PRESSURE_TAINT)
        && match &**operator {
            "" | "Equal" => value.is_empty(),
            "Exists" => true,
            _ => false,
        }
}
