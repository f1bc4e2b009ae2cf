//! The table of the rows.

use ::tests::bench::row::{Goal, Row};
use ::tests::bench::table::{self, short};

/// Renders all rows as a table.
pub(crate) fn render(backend: Option<&str>, rows: &[Row]) -> String {
    let head = ["case", "program", "metric", "unit", "n", "min", "p50", "p90", "p99", "max", "goal"];
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(rows.iter().map(cells));
    let by = backend.map_or_else(String::new, |backend| format!("charges are watched by {backend}\n"));
    format!("{by}{}", table::render(&lines, &[0, 1, 2, 3, 10]))
}

fn cells(row: &Row) -> [String; 11] {
    let value = |percent| row.percentile_text(percent);
    let goal = match row.goal {
        None => String::new(),
        Some(goal) => {
            let goal_result = if row.reached().is_none() { "not measured" } else { row.goal_result() };
            let mean = row.mean().map_or_else(|| "-".to_owned(), short);
            match goal {
                Goal::Max(most) => format!("max {} {goal_result}", short(most)),
                Goal::Mean(most) => format!("mean {} {goal_result} ({mean})", short(most)),
                Goal::Median(most) => format!("p50 {} {goal_result}", short(most)),
                Goal::AtLeast(least) => format!("p50 from {} on {goal_result}", short(least)),
                Goal::Percentiles { n, p50, p99 } => {
                    format!("n {n} p50 {} p99 {} {goal_result}", short(p50), short(p99))
                }
            }
        }
    };
    [
        row.case.clone(),
        row.program.clone().unwrap_or_default(),
        row.metric.to_owned(),
        row.unit.to_owned(),
        row.n().to_string(),
        value(0),
        value(50),
        value(90),
        value(99),
        value(100),
        goal,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [
            Row::new("idle, fresh, 1 GB/s", "stamp to decision", "us", vec![80.0, 120.0, 4321.0])
                .goal(Goal::Percentiles { n: 3, p50: 500.0, p99: 5000.0 }),
            Row::new("binary", "size", "MiB", vec![13.5]).goal(Goal::Max(12.0)),
            Row::new("330 containers", "cpu", "%", vec![0.05, 0.11]).goal(Goal::Mean(0.2)),
            Row::new("330 containers", "cpu", "%", vec![0.005]).program("earlyoom 1.7"),
            Row::new("none", "x", "us", Vec::new()).goal(Goal::Max(1.0)),
        ];
        let expected = "\
charges are watched by tp_btf
case                 program       metric             unit  n    min    p50    p90    p99    max  goal
idle, fresh, 1 GB/s                stamp to decision  us    3   80.0    120   4321   4321   4321  n 3 p50 500 p99 5000 reached
binary                             size               MiB   1   13.5   13.5   13.5   13.5   13.5  max 12.0 MISSED
330 containers                     cpu                %     2  0.050  0.050  0.110  0.110  0.110  mean 0.200 reached (0.080)
330 containers       earlyoom 1.7  cpu                %     1  0.005  0.005  0.005  0.005  0.005
none                               x                  us    0      -      -      -      -      -  max 1.0 not measured
";
        assert_eq!(render(Some("tp_btf"), &rows), expected);
    }
}
