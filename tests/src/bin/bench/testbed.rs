//! What every bench needs: the programs, and the output of measurements and progress.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::Value;
use tests::agent::Options;
use tests::bench::machine;
use tests::bench::row::Row;
use tests::interrupt::Interrupt;
use tests::node::Node;
use tests::{agent, workload};

use crate::Args;
use crate::table;

/// The testbed of one bench.
#[derive(Debug)]
pub(crate) struct Testbed {
    /// The name of the bench in rows.
    name: &'static str,
    /// The agent's binary.
    pub(crate) agent: PathBuf,
    /// The folder with the other programs that are measured, if there is one.
    pub(crate) competitors: Option<PathBuf>,
    /// Ends the bench on Ctrl-C.
    pub(crate) interrupt: Interrupt,
    json: bool,
    commit: String,
    agent_args: Vec<String>,
    only: Vec<String>,
    backend: Option<String>,
    rows: Vec<Row>,
}

impl Testbed {
    pub(crate) fn new(name: &'static str, args: &Args) -> Result<Self> {
        let Args { json, agent, commit, competitors, agent_arg, only, bench: _ } = args;
        let testbed = Self {
            name,
            agent: agent.clone().map_or_else(agent::binary, Ok)?,
            competitors: competitors.clone(),
            interrupt: Interrupt::install()?,
            json: *json,
            commit: commit.clone(),
            agent_args: agent_arg.clone(),
            only: only.clone(),
            backend: None,
            rows: Vec::new(),
        };
        Ok(testbed)
    }

    /// Prints the line that precedes all rows: the machine, its load, and the backend that watches charges.
    pub(crate) fn print_machine(&mut self, backend: Option<String>) -> Result<()> {
        self.emit(&machine::line(self.name, backend.as_deref(), &self.commit)?);
        self.backend = backend;
        Ok(())
    }

    /// Returns the options of an agent on a node with these fields of a kubelet's configuration.
    pub(crate) fn options(&self, node: &Node, kubelet: &Value) -> Result<Options> {
        let options = Options::of(&self.agent, node, kubelet)?;
        Ok(Options { more: self.agent_args.clone(), ..options })
    }

    /// Returns whether that case was selected.
    pub(crate) fn is_selected(&self, case: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| case.contains(part.as_str()))
    }

    /// Prints and stores rows, with the machine's load at their end.
    pub(crate) fn add_rows(&mut self, rows: impl IntoIterator<Item = Row>) -> Result<()> {
        let load = machine::load1()?;
        for row in rows {
            let row = row.with("load1", load);
            self.emit(&row.json(self.name));
            self.rows.push(row);
        }
        Ok(())
    }

    /// Prints all rows as a table.
    pub(crate) fn print_table(self) {
        let text = table::render(self.backend.as_deref(), &self.rows);
        // A closed output is no reason to fail.
        let _ = match self.json {
            true => write!(std::io::stderr(), "{text}"),
            false => write!(std::io::stdout(), "{text}"),
        };
    }

    /// Prints progress on standard error.
    pub(crate) fn progress(&self, text: &str) {
        let _ = writeln!(std::io::stderr(), "{text}");
    }

    /// Returns a folder on a disk: the one for temporary files may be in memory.
    pub(crate) fn disk(&self) -> Result<PathBuf> {
        let workload = workload::binary()?;
        Ok(workload.parent().context("the folder of the workload")?.to_owned())
    }

    /// Prints a JSON line.
    pub(crate) fn emit(&self, line: &Value) {
        if self.json {
            // A closed output is no reason to stop: the cgroups must be removed.
            let _ = writeln!(std::io::stdout(), "{line}");
        }
    }
}
