//! Turns crossings into rows of measurements.

use std::collections::BTreeMap;

use ::tests::bench::row::Row;
use anyhow::{Context as _, Result};
use serde_json::json;

use super::crossing::{Run, VictimEnd};
use super::eviction_mode::EvictionMode;
use crate::case::Rate;

/// From the crossing, by the hog's own clock, to the 201 response.
pub(super) const TO_GRANTED: &str = "crossing to 201";
/// The time that the server itself takes.
pub(super) const FLOOR: &str = "server floor";
/// The time of an eviction that is requested right after another one was granted.
const NEXT_FLOOR: &str = "server floor, next";
/// `TO_GRANTED` less the median of `FLOOR`.
pub(super) const BEYOND_FLOOR: &str = "beyond floor";
/// From the crossing, by the hog's own clock, to the death of the last process.
pub(super) const TO_DEATH: &str = "crossing to death";
const STAMP_TO_GRANTED: &str = "stamp to 201";
const TO_DECISION: &str = "crossing to decision";
const DECISION_TO_GRANTED: &str = "decision to 201";
const TO_KILL: &str = "crossing to SIGKILL";
const KILL_TO_DEATH: &str = "SIGKILL to death";
/// The time from SIGKILL to death on a node without an agent.
const KILL_FLOOR: &str = "kill floor";

const PIECE_NS: u64 = 50_000_000;

/// The crossings of one case.
pub(super) struct Measurements {
    mode: EvictionMode,
    void: usize,
    /// The values of each metric, microseconds.
    values: BTreeMap<&'static str, Vec<f64>>,
    detected_by: BTreeMap<String, usize>,
}

impl Measurements {
    pub(super) fn new(mode: EvictionMode) -> Self {
        Self { mode, void: 0, values: BTreeMap::new(), detected_by: BTreeMap::new() }
    }

    /// Returns the number of valid crossings.
    pub(super) fn good(&self) -> usize {
        self.values.get(TO_GRANTED).map_or(0, Vec::len)
    }

    /// Returns the number of all crossings.
    pub(super) fn total(&self) -> usize {
        self.good() + self.void
    }

    /// Returns the progress as text.
    pub(super) fn progress(&self, n: usize) -> String {
        format!("{}: {} of {n} runs, {} void", self.mode.name(), self.good(), self.void)
    }

    pub(super) fn add(&mut self, run: Run) -> Result<()> {
        let Run { working_set, stamped_ns, decided_ns, granted_ns, floor_ns, next_ns, end, detected_by } =
            run;
        let last = working_set.growth().last().context("the hog has stamped nothing")?;
        // A hog that is killed at once may have been charged for more than it had touched.
        let crossed = working_set.crossed().or_else(|| working_set.crossed_by_batched_charges(0));
        let at = crossed.unwrap_or(last.ns);
        let rate = working_set.growth().rate(at.saturating_sub(PIECE_NS), at).unwrap_or(0.0);
        // A hog that the machine slowed down measures the machine and not the agent.
        let Some(crossed) = crossed.filter(|_| rate >= 0.8 * Rate::One.bytes_per_second() as f64) else {
            self.void += 1;
            return Ok(());
        };
        let mut add = |metric, from: u64, to: u64| {
            self.values.entry(metric).or_default().push((to as f64 - from as f64) / 1000.0);
        };
        add(TO_GRANTED, crossed, granted_ns);
        if let Some(stamped_ns) = stamped_ns {
            add(STAMP_TO_GRANTED, stamped_ns, granted_ns);
        }
        add(TO_DECISION, crossed, decided_ns);
        add(DECISION_TO_GRANTED, decided_ns, granted_ns);
        add(FLOOR, 0, floor_ns);
        add(NEXT_FLOOR, 0, next_ns);
        if let Some(VictimEnd { killed_ns, dead_ns, floor_ns }) = end {
            add(TO_KILL, crossed, killed_ns);
            add(KILL_TO_DEATH, killed_ns, dead_ns);
            add(TO_DEATH, crossed, dead_ns);
            add(KILL_FLOOR, 0, floor_ns);
        }
        *self.detected_by.entry(detected_by).or_default() += 1;
        Ok(())
    }

