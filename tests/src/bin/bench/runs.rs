//! Turns crossings into rows of measurements.

use std::collections::BTreeMap;

use ::tests::bench::row::Row;
use ::tests::growth::WorkingSetGrowth;
use ::tests::node::MIB;
use ::tests::stamps::STEP;
use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::case::{Case, Load};
use crate::hog_node::Decision;

/// One crossing.
pub(crate) struct Run {
    pub(crate) working_set: WorkingSetGrowth,
    pub(crate) decided: Option<Decision>,
    /// When the last process of the victim died.
    pub(crate) dead: Option<u64>,
}

/// The measurements of one crossing.
struct Measurements {
    /// From the BPF program's timestamp to the decision.
    stamped_us: Option<f64>,
    /// From the crossing, by the hog's own clock, to the decision.
    crossed_us: Option<f64>,
    decision_mib: f64,
    crossed_to_death_us: Option<f64>,
    death_mib: f64,
    rate: f64,
    detected_by: String,
}

/// The crossings of one case.
pub(crate) struct Runs {
    case: Case,
    /// The program in rows, if it is not the agent.
    program: Option<String>,
    good: Vec<Measurements>,
    void: usize,
    missed: usize,
    /// The number of decisions on growth that must not trigger any.
    wrong: usize,
    /// The number of runs in which the hog had grown to its full size before it died: it would have grown
    /// further.
    capped: usize,
}

const PIECE_NS: u64 = 50_000_000;

/// The maximum number of runs for each valid one.
pub(crate) const TRIES: usize = 3;

impl Runs {
    pub(crate) fn new(case: Case, program: Option<&str>) -> Self {
        let program = program.map(str::to_owned);
        Self { case, program, good: Vec::new(), void: 0, missed: 0, wrong: 0, capped: 0 }
    }

    /// Returns the number of valid crossings.
    pub(crate) fn good(&self) -> usize {
        if self.case.hog.crosses() { self.good.len() } else { self.total() }
    }

    /// Returns the number of all crossings.
    pub(crate) fn total(&self) -> usize {
        let Self { good, void, missed, wrong, case: _, program: _, capped: _ } = self;
        good.len() + void + missed + wrong
    }

    /// Counts a run without a valid result.
    pub(crate) fn void(&mut self) {
        self.void += 1;
    }

    /// Returns the progress as text.
    pub(crate) fn progress(&self) -> String {
        let Self { case, program, good: _, void, missed, wrong, capped } = self;
        let program = program.as_ref().map_or_else(String::new, |program| format!(" ({program})"));
        let (name, n, good) = (case.name(), case.n, self.good());
        if !case.hog.crosses() {
            return format!("{name}{program}: {missed} of {n} runs without a decision, {wrong} wrong");
        }
        format!(
            "{name}{program}: {good} of {n} runs, {void} void, {missed} missed, {wrong} wrong, {capped} capped"
        )
    }

    pub(crate) fn add(&mut self, run: Run) -> Result<()> {
        let Run { working_set, decided, dead } = run;
        if !self.case.hog.crosses() {
            match decided {
                Some(_) => self.wrong += 1,
                None => self.missed += 1,
            }
            return Ok(());
        }
        // The kernel charges ahead of what is touched, so a prompt decision may precede the crossing by the
        // hog's own clock, and the hog then never reaches it.
        let crossed = working_set.crossed();
        let last = working_set.growth().last().context("the hog has stamped nothing")?;
        let at = crossed.unwrap_or(last.ns);
        let rate = working_set.growth().rate(at.saturating_sub(PIECE_NS), at).unwrap_or(0.0);
        // A hog that the machine slowed down measures the machine and not the agent. With load on the
        // processors, that is what is measured.
        let expected_rate = self.case.rate.bytes_per_second() as f64;
        if self.case.load == Load::Idle && rate < 0.8 * expected_rate {
            self.void += 1;
            return Ok(());
        }
        let (Some(decided), Some(dead)) = (decided, dead) else {
            self.missed += 1;
            return Ok(());
        };
        let since = |from: u64, to: u64| (to as f64 - from as f64) / 1000.0;
        let mib = |ns| working_set.overshoot(ns).map_or(f64::NAN, |bytes| bytes as f64 / MIB as f64);
        self.capped += usize::from(last.bytes + STEP > self.case.size());
        self.good.push(Measurements {
            stamped_us: decided.stamped_ns.map(|stamped| since(stamped, decided.at_ns)),
            crossed_us: crossed.map(|crossed| since(crossed, decided.at_ns)),
            decision_mib: mib(decided.at_ns),
            crossed_to_death_us: crossed.map(|crossed| since(crossed, dead)),
            death_mib: mib(dead),
            rate: rate / 1e9,
            detected_by: decided.detected_by,
        });
        Ok(())
    }

