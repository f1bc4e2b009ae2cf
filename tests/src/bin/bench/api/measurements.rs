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

const PIECE_NS: u64 = 50_000_000;

/// The crossings of one case, times in microseconds.
pub(super) struct Measurements {
    mode: EvictionMode,
    void: usize,
    crossing_to_granted: Vec<f64>,
    stamp_to_granted: Vec<f64>,
    crossing_to_decision: Vec<f64>,
    decision_to_granted: Vec<f64>,
    crossing_to_kill: Vec<f64>,
    kill_to_death: Vec<f64>,
    crossing_to_death: Vec<f64>,
    floor: Vec<f64>,
    next_floor: Vec<f64>,
    kill_floor: Vec<f64>,
    detected_by: BTreeMap<String, usize>,
}

impl Measurements {
    pub(super) fn new(mode: EvictionMode) -> Self {
        let none = Vec::new;
        Self {
            mode,
            void: 0,
            crossing_to_granted: none(),
            stamp_to_granted: none(),
            crossing_to_decision: none(),
            decision_to_granted: none(),
            crossing_to_kill: none(),
            kill_to_death: none(),
            crossing_to_death: none(),
            floor: none(),
            next_floor: none(),
            kill_floor: none(),
            detected_by: BTreeMap::new(),
        }
    }

    /// Returns the number of valid crossings.
    pub(super) fn good(&self) -> usize {
        self.decision_to_granted.len()
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
        let Run { climb, stamped_ns, decided_ns, granted_ns, end, floor, detected_by } = run;
        let last = climb.growth().last().context("the hog has stamped nothing")?;
        // A hog that is killed at once may have been charged for more than it had touched.
        let crossed = climb.crossed().or_else(|| climb.crossed_by_batched_charges(0));
        let at = crossed.unwrap_or(last.ns);
        let rate = climb.growth().rate(at.saturating_sub(PIECE_NS), at).unwrap_or(0.0);
        // A hog that the machine slowed down measures the machine and not the agent.
        let Some(crossed) = crossed.filter(|_| rate >= 0.8 * Rate::One.bytes_per_second() as f64) else {
            self.void += 1;
            return Ok(());
        };
        let since = |from: u64, to: u64| (to as f64 - from as f64) / 1000.0;
        self.crossing_to_granted.push(since(crossed, granted_ns));
        self.stamp_to_granted.extend(stamped_ns.map(|stamped| since(stamped, granted_ns)));
        self.crossing_to_decision.push(since(crossed, decided_ns));
        self.decision_to_granted.push(since(decided_ns, granted_ns));
        self.floor.push(floor.idle_ns as f64 / 1000.0);
        self.next_floor.push(floor.next_ns as f64 / 1000.0);
        if let Some(VictimEnd { killed_ns, dead_ns, floor_ns }) = end {
            self.crossing_to_kill.push(since(crossed, killed_ns));
            self.kill_to_death.push(since(killed_ns, dead_ns));
            self.crossing_to_death.push(since(crossed, dead_ns));
            self.kill_floor.push(floor_ns as f64 / 1000.0);
        }
        *self.detected_by.entry(detected_by).or_default() += 1;
        Ok(())
    }

    pub(super) fn rows(self) -> Vec<Row> {
        let Self {
            mode,
            void,
            crossing_to_granted,
            stamp_to_granted,
            crossing_to_decision,
            decision_to_granted,
            crossing_to_kill,
            kill_to_death,
            crossing_to_death,
            floor,
            next_floor,
            kill_floor,
            detected_by,
        } = self;
        let detected_by = json!(detected_by);
        let row = |metric, values| {
            Row::new(mode.name(), metric, "us", values)
                .with("void", void)
                .with("detected_by", detected_by.clone())
        };
        let floor = row(FLOOR, floor).program("kube-apiserver");
        let half = floor.percentile(50).unwrap_or(f64::NAN);
        let beyond = crossing_to_granted.iter().map(|granted| granted - half).collect();
        let mut rows = vec![
            row(TO_GRANTED, crossing_to_granted),
            row("stamp to 201", stamp_to_granted),
            row("crossing to decision", crossing_to_decision),
            row("decision to 201", decision_to_granted),
            row(BEYOND_FLOOR, beyond),
            floor,
            row(NEXT_FLOOR, next_floor).program("kube-apiserver"),
        ];
        if mode.kills() {
            rows.insert(0, row(TO_DEATH, crossing_to_death));
            rows.push(row("crossing to SIGKILL", crossing_to_kill));
            rows.push(row("SIGKILL to death", kill_to_death));
            rows.push(row("kill floor", kill_floor).program("SIGKILL"));
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use ::tests::growth::{Climb, Growth, Pages};
    use ::tests::stamps::Stamp;

    use super::super::crossing::ServerFloor;
    use super::*;
    use crate::case::LINE;

    /// Returns a crossing by steady growth from 0 to slightly beyond the threshold, at `rate` bytes per
    /// nanosecond.
    fn run(rate: u64) -> Run {
        let stamps = (0..=300).map(|ms| Stamp { ns: ms * 1_000_000, bytes: ms * 1_000_000 * rate });
        let climb = Climb::new(Growth::new(stamps), 0, LINE, Pages::Refault);
        let crossed = climb.crossed().unwrap_or_default();
        Run {
            climb,
            stamped_ns: Some(crossed - 100_000),
            decided_ns: crossed + 50_000,
            granted_ns: crossed + 3_000_000,
            end: Some(VictimEnd {
                killed_ns: crossed + 200_000,
                dead_ns: crossed + 1_000_000,
                floor_ns: 900_000,
            }),
            floor: ServerFloor { idle_ns: 2_500_000, next_ns: 2_000_000 },
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
        let reported = [TO_GRANTED, "stamp to 201", "decision to 201", BEYOND_FLOOR, FLOOR, NEXT_FLOOR];
        let expected = [3000.0, 3100.0, 2950.0, 500.0, 2500.0, 2000.0];
        assert_eq!(reported.map(|metric| median(&rows, metric)), expected.map(Some));
        let reported = [TO_DEATH, "crossing to SIGKILL", "SIGKILL to death", "kill floor"];
        assert_eq!(reported.map(|metric| median(&rows, metric)), [1000.0, 200.0, 800.0, 900.0].map(Some));
    }

    #[test]
    fn a_crossing_of_a_hog_slowed_by_the_machine_is_void() {
        let mut measurements = Measurements::new(EvictionMode::Evict);
        let stamps = (0..=300).map(|ms| Stamp { ns: ms * 2_000_000, bytes: ms * 1_000_000 });
        let slow = Climb::new(Growth::new(stamps), 0, LINE, Pages::Refault);
        measurements.add(Run { climb: slow, end: None, ..run(1) }).unwrap();
        assert_eq!((measurements.good(), measurements.total()), (0, 1));
        assert!(measurements.rows().iter().all(|row| row.metric != TO_DEATH));
    }
}
