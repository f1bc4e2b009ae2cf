//! The kubelet's own passes over the same simulated nodes, in the same run: its eviction manager in the program that
//! `tests/oracle` builds from the published module.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use tests::bench::row::{Goal, Row};
use tests::simulated_node::{Case, SimulatedNode};

/// Whose code it is; as `tests/oracle/go.mod` has it.
const PROGRAM: &str = "kubelet 1.36.3";

/// What the program prints of a scenario.
#[derive(Deserialize)]
struct Timed {
    evictions: usize,
    nanos: Vec<u64>,
}

/// So many passes over that node by `oracle`, the kubelet's eviction manager in a program of its own. What a pass asks
/// for is there at once, and what it tells costs nothing.
pub(crate) fn passes(oracle: &Path, simulated: &SimulatedNode, case: Case, passes: usize) -> Result<Row> {
    let text = run(oracle, &format!(r#"{{"scenario":{}}}"#, simulated.scenario(case, 1)), passes)?;
    let Timed { evictions, nanos } =
        serde_json::from_str(&text).with_context(|| format!("what `oracle time` printed: {text:?}"))?;
    let expected = match case {
        Case::Calm | Case::CalmNoLocalStorage => 0,
        Case::MemoryPressure | Case::DiskPressure => passes,
    };
    ensure!(
        nanos.len() == passes && evictions == expected,
        "the kubelet's passes over {:?}: {} of {passes}, with {evictions} evictions instead of {expected}",
        case.name(),
        nanos.len()
    );
    let nanos = nanos.into_iter().map(|nanos| nanos as f64).collect();
    Ok(Row::new(case.name(), "pass", "ns", nanos).program(PROGRAM))
}

fn run(oracle: &Path, scenario: &str, passes: usize) -> Result<String> {
    let mut oracle = Command::new(oracle)
        .args(["time", "--passes", &passes.to_string(), "-"])
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