    /// Returns the rows: the times by the BPF program's timestamp and by the hog's own clock, and the
    /// overshoot.
    pub(crate) fn rows(self) -> Vec<Row> {
        let Self { case, program, good, void, missed, wrong, capped } = self;
        let name = case.name();
        let with_counts = |row: Row| {
            let row = row.with("void", void).with("missed", missed);
            let row = if case.kernel_kill { row.with("kernel_kill", true) } else { row };
            match &program {
                Some(program) => row.program(program),
                None => row,
            }
        };
        if !case.hog.crosses() {
            let measurements = [vec![0.0; missed], vec![1.0; wrong]].concat();
            return vec![with_counts(Row::new(name, "wrong decisions", "", measurements)).with("missed", 0)];
        }
        let mut detected_by: BTreeMap<&str, usize> = BTreeMap::new();
        for measurements in &good {
            *detected_by.entry(&measurements.detected_by).or_default() += 1;
        }
        let detected_by = json!(detected_by);
        let row = |metric, unit, of: fn(&Measurements) -> Option<f64>| {
            let row =
                with_counts(Row::new(name.as_str(), metric, unit, good.iter().filter_map(of).collect()))
                    .with("capped", capped)
                    .with("detected_by", Value::clone(&detected_by));
            if missed > 0 { row.incomplete() } else { row }
        };
        let mut rows = vec![
            row("crossing to decision", "us", |measurements| measurements.crossed_us),
            row("overshoot at decision", "MiB", |measurements| Some(measurements.decision_mib)),
            row("crossing to death", "us", |measurements| measurements.crossed_to_death_us),
            row("overshoot at death", "MiB", |measurements| Some(measurements.death_mib)),
            row("rate reached", "GB/s", |measurements| Some(measurements.rate)),
        ];
        if program.is_none() {
            rows.insert(0, row("stamp to decision", "us", |measurements| measurements.stamped_us));
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use ::tests::growth::{Growth, Pages};
    use ::tests::stamps::Stamp;

    use super::*;
    use crate::case::{Hog, MAX_WORKING_SET};

    /// Returns steady growth at 1 GB/s, from 0 to slightly beyond the threshold.
    fn working_set() -> WorkingSetGrowth {
        let stamps = (0..=300).map(|ms| Stamp { ns: ms * 1_000_000, bytes: ms * 1_000_000 });
        WorkingSetGrowth::new(Growth::new(stamps), 0, MAX_WORKING_SET, Pages::Refault)
    }

    fn decided(at_ns: u64) -> Option<Decision> {
        Some(Decision { at_ns, stamped_ns: Some(at_ns - 50_000), detected_by: "charge".to_owned() })
    }

    fn median(rows: &[Row], metric: &str) -> Option<f64> {
        rows.iter().find(|row| row.metric == metric)?.percentile(50)
    }

    #[test]
    fn a_crossing_is_reported_by_the_kernel_clock_and_the_hog_clock() {
        let mut runs = Runs::new(Case::new(1), None);
        let crossed = working_set().crossed().unwrap();
        runs.add(Run {
            working_set: working_set(),
            decided: decided(crossed + 2_000_000),
            dead: Some(crossed + 10_000_000),
        })
        .unwrap();
        assert_eq!((runs.good(), runs.total()), (1, 1));
        let rows = runs.rows();
        assert_eq!(median(&rows, "stamp to decision"), Some(50.0));
        assert_eq!(median(&rows, "crossing to decision"), Some(2000.0));
        let beyond = median(&rows, "overshoot at decision").unwrap();
        assert!((beyond - 2.0 * 1e6 / MIB as f64).abs() < 0.01, "{beyond}");
    }

    #[test]
    fn a_run_without_decision_is_missed_and_a_run_of_a_slow_hog_is_void() {
        let mut runs = Runs::new(Case::new(2), None);
        runs.add(Run { working_set: working_set(), decided: None, dead: None }).unwrap();
        let slow = (0..=300).map(|ms| Stamp { ns: ms * 2_000_000, bytes: ms * 1_000_000 });
        let slow = WorkingSetGrowth::new(Growth::new(slow), 0, MAX_WORKING_SET, Pages::Refault);
        runs.add(Run { working_set: slow, decided: decided(1_000_000), dead: Some(2_000_000) }).unwrap();
        assert_eq!((runs.good(), runs.total()), (0, 2));
        assert!(runs.progress().contains("1 void, 1 missed"), "{}", runs.progress());
    }

    #[test]
    fn a_decision_about_a_page_cache_hog_is_counted_as_wrong() {
        let case = Case { hog: Hog::PageCache, ..Case::new(2) };
        let mut runs = Runs::new(case, None);
        runs.add(Run { working_set: working_set(), decided: None, dead: None }).unwrap();
        assert_eq!(runs.good(), 1);
        runs.add(Run { working_set: working_set(), decided: decided(1_000_000), dead: Some(2_000_000) })
            .unwrap();
        let rows = runs.rows();
        assert_eq!((rows.len(), rows[0].n()), (1, 2));
        assert_eq!(rows[0].percentile(100), Some(1.0), "one of them was");
    }
}
