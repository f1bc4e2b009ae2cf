//! Takes away what the agent has written into nodes.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::super::identity::NodeName;
use super::super::watching::connect;
use super::conditions::own;
use crate::daemon::error::Failure;
use eviction_config::DryRun;
use eviction_core::api_result::ApiResult;
use eviction_core::node::Node;
use eviction_core::node_conditions::{TaintChange, taints};
use eviction_kube::Backoff;
use eviction_kube::parse_node;
use eviction_kube::{NodePatcher, NodeResponse};

/// A guard against others who write all the time, and against a server that does not come back.
const PATIENCE: Duration = Duration::from_secs(30);

/// So often it is done again what somebody else undoes at once.
const ROUNDS: u32 = 2;

/// What `cleanup` was asked for.
#[derive(Clone, Debug)]
pub struct CleanOptions {
    /// The kubeconfig; without one, the service account of the pod that this runs in.
    pub kubeconfig: Option<std::path::PathBuf>,
    /// The names of the nodes.
    pub nodes: Vec<String>,
    /// How much of it is left out.
    pub dry_run: DryRun,
}

/// What was taken away from a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clean {
    /// Taints as `KEY:EFFECT`.
    pub taints: Vec<String>,
    /// Types of conditions.
    pub conditions: Vec<String>,
}

/// What came of one node.
#[derive(Debug)]
pub struct Cleaned {
    /// Its name.
    pub node: String,
    /// What was taken away, or why that failed.
    pub result: Result<Clean, Failure>,
}

/// Takes the agent's conditions and taints from nodes, one after the other.
///
/// # Errors
/// What keeps it from asking the API server at all, and names that are none.
pub fn clean_nodes(options: &CleanOptions) -> Result<Vec<Cleaned>, Failure> {
    let CleanOptions { kubeconfig, nodes, dry_run } = options;
    let names = nodes.iter().map(|name| NodeName::of(Some(name.as_str()))).collect::<Result<Vec<_>, _>>()?;
    let client = connect(kubeconfig.as_deref())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::because("start the runtime", &error))?;
    let hand = NodePatcher::new(client, *dry_run != DryRun::None);
    let cleaned = runtime.block_on(async {
        let mut cleaned = Vec::new();
        for name in names {
            let node = name.to_string();
            let result = clean(&hand, &node, *dry_run).await;
            cleaned.push(Cleaned { node, result });
        }
        cleaned
    });
    runtime.shutdown_background();
    Ok(cleaned)
}

async fn clean(hand: &NodePatcher, name: &str, dry_run: DryRun) -> Result<Clean, Failure> {
    let until = Instant::now() + PATIENCE;
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
    let (mut done, mut rounds) = (Clean::default(), 0);
    loop {
        let seen = hand.look(name).await;
        let (operation, answer) = match seen.node.clone() {
            Some(json) => {
                let node =
                    parse_node(&json).map_err(|why| Failure::failed(format!("read node {name}: {why}")))?;
                if dry_run == DryRun::Client {
                    return Ok(what_is_there(&node));
                }
                match clean_once(hand, &node, &mut done).await {
                    None => return Ok(done),
                    // A dry run leaves everything where it is.
                    Some(Step::Done) if dry_run == DryRun::Server => return Ok(done),
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

fn written_again(name: &str) -> Failure {
    Failure::failed(format!("clean node {name}: what is taken away is written again"))
        .help("the agent still runs there: take its DaemonSet away first")
}

enum Step {
    Done,
    Refused(&'static str, NodeResponse),
}

/// Takes away what is there; nothing if nothing is. What was taken away is noted.
async fn clean_once(hand: &NodePatcher, node: &Node, done: &mut Clean) -> Option<Step> {
    let changes = taints(node, &[None; 3]);
    let kinds = own(node);
    if changes.is_empty() && kinds.is_empty() {
        return None;
    }
    if !changes.is_empty() {
        let answer = hand.write_taints(node, &changes).await;
        if answer.answered != ApiResult::Accepted {
            return Some(Step::Refused("take the taints from", answer));
        }
        done.taints.extend(changes.iter().map(taint));
    }
    if !kinds.is_empty() {
        let answer = hand.write_conditions(node, &[], &kinds).await;
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
        conditions: own(node).into_iter().map(str::to_owned).collect(),
    }
}

/// The agent's taints and conditions on a node.
pub(crate) fn own_marks(node: &Node) -> Vec<String> {
    let Clean { taints, conditions } = what_is_there(node);
    taints.into_iter().chain(conditions).collect()
}

/// Whether it may be different in a moment.
fn is_passing(answer: &NodeResponse) -> bool {
    answer.is_stale() || matches!(answer.answered, ApiResult::Throttled { .. } | ApiResult::Unknown { .. })
}

fn failure(operation: &str, name: &str, answered: &ApiResult) -> Failure {
    let failed = |why: &str| Failure::failed(format!("{operation} node {name}: {why}"));
    match answered {
        ApiResult::Gone => failed("there is no such node"),
        ApiResult::Forbidden { why } => failed(&format!("a permission is missing: {why}"))
            .help("it takes get and patch of nodes, and patch of nodes/status"),
        ApiResult::Throttled { .. } => failed("the API server has too much to do"),
        answered => failed(answered.why().unwrap_or(answered.name())),
    }
}
