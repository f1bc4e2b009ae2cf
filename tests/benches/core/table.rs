//! The rows for people.

use tests::bench::table::{self, short};

use crate::Measured;

/// All rows as a table, times in microseconds.
pub(crate) fn render(rows: &[Measured]) -> String {
    let head = [
        "case",
        "program",
        "metric",
        "pods",
        "n",
        "min us",
        "p10",
        "p25",
        "p50",
        "p75",
        "p90",
        "p99",
        "max",
        "allocations",
        "ratio",
        "goal",
    ];
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(rows.iter().map(cells));
    let table = table::render(&lines, &[0, 1, 2, 15]);
    format!("ratio: how many times faster than the kubelet's median, measured in this run\n{table}")
}

fn cells(measured: &Measured) -> [String; 16] {
    let Measured { pods, row, allocations, kubelet: _ } = measured;
    let micros = |nanos: f64| short(nanos / 1000.0);
    let value = |percent| row.percentile(percent).map_or_else(|| "-".to_owned(), micros);
    [
        row.case.clone(),
        row.program.clone().unwrap_or_else(|| "eviction-agent".to_owned()),
        row.metric.to_owned(),
        pods.to_string(),
        row.n().to_string(),
        value(0),
        value(10),
        value(25),
        value(50),
        value(75),
        value(90),
        value(99),
        value(100),
        allocations.map_or_else(String::new, |count| count.to_string()),
        measured.ratio().map_or_else(String::new, short),
        row.goal_result().to_owned(),
    ]
}
