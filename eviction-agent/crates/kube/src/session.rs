//! The node as part of its cluster: which node it is, and the watches of its object and its pods.

use std::sync::Arc;
use std::time::Duration;

use eviction_core::node::Node;
use eviction_core::pods::{KnownPod, from_api};
use eviction_core::policy::Policy;
use tokio::sync::watch::Receiver;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::backoff::Backoff;
use crate::cleanup::leftovers;
use crate::client::Client;
use crate::error::OperationError;
use crate::events::{EventSink, Recorder};
use crate::node_identity::{IdentifyError, NodeName, identify};
use crate::node_patch::NodeStatusUpdate;
use crate::node_status::reconcile;
use crate::nodes::parse_node;
use crate::object_store::StoreView;
use crate::pods::parse_pod;
use crate::watcher::{Resource, Watcher};

/// A refusal that lasts so long is one.
const LASTING: Duration = Duration::from_secs(30);

/// How long a start waits for the first list: without pods there is none to evict.
const FIRST_LIST: Duration = Duration::from_secs(5);

/// A pod with what follows from it; as long as the pod is the same, so is the rest.
#[derive(Clone, Debug)]
pub struct WatchedPod(pub Arc<KnownPod>);

impl PartialEq for WatchedPod {
    fn eq(&self, other: &Self) -> bool {
        self.0.pod == other.0.pod
    }
}

/// The watches of a node.
#[derive(Debug)]
pub struct KubeSession {
    client: Client,
    name: NodeName,
    pods: Receiver<Arc<StoreView<WatchedPod>>>,
    node: Receiver<Arc<StoreView<Node>>>,
    /// Ends only with what is wrong with the node's name or the agent's rights, found out late because the
    /// server was not available at the start.
    watch: JoinHandle<OperationError>,
    events: Option<JoinHandle<()>>,
}

impl KubeSession {
    /// Finds the server and the node's object, and starts to watch. `boot_id` is that of this machine,
    /// `policy` what pods are prepared for. A server that is not available now is waited for. Needs a
    /// tokio runtime.
    ///
    /// # Errors
    /// Everything else that is wrong with the name, the credentials or the rights.
    pub async fn join(
        client: Client,
        node_name: Option<&str>,
        boot_id: Option<String>,
        policy: &Policy,
    ) -> Result<Self, OperationError> {
        let name = NodeName::parse(node_name)?;
        let is_known = match identify(&client, &name, boot_id.as_deref()).await {
            Ok(()) => true,
            Err(IdentifyError::Unavailable(why)) => {
                tracing::warn!(why, "the API server cannot be asked: pods are not known until it can");
                false
            }
            Err(IdentifyError::Failed(error)) => return Err(error),
        };
        let policy = policy.clone();
        let pods = Resource {
            kind: ("Pod", "pods"),
            field_selector: format!("spec.nodeName={name}"),
            decode: Box::new(move |json| {
                let pod = parse_pod(json).map_err(|error| format!("{}: {}", error.path, error.cause))?;
                Ok(WatchedPod(Arc::new(KnownPod::new(from_api(pod), &policy))))
            }),
        };
        let node = Resource {
            kind: ("Node", "nodes"),
            field_selector: format!("metadata.name={name}"),
            decode: Box::new(parse_node),
        };
        let (pod_watcher, mut pods) = Watcher::new(client.clone(), pods);
        let (node_watcher, node) = Watcher::new(client.clone(), node);
        let watch = tokio::spawn({
            let (client, name, node) = (client.clone(), name.clone(), node.clone());
            async move {
                if !is_known && let Err(error) = identify_at_last(&client, &name, boot_id.as_deref()).await {
                    return error;
                }
                tokio::join!(pod_watcher.run(), node_watcher.run(), log_changes(node));
                OperationError::new("watch the API server: the watches have ended")
            }
        });
        if is_known {
            // Without it the pods are not known, which is reported.
            drop(timeout(FIRST_LIST, pods.wait_for(|pods| pods.synced)).await);
        }
        Ok(Self { client, name, pods, node, watch, events: None })
    }

