//! Takes away what the agent has written into nodes.

use std::time::Duration;

use eviction_core::node::Node;
use eviction_core::node_conditions::{TaintChange, taints};
use eviction_core::progress::ApiResult;
use thiserror::Error;
use tokio::time::{Instant, sleep};

use crate::backoff::Backoff;
use crate::node_patch::{NodePatcher, NodeResponse};
use crate::node_status::own_conditions;
use crate::nodes::parse_node;

/// A guard against others who write all the time, and against a server that does not come back.
const PATIENCE: Duration = Duration::from_secs(30);

/// So often it is done again what somebody else undoes at once.
const ROUNDS: u32 = 2;

/// What was taken away from a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clean {
    /// Taints as `KEY:EFFECT`.
    pub taints: Vec<String>,
    /// Types of conditions.
    pub conditions: Vec<String>,
}

/// Why something of the agent's may be left on a node.
#[derive(Debug, Error)]
#[error("{operation} node {node}: {why}")]
pub struct CleanupError {
    operation: &'static str,
    node: String,
    why: String,
    help: Option<&'static str>,
}

impl CleanupError {
    /// What can be done about it.
    pub fn help(&self) -> Option<&'static str> {
        self.help
    }
}

/// Takes the agent's conditions and taints from a node; with `only_look` says what it would take.
///
/// # Errors
/// If the node is not there, or the API server refuses or does not respond for 30 s.
pub async fn clean_node(patcher: &NodePatcher, name: &str, only_look: bool) -> Result<Clean, CleanupError> {
    let until = Instant::now() + PATIENCE;
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
    let (mut done, mut rounds) = (Clean::default(), 0);
    loop {
        let seen = patcher.look(name).await;
        let (operation, answer) = match seen.node.clone() {
            Some(json) => {
                let node = parse_node(&json).map_err(|why| error("read", name, why))?;
                if only_look {
                    return Ok(what_is_there(&node));
                }
                match clean_once(patcher, &node, &mut done).await {
                    None => return Ok(done),
                    // A dry run leaves everything where it is.
                    Some(Step::Done) if patcher.is_dry() => return Ok(done),
                    Some(Step::Done) if rounds < ROUNDS => {
                        rounds += 1;
                        continue;
                    }
                    Some(Step::Done) => return Err(written_again(name)),
                    Some(Step::Refused(operation, answer)) => (operation, answer),
                }
            }
            None => ("read", seen),
        };
        if !is_passing(&answer) || Instant::now() >= until {
            return Err(failure(operation, name, &answer.answered));
        }
        sleep(backoff.pause()).await;
    }
}

fn written_again(name: &str) -> CleanupError {
    let help = Some("the agent still runs there: take its DaemonSet away first");
    CleanupError { help, ..error("clean", name, "what is taken away is written again".to_owned()) }
}

fn error(operation: &'static str, name: &str, why: String) -> CleanupError {
    CleanupError { operation, node: name.to_owned(), why, help: None }
}

enum Step {
    Done,
    Refused(&'static str, NodeResponse),
}

/// Takes away what is there; nothing if nothing is. What was taken away is noted.
async fn clean_once(patcher: &NodePatcher, node: &Node, done: &mut Clean) -> Option<Step> {
    let changes = taints(node, &[None; 3]);
    let kinds = own_conditions(node);
    if changes.is_empty() && kinds.is_empty() {
        return None;
    }
    if !changes.is_empty() {
        let answer = patcher.write_taints(node, &changes).await;
        if answer.answered != ApiResult::Accepted {
            return Some(Step::Refused("take the taints from", answer));
        }
        done.taints.extend(changes.iter().map(taint));
    }
    if !kinds.is_empty() {
        let answer = patcher.write_conditions(node, &[], &kinds).await;
        if answer.answered != ApiResult::Accepted {
            return Some(Step::Refused("take the conditions from", answer));
        }
        done.conditions.extend(kinds.into_iter().map(str::to_owned));
    }
    Some(Step::Done)
}

/// As `KEY:EFFECT`.
fn taint(change: &TaintChange) -> String {
    match change {
        TaintChange::Replace { key, effect, .. }
        | TaintChange::Remove { key, effect, .. }
        | TaintChange::Add { key, effect } => format!("{key}:{}", effect.name()),
    }
}

fn what_is_there(node: &Node) -> Clean {
    let taints = taints(node, &[None; 3]);
    Clean {
        taints: taints.iter().map(taint).collect(),
        conditions: own_conditions(node).into_iter().map(str::to_owned).collect(),
    }
}

/// The agent's taints and conditions on a node.
pub fn own_marks(node: &Node) -> Vec<String> {
    let Clean { taints, conditions } = what_is_there(node);
    taints.into_iter().chain(conditions).collect()
}

/// Whether it may be different in a moment.
fn is_passing(answer: &NodeResponse) -> bool {
    answer.is_stale() || matches!(answer.answered, ApiResult::Throttled { .. } | ApiResult::Unknown { .. })
}

fn failure(operation: &'static str, name: &str, answered: &ApiResult) -> CleanupError {
    let failed = |why: &str| error(operation, name, why.to_owned());
    match answered {
        ApiResult::Gone => failed("there is no such node"),
        ApiResult::Forbidden { why } => {
            let help = Some("it takes get and patch of nodes, and patch of nodes/status");
            CleanupError { help, ..failed(&format!("a permission is missing: {why}")) }
        }
        ApiResult::Throttled { .. } => failed("the API server has too much to do"),
        answered => failed(answered.why().unwrap_or(answered.name())),
    }
}
