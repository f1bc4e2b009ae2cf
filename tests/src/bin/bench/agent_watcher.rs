//! The agent as the watcher of a bench.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tests::agent::Agent;
use tests::node::{MIB, Node};
use tests::process::Process;

use crate::case::Case;
use crate::hog_node::{Decision, Hog, HogNode, Watcher};
use crate::observer::check_screens;
use crate::testbed::Testbed;

/// A running agent that kills.
#[derive(Debug)]
pub(crate) struct AgentWatcher {
    pub(crate) agent: Agent,
    screens: Vec<Process>,
    /// The number of decisions before the current run.
    decisions: usize,
    victim: String,
}

impl AgentWatcher {
    pub(crate) fn start(testbed: &Testbed, case: Case, node: &Node) -> Result<Self> {
        let hard = format!("{}Mi", case.threshold() / MIB);
        let kubelet = json!({"evictionHard": {"memory.available": hard}});
        let mut options = testbed.options(node, &kubelet)?;
        if case.kernel_kill {
            options.config = Some(node.write_agent_config(&json!({"kernelKill": "HardMemory"}))?);
        }
        case.observer.prepare(node, &mut options)?;
        let agent = Agent::start(&options, &testbed.interrupt)?;
        let screens = case.observer.start(node, &options)?;
        Ok(Self { agent, screens, decisions: 0, victim: String::new() })
    }

    pub(crate) fn stop(mut self) -> Result<()> {
        check_screens(&mut self.screens)?;
        self.agent.stop()
    }
}

impl Watcher for AgentWatcher {
    fn begin(&mut self, _: &HogNode<'_>, _: &Hog<'_>) -> Result<()> {
        self.victim.clear();
        Ok(())
    }

    fn poll_decision(&mut self) -> Result<Option<Decision>> {
        let mut decisions = self.agent.events()?.iter().filter(|event| event.is_decision());
        let Some(event) = decisions.nth(self.decisions) else { return Ok(None) };
        let decided = Decision {
            at_ns: event.number("decided_mono_ns").context("a decision has no time")?,
            stamped_ns: event.number("crossed_mono_ns"),
            detected_by: event.text("detected_by").to_owned(),
        };
        event.pod().clone_into(&mut self.victim);
        self.decisions += 1;
        Ok(Some(decided))
    }

    /// Waits until the agent has reported the end of its victim and of the pressure.
    fn wait_until_settled(&mut self, _: &HogNode<'_>, hog: &Hog<'_>, decided: bool) -> Result<()> {
        if !decided {
            return Ok(());
        }
        ensure!(self.victim == hog.pod, "{} was chosen, and not {}", self.victim, hog.pod);
        self.agent.wait_for_recovery(self.decisions)
    }
}
