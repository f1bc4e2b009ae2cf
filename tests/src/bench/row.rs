//! A row of a bench: the values of one metric in one case.

use serde_json::{Map, Value, json};

use super::table::short;

/// The goal of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// No value may exceed this.
    Max(f64),
    /// The mean may not exceed this.
    Mean(f64),
    /// There must be at least `n` values, and their median and 99th percentile may not exceed these.
    Percentiles {
        /// The number of values.
        n: usize,
        /// The bound of the median.
        p50: f64,
        /// The bound of the 99th percentile.
        p99: f64,
    },
    /// The median may not exceed this.
    Median(f64),
    /// The median may not be less than this.
    AtLeast(f64),
}

/// The values of one metric in one case.
#[derive(Clone, Debug)]
pub struct Row {
    /// The case that was measured.
    pub case: String,
    /// The metric.
    pub metric: &'static str,
    /// The unit of the values.
    pub unit: &'static str,
    /// The goal of the metric.
    pub goal: Option<Goal>,
    /// The program that was measured, if it is not the agent.
    pub program: Option<String>,
    /// Whether there were cases without a value, so that no goal is reached.
    incomplete: bool,
    sorted: Vec<f64>,
    extra: Map<String, Value>,
}

impl Row {
    /// Creates a row from these values, in any order.
    #[must_use]
    pub fn new(
        case: impl Into<String>,
        metric: &'static str,
        unit: &'static str,
        mut values: Vec<f64>,
    ) -> Self {
        values.sort_by(f64::total_cmp);
        Self {
            case: case.into(),
            metric,
            unit,
            goal: None,
            program: None,
            incomplete: false,
            sorted: values,
            extra: Map::new(),
        }
    }

    /// Sets the program that was measured.
    #[must_use]
    pub fn program(mut self, program: &str) -> Self {
        self.program = Some(program.to_owned());
        self
    }

