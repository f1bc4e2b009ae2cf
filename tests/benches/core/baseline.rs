//! The kubelet's own figures, and how ours are to stand to them.

use serde_json::{Value, json};
use tests::bench::row::Goal;
use tests::world::Case;

use crate::Measured;

/// Whose they are.
pub(crate) const PROGRAM: &str = "kubelet 1.36.3";

/// The median of a pass of the kubelet's eviction manager in nanoseconds: `synchronize` in a
/// program of its own, with three containers a pod. Measured once, on a machine of two cores of the kind
/// that runs CI, and not beside ours: on another one the ratios are no more than their order.
pub(crate) fn of(case: Case, pods: usize) -> Option<f64> {
    let micros = match (case, pods) {
        (Case::Calm, 110) => 152,
        (Case::Calm, 1000) => 1_600,
        (Case::Calm, 10_000) => 42_000,
        (Case::CalmNoLocalStorage, 110) => 15,
        (Case::CalmNoLocalStorage, 1000) => 141,
        (Case::CalmNoLocalStorage, 10_000) => 1_200,
        (Case::MemoryPressure, 110) => 2_000,
        (Case::MemoryPressure, 1000) => 38_000,
        (Case::MemoryPressure, 10_000) => 802_000,
        (Case::DiskPressure, 110) => 5_500,
        (Case::DiskPressure, 1000) => 105_000,
        (Case::DiskPressure, 10_000) => 1_637_000,
        _ => return None,
    };
    Some(f64::from(micros) * 1000.0)
}

/// A hundred times faster under pressure, twenty times when calm.
pub(crate) fn goal(case: Case, baseline: f64) -> Goal {
    let times = match case {
        Case::Calm | Case::CalmNoLocalStorage => 20.0,
        Case::MemoryPressure | Case::DiskPressure => 100.0,
    };
    Goal::Median(baseline / times)
}

impl Measured {
    /// How many times faster than the kubelet.
    pub(crate) fn ratio(&self) -> Option<f64> {
        Some(self.baseline? / self.row.percentile(50)?)
    }

    /// The lines for machines: ours, and the kubelet's if it has one.
    pub(crate) fn lines(&self) -> Vec<Value> {
        let Self { pods, row, allocations, baseline } = self;
        let mut ours = row.json("core");
        ours["pods"] = json!(pods);
        ours["allocations"] = json!(allocations);
        if let Some(ratio) = self.ratio() {
            ours["against"] = json!(PROGRAM);
            ours["ratio"] = json!((ratio * 10.0).round() / 10.0);
        }
        let theirs = baseline.map(|baseline| {
            json!({
                "bench": "core", "program": PROGRAM, "case": row.case, "pods": pods,
                "metric": row.metric, "unit": row.unit, "p50": baseline, "measured_here": false,
            })
        });
        std::iter::once(ours).chain(theirs).collect()
    }
}
