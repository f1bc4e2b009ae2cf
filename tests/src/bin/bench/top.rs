//! The cost of a recorder and of ten screens for the agent: its latency, and its time and memory while nothing
//! happens.

use anyhow::Result;
use tests::bench::row::Row;

use crate::case::Case;
use crate::idle;
use crate::observer::Observer;
use crate::reaction;
use crate::testbed::Testbed;

pub(crate) fn run(testbed: &mut Testbed, n: usize, seconds: u64) -> Result<()> {
    reaction::print_machine(testbed)?;
    let mut alone: Vec<Row> = Vec::new();
    for observer in Observer::ALL {
        let case = Case { observer, pods: idle::MOST_PODS, ..Case::new(n) };
        if !testbed.is_selected(&case.name()) {
            continue;
        }
        let mut rows = reaction::agent_rows(testbed, case)?;
        rows.extend(idle::measure(testbed, seconds, false, observer)?);
        if observer == Observer::None {
            alone.clone_from(&rows);
        }
        testbed.add_rows(rows.into_iter().map(|row| compare(row, &alone)).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Adds the ratio of the row's median to the one without an observer.
fn compare(row: Row, alone: &[Row]) -> Row {
    let same = alone.iter().find(|it| it.metric == row.metric);
    let ratio = same.and_then(|it| Some(row.percentile(50)? / it.percentile(50)?));
    match ratio.filter(|ratio| ratio.is_finite()) {
        Some(ratio) => row.with("against", "alone").with("ratio", (ratio * 100.0).round() / 100.0),
        None => row,
    }
}