    /// Waits until it is known that the agent is not where it should be. May be cancelled.
    pub async fn failed(&mut self) -> OperationError {
        match (&mut self.watch).await {
            Ok(error) => error,
            Err(error) => OperationError::because("watch the API server", &error),
        }
    }

    /// The name of the node's object.
    pub fn name(&self) -> &NodeName {
        &self.name
    }

    /// The pods of the node.
    pub fn pods(&self) -> Receiver<Arc<StoreView<WatchedPod>>> {
        self.pods.clone()
    }

    /// The node's object.
    pub fn node(&self) -> Receiver<Arc<StoreView<Node>>> {
        self.node.clone()
    }

    /// Starts to patch the node's object as `desired` has it; returns the number of the update whose taints
    /// are written, or need not be waited for.
    pub fn reconcile(&self, desired: &Receiver<Option<Arc<NodeStatusUpdate>>>) -> Receiver<u64> {
        reconcile(&self.client, desired, self.node())
    }

    /// Logs the conditions and taints that another agent has left on the node: a dry run leaves them.
    pub fn log_leftovers(&self) {
        let (mut node, name) = (self.node(), self.name.to_string());
        tokio::spawn(async move {
            let Ok(view) = node.wait_for(|view| view.synced && !view.objects.is_empty()).await else {
                return;
            };
            let marks = view.objects.first().map(|node| leftovers(node)).unwrap_or_default();
            if !marks.is_empty() {
                let (marks, help) = (marks.join(", "), format!("eviction-agent cleanup {name}"));
                tracing::warn!(
                    marks,
                    help,
                    "the node has marks of an agent that acted: a dry run leaves them as they are"
                );
            }
        });
    }

    /// Starts to write Events.
    pub fn events(&mut self) -> EventSink {
        let name = self.name.to_string();
        let recorder = Recorder::new(&name, self.client.observer().clone());
        self.events = Some(tokio::spawn(recorder.clone().run(self.client.clone())));
        EventSink::new(recorder, &name)
    }
}

impl Drop for KubeSession {
    fn drop(&mut self) {
        self.watch.abort();
        if let Some(events) = &self.events {
            events.abort();
        }
    }
}

/// Identifies the node as soon as the server responds. One that has just come up refuses what it will
/// grant when it has read the RBAC objects: a refusal has to last.
async fn identify_at_last(
    client: &Client,
    name: &NodeName,
    boot_id: Option<&str>,
) -> Result<(), OperationError> {
    let mut backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));
    let mut refused: Option<Instant> = None;
    loop {
        match identify(client, name, boot_id).await {
            Ok(()) => {
                tracing::info!(node = %name, "the API server can be asked");
                return Ok(());
            }
            Err(IdentifyError::Unavailable(_)) => refused = None,
            Err(IdentifyError::Failed(error)) => {
                if refused.get_or_insert_with(Instant::now).elapsed() >= LASTING {
                    return Err(error);
                }
            }
        }
        sleep(backoff.pause()).await;
    }
}

/// Logs when the node's object is deleted, created anew or cannot be decoded.
async fn log_changes(mut node: Receiver<Arc<StoreView<Node>>>) {
    let mut uid: Option<Box<str>> = None;
    while node.changed().await.is_ok() {
        let view = Arc::clone(&node.borrow_and_update());
        if !view.synced {
            continue;
        }
        for unreadable in &view.unreadable {
            tracing::warn!(node = %unreadable.key, why = unreadable.why, "this node's object is not understood");
        }
        let current = view.objects.first().map(|node| node.uid.clone());
        match (&uid, &current) {
            (Some(_), None) => tracing::warn!("this node's object is gone from the API server"),
            (Some(before), Some(now)) if before != now => {
                tracing::warn!(%before, %now, "this node's object was deleted and made again");
            }
            _ => {}
        }
        uid = current.or(uid);
    }
}
