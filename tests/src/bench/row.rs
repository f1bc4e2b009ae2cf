//! A row of figures: what was measured of one thing, again and again.

use serde_json::{Map, Value, json};

use super::table::short;

/// What a figure should come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// No single one beyond this.
    Max(f64),
    /// The mean not beyond this.
    Mean(f64),
    /// At least so many, half of them and 99 of 100 not beyond these.
    Stamp {
        /// How many.
        n: usize,
        /// The bound of half of them.
        p50: f64,
        /// The bound of 99 of 100.
        p99: f64,
    },
    /// Half of them not beyond this.
    Median(f64),
    /// Half of them no less than this.
    AtLeast(f64),
}

/// A row.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was done.
    pub case: String,
    /// What was measured.
    pub metric: &'static str,
    /// In what.
    pub unit: &'static str,
    /// What it should come to.
    pub goal: Option<Goal>,
    /// Whose figures these are, if not the agent's.
    pub program: Option<String>,
    /// There were cases without a figure, so that no goal is reached.
    spoiled: bool,
    sorted: Vec<f64>,
    more: Map<String, Value>,
}

impl Row {
    /// A row of these values, in any order.
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
            spoiled: false,
            sorted: values,
            more: Map::new(),
        }
    }

    /// The same of another program.
    #[must_use]
    pub fn program(mut self, program: &str) -> Self {
        self.program = Some(program.to_owned());
        self
    }

    /// The same with something to come to.
    #[must_use]
    pub fn goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self
    }

    /// There were cases without a figure, so that no goal is reached.
    #[must_use]
    pub fn spoiled(mut self) -> Self {
        self.spoiled = true;
        self
    }

    /// Something else that is to be known of the row.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.more.insert(key.to_owned(), value.into());
        self
    }

    /// How many values there are.
    pub fn n(&self) -> usize {
        self.sorted.len()
    }

    /// The smallest value that so many of a hundred do not exceed.
    pub fn percentile(&self, percent: usize) -> Option<f64> {
        let rank = (self.sorted.len() * percent).div_ceil(100).max(1);
        self.sorted.get(rank - 1).copied()
    }

    /// The same for people.
    pub fn shown(&self, percent: usize) -> String {
        self.percentile(percent).map_or_else(|| "-".to_owned(), short)
    }

    /// The mean, if there are values.
    pub fn mean(&self) -> Option<f64> {
        (!self.sorted.is_empty()).then(|| self.sorted.iter().sum::<f64>() / self.sorted.len() as f64)
    }

    /// Whether the goal was reached; `None` without one, or without a figure.
    pub fn reached(&self) -> Option<bool> {
        let within = match self.goal? {
            Goal::Max(most) => self.percentile(100)? <= most,
            Goal::Mean(most) => self.mean()? <= most,
            Goal::Median(most) => self.percentile(50)? <= most,
            Goal::AtLeast(least) => self.percentile(50)? >= least,
            Goal::Stamp { n, p50, p99 } => {
                self.n() >= n && self.percentile(50)? <= p50 && self.percentile(99)? <= p99
            }
        };
        Some(within && !self.spoiled)
    }

    /// The same for people; empty where there is nothing to say.
    pub fn goal_result(&self) -> &'static str {
        match self.reached() {
            Some(true) => "reached",
            Some(false) => "MISSED",
            None => "",
        }
    }

    /// The line for machines, as a row of that bench.
    pub fn json(&self, bench: &str) -> Value {
        let Self { case, metric, unit, goal, program, spoiled: _, sorted, more } = self;
        let mut line = json!({
            "bench": bench,
            "program": program.as_deref().unwrap_or("eviction-agent"),
            "case": case,
            "metric": metric,
            "unit": unit,
            "n": sorted.len(),
        });
        let mut figure = |key: &str, value: Option<f64>| {
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
            figure(key, self.percentile(percent));
        }
        figure("mean", self.mean());
        if let Some(goal) = goal {
            line["goal"] = match goal {
                Goal::Max(most) => json!({"max": most}),
                Goal::Mean(most) => json!({"mean": most}),
                Goal::Median(most) => json!({"p50": most}),
                Goal::AtLeast(least) => json!({"p50_at_least": least}),
                Goal::Stamp { n, p50, p99 } => json!({"n": n, "p50": p50, "p99": p99}),
            };
            line["reached"] = json!(self.reached());
        }
        for (key, value) in more {
            line[key] = value.clone();
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_figures_that_were_measured() {
        let row = Row::new("c", "m", "us", (1..=100).rev().map(f64::from).collect());
        let at = |percent| row.percentile(percent);
        assert_eq!([at(0), at(1), at(50), at(99), at(100)], [1.0, 1.0, 50.0, 99.0, 100.0].map(Some));
        assert_eq!(row.mean(), Some(50.5));
        let one = Row::new("c", "m", "us", vec![7.0]);
        assert_eq!([one.percentile(0), one.percentile(99)], [Some(7.0); 2]);
    }

    #[test]
    fn a_row_without_a_figure_reaches_nothing() {
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
    fn goals_look_at_their_own_figure() {
        let row = |goal| Row::new("c", "m", "us", vec![1.0, 2.0, 9.0]).goal(goal).reached();
        assert_eq!(row(Goal::Max(9.0)), Some(true));
        assert_eq!([row(Goal::AtLeast(2.0)), row(Goal::AtLeast(2.1))], [Some(true), Some(false)]);
        assert_eq!(row(Goal::Max(8.9)), Some(false));
        assert_eq!(row(Goal::Mean(4.0)), Some(true));
        assert_eq!(row(Goal::Mean(3.9)), Some(false));
        assert_eq!(row(Goal::Median(2.0)), Some(true));
        assert_eq!(row(Goal::Median(1.9)), Some(false));
        assert_eq!(row(Goal::Stamp { n: 3, p50: 2.0, p99: 9.0 }), Some(true));
        assert_eq!(row(Goal::Stamp { n: 4, p50: 2.0, p99: 9.0 }), Some(false));
        assert_eq!(row(Goal::Stamp { n: 3, p50: 1.9, p99: 9.0 }), Some(false));
        assert_eq!(row(Goal::Stamp { n: 3, p50: 2.0, p99: 8.0 }), Some(false));
        assert_eq!(Row::new("c", "m", "us", vec![1.0]).goal(Goal::Max(2.0)).spoiled().reached(), Some(false));
    }
}
