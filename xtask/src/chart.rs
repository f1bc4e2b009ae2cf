//! `cargo xtask chart`: checks the Helm chart with the tests of `tests/tests/chart`.

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::setup::{self, Need};
use crate::shell;
use crate::test;

/// The environment variable that makes the tests write what is generated from the chart; as in
/// `tests/tests/chart/main.rs`.
const UPDATE: &str = "EVICTION_AGENT_UPDATE";

/// Arguments of the task.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write what is made from the chart: the manifests, the schema and the README, and what ci values render to
    #[arg(long)]
    update: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let tools = setup::ensure(&[Need::Bpf, Need::Helm])?;
    let built = test::build(&["eviction-agent", "tests"], &["--test", "chart", "--bins"], &tools)?;
    let Some(program) = built.tests.first() else { bail!("the tests of the chart were not built") };
    let start = |arguments: &[&str]| {
        let mut command = program.start(&built.programs);
        command.args(arguments).envs(tools.test_variables());
        command
    };
    if args.update {
        // The schema goes first, since it checks what is rendered.
        shell::run(start(&["generated::the_values_schema_includes_the_agents_schema"]).env(UPDATE, "1"))?;
        shell::run(start(&["generated", "--test-threads=1"]).env(UPDATE, "1"))?;
    }
    shell::run(&mut start(&[]))?;
    Ok(ExitCode::SUCCESS)
}
