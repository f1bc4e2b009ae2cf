//! Measures the kubelet's `synchronize` on the same simulated nodes, in the same run. The program that `tests/oracle`
//! builds from the published module contains its eviction manager.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use tests::bench::row::{Goal, Row};
use tests::simulated_node::{Case, SimulatedNode};

/// The name and the version of the measured program; as in `tests/oracle/go.mod`.
const PROGRAM: &str = "kubelet 1.36.3";

/// The output of the program about a scenario.
#[derive(Deserialize)]
struct Timed {
    evictions: usize,
    nanos: Vec<u64>,
}

/// Measures so many calls of `synchronize` on that node by `oracle`. Its inputs are in memory, and its outputs are
/// dropped, so that only the decision is measured.
pub(crate) fn measure_syncs(
    oracle: &Path,
    simulated: &SimulatedNode,
    case: Case,
    syncs: usize,
) -> Result<Row> {
    let text = run(oracle, &format!(r#"{{"scenario":{}}}"#, simulated.scenario(case, 1)), syncs)?;
    let Timed { evictions, nanos } =
        serde_json::from_str(&text).with_context(|| format!("what `oracle time` printed: {text:?}"))?;
    let expected = match case {
        Case::Calm | Case::CalmNoLocalStorage => 0,
        Case::MemoryPressure | Case::DiskPressure => syncs,
    };
    ensure!(
        nanos.len() == syncs && evictions == expected,
        "the kubelet's syncs of {:?}: {} of {syncs}, with {evictions} evictions instead of {expected}",
        case.name(),
        nanos.len()
    );
    let nanos = nanos.into_iter().map(|nanos| nanos as f64).collect();
    Ok(Row::new(case.name(), "pass", "ns", nanos).program(PROGRAM))
}

fn run(oracle: &Path, scenario: &str, syncs: usize) -> Result<String> {
    let mut oracle = Command::new(oracle)
        .args(["time", "--passes", &syncs.to_string(), "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("run {}", oracle.display()))?;
    let mut input = oracle.stdin.take().context("its standard input")?;
    let (output, written) = thread::scope(|scope| {
        // Closed at its end, which is what the program waits for.
        let writer = scope.spawn(move || input.write_all(scenario.as_bytes()));
        let output = oracle.wait_with_output();
        (output, writer.join())
    });
    let output = output.context("wait for `oracle time`")?;
    ensure!(output.status.success(), "`oracle time` ended with {}", output.status);
    written.ok().context("the writer")?.context("write to `oracle time`")?;
    String::from_utf8(output.stdout).context("what `oracle time` printed")
}

/// A hundred times faster under pressure, twenty times when calm.
pub(crate) fn goal(case: Case, kubelet: f64) -> Goal {
    let times = match case {
        Case::Calm | Case::CalmNoLocalStorage => 20.0,
        Case::MemoryPressure | Case::DiskPressure => 100.0,
    };
    Goal::Median(kubelet / times)
}
