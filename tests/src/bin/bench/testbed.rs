//! What every measurement has to do with: the programs, and where measurements and progress go.

use std::io::Write as _;
use std::path::{Path, PathBuf};

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
    /// Its name in rows.
    name: &'static str,
    /// The agent's file.
    pub(crate) agent: PathBuf,
    /// The workload's.
    pub(crate) workload: PathBuf,
    /// The folder with the programs that are measured beside ours, if there is one.
    pub(crate) competitors: Option<PathBuf>,
    /// Ctrl-C.
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
            workload: workload::binary()?,
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

    /// The line that precedes all rows: which machine it was, under which load, and the backend that
    /// watched charges.
    pub(crate) fn begin(&mut self, backend: Option<String>) -> Result<()> {
        self.emit(&machine::line(self.name, backend.as_deref(), &self.commit)?);
        self.backend = backend;
        Ok(())
    }

    /// How the agent is started on a node with these fields of a kubelet's configuration.
    pub(crate) fn options(&self, node: &Node, kubelet: &Value) -> Result<Options> {
        let options = Options::of(&self.agent, node, kubelet)?;
        Ok(Options { more: self.agent_args.clone(), ..options })
    }

    /// Whether that case was asked for.
    pub(crate) fn wants(&self, case: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| case.contains(part.as_str()))
    }

    /// Puts down rows, with the machine's load at their end.
    pub(crate) fn keep(&mut self, rows: impl IntoIterator<Item = Row>) -> Result<()> {
        let load = machine::load1()?;
        for row in rows {
            let row = row.with("load1", load);
            self.emit(&row.json(self.name));
            self.rows.push(row);
        }
        Ok(())
    }

    /// All rows as a table, for people.
    pub(crate) fn end(self) {
        let text = table::render(self.backend.as_deref(), &self.rows);
        // Who no longer listens is no reason to fail.
        let _ = match self.json {
            true => write!(std::io::stderr(), "{text}"),
            false => write!(std::io::stdout(), "{text}"),
        };
    }

    /// Progress, for people.
    pub(crate) fn progress(&self, text: &str) {
        let _ = writeln!(std::io::stderr(), "{text}");
    }

    /// A folder on a disk: the one for temporary files may be memory.
    pub(crate) fn disk(&self) -> Result<&Path> {
        self.workload.parent().context("the folder of the workload")
    }

    /// A line for machines.
    pub(crate) fn emit(&self, line: &Value) {
        if self.json {
            // Who no longer listens is no reason to stop: the groups must go.
            let _ = writeln!(std::io::stdout(), "{line}");
        }
    }
}
