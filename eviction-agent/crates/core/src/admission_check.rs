//! Whether a pod may start on a node under pressure: `eviction_manager.go: Admit`.

use super::condition::Raised;
use super::pod::Toleration;
use super::pods::KnownPod;
use super::signal::NodeCondition;

/// The taint that a node under memory pressure has.
const MEMORY_PRESSURE_TAINT: &str = "node.kubernetes.io/memory-pressure";
const NO_SCHEDULE: &str = "NoSchedule";

/// Critical pods always may. Under memory pressure alone all may but BestEffort pods that do
/// not tolerate its taint; under any other condition none.
pub(crate) fn admits(conditions: &[Raised], known: &KnownPod) -> bool {
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