    /// Sets the goal.
    #[must_use]
    pub fn goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self
    }

    /// Marks that there were cases without a value, so that no goal is reached.
    #[must_use]
    pub fn incomplete(mut self) -> Self {
        self.incomplete = true;
        self
    }

    /// Adds another field to the row's JSON line.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.extra.insert(key.to_owned(), value.into());
        self
    }

    /// Returns the number of values.
    pub fn n(&self) -> usize {
        self.sorted.len()
    }

    /// Returns the smallest value that `percent` % of the values do not exceed.
    pub fn percentile(&self, percent: usize) -> Option<f64> {
        let rank = (self.sorted.len() * percent).div_ceil(100).max(1);
        self.sorted.get(rank - 1).copied()
    }

    /// Returns the percentile as text.
    pub fn percentile_text(&self, percent: usize) -> String {
        self.percentile(percent).map_or_else(|| "-".to_owned(), short)
    }

    /// Returns the mean, if there are values.
    pub fn mean(&self) -> Option<f64> {
        (!self.sorted.is_empty()).then(|| self.sorted.iter().sum::<f64>() / self.sorted.len() as f64)
    }

    /// Returns whether the goal was reached; `None` without a goal or without values.
    pub fn reached(&self) -> Option<bool> {
        let within = match self.goal? {
            Goal::Max(most) => self.percentile(100)? <= most,
            Goal::Mean(most) => self.mean()? <= most,
            Goal::Median(most) => self.percentile(50)? <= most,
            Goal::AtLeast(least) => self.percentile(50)? >= least,
            Goal::Percentiles { n, p50, p99 } => {
                self.n() >= n && self.percentile(50)? <= p50 && self.percentile(99)? <= p99
            }
        };
        Some(within && !self.incomplete)
    }

    /// Returns the result of the goal as text; empty if there is none.
    pub fn goal_result(&self) -> &'static str {
        match self.reached() {
            Some(true) => "reached",
            Some(false) => "MISSED",
            None => "",
        }
    }

    /// Returns the row as a JSON line of that bench.
    pub fn json(&self, bench: &str) -> Value {
        let Self { case, metric, unit, goal, program, incomplete: _, sorted, extra } = self;
        let mut line = json!({
            "bench": bench,
            "program": program.as_deref().unwrap_or("eviction-agent"),
            "case": case,
            "metric": metric,
            "unit": unit,
            "n": sorted.len(),
        });
        let mut set_value = |key: &str, value: Option<f64>| {
            if let Some(value) = value {
                line[key] = json!((value * 1000.0).round() / 1000.0);
            }
        };
        let percents = [
            ("min", 0),
            ("p10", 10),
            ("p25", 25),
            ("p50", 50),
            ("p75", 75),
            ("p90", 90),
            ("p99", 99),
            ("max", 100),
        ];
        for (key, percent) in percents {
            set_value(key, self.percentile(percent));
        }
        set_value("mean", self.mean());
        if let Some(goal) = goal {
            line["goal"] = match goal {
                Goal::Max(most) => json!({"max": most}),
                Goal::Mean(most) => json!({"mean": most}),
                Goal::Median(most) => json!({"p50": most}),
                Goal::AtLeast(least) => json!({"p50_at_least": least}),
                Goal::Percentiles { n, p50, p99 } => json!({"n": n, "p50": p50, "p99": p99}),
            };
            line["reached"] = json!(self.reached());
        }
        for (key, value) in extra {
            line[key] = value.clone();
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let row = Row::new("c", "m", "us", (1..=100).rev().map(f64::from).collect());
        let at = |percent| row.percentile(percent);
        assert_eq!([at(0), at(1), at(50), at(99), at(100)], [1.0, 1.0, 50.0, 99.0, 100.0].map(Some));
        assert_eq!(row.mean(), Some(50.5));
        let one = Row::new("c", "m", "us", vec![7.0]);
        assert_eq!([one.percentile(0), one.percentile(99)], [Some(7.0); 2]);
    }

    #[test]
    fn row_without_values_has_no_goal_result() {
        let row = Row::new("c", "m", "us", Vec::new()).goal(Goal::Max(1.0));
        assert_eq!(row.reached(), None);
        assert_eq!(
            row.json("skeleton"),
            json!({
                "bench": "skeleton", "program": "eviction-agent", "case": "c", "metric": "m", "unit": "us",
                "n": 0, "goal": {"max": 1.0}, "reached": null,
            })
        );
    }

    #[test]
    fn each_goal_checks_its_own_statistic() {
        let row = |goal| Row::new("c", "m", "us", vec![1.0, 2.0, 9.0]).goal(goal).reached();
        assert_eq!(row(Goal::Max(9.0)), Some(true));
        assert_eq!([row(Goal::AtLeast(2.0)), row(Goal::AtLeast(2.1))], [Some(true), Some(false)]);
        assert_eq!(row(Goal::Max(8.9)), Some(false));
        assert_eq!(row(Goal::Mean(4.0)), Some(true));
        assert_eq!(row(Goal::Mean(3.9)), Some(false));
        assert_eq!(row(Goal::Median(2.0)), Some(true));
        assert_eq!(row(Goal::Median(1.9)), Some(false));
        assert_eq!(row(Goal::Percentiles { n: 3, p50: 2.0, p99: 9.0 }), Some(true));
        assert_eq!(row(Goal::Percentiles { n: 4, p50: 2.0, p99: 9.0 }), Some(false));
        assert_eq!(row(Goal::Percentiles { n: 3, p50: 1.9, p99: 9.0 }), Some(false));
        assert_eq!(row(Goal::Percentiles { n: 3, p50: 2.0, p99: 8.0 }), Some(false));
        assert_eq!(
            Row::new("c", "m", "us", vec![1.0]).goal(Goal::Max(2.0)).incomplete().reached(),
            Some(false)
        );
    }
}
