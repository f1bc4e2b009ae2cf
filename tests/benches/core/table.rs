//! The rows for people.

use tests::bench::table::{self, short};

use crate::{Measured, baseline};

/// All rows as a table, times in microseconds.
pub(crate) fn render(rows: &[Measured]) -> String {
    let head = [
        "case",
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
        "kubelet us",
        "ratio",
        "goal",
    ];
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(rows.iter().map(cells));
    let table = table::render(&lines, &[0, 1, 15]);
    format!("baseline: {} (medians; ratio: how many times faster)\n{table}", baseline::PROGRAM)
}

fn cells(measured: &Measured) -> [String; 16] {
    let Measured { pods, row, allocations, baseline } = measured;
    let micros = |nanos: f64| short(nanos / 1000.0);
    let figure = |percent| row.percentile(percent).map_or_else(|| "-".to_owned(), micros);
    [
        row.case.clone(),
        row.metric.to_owned(),
        pods.to_string(),
        row.n().to_string(),
        figure(0),
        figure(10),
        figure(25),
        figure(50),
        figure(75),
        figure(90),
        figure(99),
        figure(100),
        allocations.to_string(),
        baseline.map_or_else(String::new, micros),
        measured.ratio().map_or_else(String::new, short),
        row.verdict().to_owned(),
    ]
}
