//! What a recorder and ten screens cost the agent: its latency, and its time and memory while nothing happens.

use anyhow::Result;
use tests::bench::row::Row;

use crate::case::Case;
use crate::idle;
use crate::observer::Observer;
use crate::reaction;
use crate::testbed::Testbed;

pub(crate) fn run(testbed: &mut Testbed, n: usize, seconds: u64) -> Result<()> {
    let backend = reaction::backend(testbed)?;
    testbed.begin(Some(backend))?;
    let mut alone: Vec<Row> = Vec::new();
    for observer in Observer::ALL {
        let case = Case { observer, pods: idle::MOST_PODS, ..Case::new(n) };
        if !testbed.wants(&case.name()) {
            continue;
        }
        let mut rows = reaction::ours(testbed, case)?;
        rows.extend(idle::measure(testbed, seconds, false, observer)?);
        if observer == Observer::None {
            alone.clone_from(&rows);
        }
        testbed.keep(rows.into_iter().map(|row| compare(row, &alone)).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Says how many times as much it is as without anybody, by the medians.
fn compare(row: Row, alone: &[Row]) -> Row {
    let same = alone.iter().find(|it| it.metric == row.metric);
    let ratio = same.and_then(|it| Some(row.percentile(50)? / it.percentile(50)?));
    match ratio.filter(|ratio| ratio.is_finite()) {
        Some(ratio) => row.with("against", "alone").with("ratio", (ratio * 100.0).round() / 100.0),
        None => row,
    }
}
