//! Node conditions, which hold for the transition period after their cause has ended, and the admission of
//! pods while they hold.

use serde::{Deserialize, Serialize};

use crate::pod::Toleration;
use crate::pods::KnownPod;
use crate::signal::NodeCondition;
use crate::time::{Timestamp, since};
use crate::units::GoDuration;

/// The conditions that were raised, and when each was raised last.
///
/// Conditions are in the order of the thresholds that raised them, followed by those of earlier evaluations.
/// The kubelet uses the order of a map; this is one of its possible orders. The order shows in the message of
/// a refused admission.
#[derive(Clone, Debug, Default)]
pub struct RaisedConditions {
    known: Vec<RaisedCondition>,
    active: Vec<RaisedCondition>,
    last_sync: Option<Timestamp>,
}

/// A condition that was raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaisedCondition {
    /// The condition.
    pub condition: NodeCondition,
    /// The time of the last evaluation in which a threshold that raises it was met.
    pub at: Timestamp,
}

impl RaisedConditions {
    /// Reserves space for every condition, because a condition is raised when memory is short.
    pub(crate) fn reserve(&mut self) {
        self.known.reserve(NodeCondition::COUNT);
        self.active.reserve(NodeCondition::COUNT);
    }

    /// Returns the conditions that hold, in the order described at [`RaisedConditions`].
    pub fn active(&self) -> &[RaisedCondition] {
        &self.active
    }

    /// Adds a condition that was raised before the agent started. The later time counts.
    pub(crate) fn seed(&mut self, raised: RaisedCondition) {
        for list in [&mut self.known, &mut self.active] {
            match list.iter_mut().find(|known| known.condition == raised.condition) {
                Some(known) => known.at = known.at.max(raised.at),
                None => list.push(raised),
            }
        }
    }

    /// Returns the time of the last evaluation, whether or not it raised a condition.
    pub(crate) fn last_sync(&self) -> Option<Timestamp> {
        self.last_sync
    }

    /// Returns all conditions that were raised, whether or not they still hold.
    pub(crate) fn known(&self) -> &[RaisedCondition] {
        &self.known
    }

    /// Adds conditions of a former engine, and decides which hold.
    pub(crate) fn restore(
        &mut self,
        at: Timestamp,
        raised: impl Iterator<Item = RaisedCondition>,
        period: GoDuration,
    ) {
        raised.for_each(|raised| self.seed(raised));
        self.update_active(at, period);
    }

    /// Raises conditions now. A condition holds while its age is below the period. Mirrors
    /// `helpers.go: nodeConditionsLastObservedAt, nodeConditionsObservedSince`.
    pub(crate) fn raise(
        &mut self,
        at: Timestamp,
        raised: impl Iterator<Item = NodeCondition>,
        period: GoDuration,
    ) {
        self.last_sync = Some(at);
        let mut inserted = 0;
        for condition in raised {
            if !self.known[..inserted].iter().any(|other| other.condition == condition) {
                self.known.retain(|other| other.condition != condition);
                self.known.insert(inserted, RaisedCondition { condition, at });
                inserted += 1;
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

/// Returns whether a pod may start. Critical pods always may. Under memory pressure alone, every pod may
/// except BestEffort pods that do not tolerate its taint. Under any other condition, no other pod may.
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

/// `v1.Toleration.ToleratesTaint`. The taint has no value, so the numeric operators `Lt` and `Gt` never match.
fn tolerates_memory_pressure(toleration: &Toleration) -> bool {
    let Toleration { key, operator, value, effect } = toleration;
    let is_empty_or = |text: &str, wanted: &str| text.is_empty() || text == wanted;
    is_empty_or(effect, NO_SCHEDULE)
        && is_empty_or(key, MEMORY_PRESSURE_TAINT)
        && match &**operator {
            "" | "Equal" => value.is_empty(),
            "Exists" => true,
            _ => false,
        }
}