    pub(super) fn rows(self) -> Vec<Row> {
        let Self { mode, void, mut values, detected_by } = self;
        let detected_by = json!(detected_by);
        let row = |metric, values| {
            Row::new(mode.name(), metric, "us", values)
                .with("void", void)
                .with("detected_by", detected_by.clone())
        };
        let granted = values.get(TO_GRANTED).cloned().unwrap_or_default();
        let mut measured = |metric| row(metric, values.remove(metric).unwrap_or_default());
        let floor = measured(FLOOR).program("kube-apiserver");
        let half = floor.percentile(50).unwrap_or(f64::NAN);
        let beyond = granted.iter().map(|granted| granted - half).collect();
        let mut rows = vec![
            measured(TO_GRANTED),
            measured(STAMP_TO_GRANTED),
            measured(TO_DECISION),
            measured(DECISION_TO_GRANTED),
            row(BEYOND_FLOOR, beyond),
            floor,
            measured(NEXT_FLOOR).program("kube-apiserver"),
        ];
        if mode.kills() {
            rows.insert(0, measured(TO_DEATH));
            rows.push(measured(TO_KILL));
            rows.push(measured(KILL_TO_DEATH));
            rows.push(measured(KILL_FLOOR).program("SIGKILL"));
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use ::tests::growth::{Growth, Pages, WorkingSetGrowth};
    use ::tests::stamps::Stamp;

    use super::*;
    use crate::case::MAX_WORKING_SET;

    /// Returns a crossing by steady growth from 0 to slightly beyond the threshold, at `rate` bytes per
    /// nanosecond.
    fn run(rate: u64) -> Run {
        let stamps = (0..=300).map(|ms| Stamp { ns: ms * 1_000_000, bytes: ms * 1_000_000 * rate });
        let working_set = WorkingSetGrowth::new(Growth::new(stamps), 0, MAX_WORKING_SET, Pages::Refault);
        let crossed = working_set.crossed().unwrap_or_default();
        Run {
            working_set,
            stamped_ns: Some(crossed - 100_000),
            decided_ns: crossed + 50_000,
            granted_ns: crossed + 3_000_000,
            end: Some(VictimEnd {
                killed_ns: crossed + 200_000,
                dead_ns: crossed + 1_000_000,
                floor_ns: 900_000,
            }),
            floor_ns: 2_500_000,
            next_ns: 2_000_000,
            detected_by: "charge".to_owned(),
        }
    }

    fn median(rows: &[Row], metric: &str) -> Option<f64> {
        rows.iter().find(|row| row.metric == metric)?.percentile(50)
    }

    #[test]
    fn a_crossing_is_reported_by_both_clocks_and_beyond_the_server_floor() {
        let mut measurements = Measurements::new(EvictionMode::EvictAndKill { mib: 256 });
        measurements.add(run(1)).unwrap();
        assert_eq!((measurements.good(), measurements.total()), (1, 1));
        let rows = measurements.rows();
        let reported = [TO_GRANTED, STAMP_TO_GRANTED, DECISION_TO_GRANTED, BEYOND_FLOOR, FLOOR, NEXT_FLOOR];
        let expected = [3000.0, 3100.0, 2950.0, 500.0, 2500.0, 2000.0];
        assert_eq!(reported.map(|metric| median(&rows, metric)), expected.map(Some));
        let reported = [TO_DEATH, TO_KILL, KILL_TO_DEATH, KILL_FLOOR];
        assert_eq!(reported.map(|metric| median(&rows, metric)), [1000.0, 200.0, 800.0, 900.0].map(Some));
    }

    #[test]
    fn a_crossing_of_a_hog_slowed_by_the_machine_is_void() {
        let mut measurements = Measurements::new(EvictionMode::Evict);
        let stamps = (0..=300).map(|ms| Stamp { ns: ms * 2_000_000, bytes: ms * 1_000_000 });
        let slow = WorkingSetGrowth::new(Growth::new(stamps), 0, MAX_WORKING_SET, Pages::Refault);
        measurements.add(Run { working_set: slow, end: None, ..run(1) }).unwrap();
        assert_eq!((measurements.good(), measurements.total()), (0, 1));
        assert!(measurements.rows().iter().all(|row| row.metric != TO_DEATH));
    }
}
