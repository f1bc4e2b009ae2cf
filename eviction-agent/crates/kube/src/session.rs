//! The connection of the node to its cluster: the name of the node, and the watches of its object and its
//! pods.

use std::sync::Arc;
use std::time::Duration;

use eviction_core::node::Node;
use eviction_core::pods::{KnownPod, from_api};
use eviction_core::policy::Policy;
use tokio::sync::watch::Receiver;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::backoff::Backoff;
use crate::cleanup::Leftovers;
use crate::client::Client;
use crate::error::OperationError;
use crate::events::EventSink;
use crate::node::{NodeName, identify, parse_node};
use crate::node_patch::NodeStatusUpdate;
use crate::node_status::reconcile;
use crate::object_store::StoreView;
use crate::pods::parse_pod;
use crate::watcher::{WatchedResource, Watcher};

/// How long a rejection must last before it counts as permanent.
const PERMANENT_AFTER: Duration = Duration::from_secs(30);

/// How long the start waits for the first list of pods. Without pods there is nothing to evict.
const FIRST_LIST: Duration = Duration::from_secs(5);

/// The watches of a node.
#[derive(Debug)]
pub struct KubeSession {
    client: Client,
    name: NodeName,
    pods: Receiver<Arc<StoreView<KnownPod>>>,
    node: Receiver<Arc<StoreView<Node>>>,
    /// The watches and, if they are started, the writes of Events. They end only with an error in the node's name
    /// or the agent's permissions, which is detected here if the server was not available at the start.
    tasks: JoinSet<OperationError>,
}

impl KubeSession {
    /// Finds the server and the node's object, and starts the watches. `boot_id` is that of this machine, and
    /// `policy` is used to derive the data of pods. If the server is not available now, the session waits for
    /// it. Needs a tokio runtime.
    ///
    /// # Errors
    /// If the name, the credentials or the permissions are invalid.
    pub async fn join(
        client: Client,
        node_name: Option<&str>,
        boot_id: Option<String>,
        policy: &Policy,
    ) -> Result<Self, OperationError> {
        let name = NodeName::parse(node_name)?;
        let is_known = match identify(&client, &name, boot_id.as_deref()).await {
            Ok(()) => true,
            Err(error) if error.is_unavailable() => {
                tracing::warn!(why = %error, "the API server is not available: pods are unknown until it is");
                false
            }
            Err(error) => return Err(error),
        };
        let policy = policy.clone();
        let pods = WatchedResource {
            kind: ("Pod", "pods"),
            field_selector: format!("spec.nodeName={name}"),
            decode: Box::new(move |json| Ok(KnownPod::new(from_api(parse_pod(json)?), &policy))),
            is_finished: |known: &KnownPod| known.pod.finished,
        };
        let node = WatchedResource {
            kind: ("Node", "nodes"),
            field_selector: format!("metadata.name={name}"),
            decode: Box::new(parse_node),
            is_finished: |_| false,
        };
        let (pod_watcher, mut pods) = Watcher::new(client.clone(), pods);
        let (node_watcher, node) = Watcher::new(client.clone(), node);
        let mut tasks = JoinSet::new();
        tasks.spawn({
            let (client, name, node) = (client.clone(), name.clone(), node.clone());
            async move {
                if !is_known
                    && let Err(error) = identify_when_available(&client, &name, boot_id.as_deref()).await
                {
                    return error;
                }
                tokio::join!(pod_watcher.run(), node_watcher.run(), log_changes(node));
                OperationError::new("watch the API server: the watches have ended")
            }
        });
        if is_known {
            // On a timeout the pods are unknown, which is reported.
            drop(timeout(FIRST_LIST, pods.wait_for(|pods| pods.synced)).await);
        }
        Ok(Self { client, name, pods, node, tasks })
    }

    /// Waits for an error that shows that the node's name or the permissions are wrong. May be cancelled.
    pub async fn failed(&mut self) -> OperationError {
        match self.tasks.join_next().await {
            Some(Ok(error)) => error,
            Some(Err(error)) => OperationError::because("watch the API server", &error),
            None => std::future::pending().await,
        }
    }

    /// Returns the name of the node's object.
    pub fn name(&self) -> &NodeName {
        &self.name
    }

    /// Returns the pods of the node.
    pub fn pods(&self) -> Receiver<Arc<StoreView<KnownPod>>> {
        self.pods.clone()
    }

    /// Returns the node's object.
    pub fn node(&self) -> Receiver<Arc<StoreView<Node>>> {
        self.node.clone()
    }

    /// Starts to patch the node's object to the state in `desired`. Returns the number of the last update
    /// whose taints are written or need not be waited for.
    pub fn reconcile(&self, desired: &Receiver<Option<Arc<NodeStatusUpdate>>>) -> Receiver<u64> {
        reconcile(&self.client, desired, self.node())
    }

    /// Logs the conditions and taints of another agent on the node, which a dry run does not remove.
    pub fn log_leftovers(&self) {
        let (mut node, name) = (self.node(), self.name.to_string());
        tokio::spawn(async move {
            let Ok(view) = node.wait_for(|view| view.synced && !view.objects.is_empty()).await else {
                return;
            };
            let left = view.objects.first().map(|node| Leftovers::of(node)).unwrap_or_default();
            let marks = [left.taints, left.conditions].concat();
            if !marks.is_empty() {
                let (marks, help) = (marks.join(", "), format!("eviction-agent cleanup {name}"));
                tracing::warn!(
                    marks,
                    help,
                    "the node has conditions or taints of an agent that acted: a dry run leaves them as they are"
                );
            }
        });
    }

    /// Starts to write Events.
    pub fn events(&mut self) -> EventSink {
        let events = EventSink::new(&self.name.to_string(), self.client.observer().clone());
        let write = events.write(self.client.clone());
        self.tasks.spawn(async { match write.await {} });
        events
    }
}

/// Identifies the node as soon as the server responds. A server that has just started rejects requests until
/// it has read the RBAC objects, so only a rejection that lasts counts.
async fn identify_when_available(
    client: &Client,
    name: &NodeName,
    boot_id: Option<&str>,
) -> Result<(), OperationError> {
    let mut backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));
    let mut rejected_since: Option<Instant> = None;
    loop {
        match identify(client, name, boot_id).await {
            Ok(()) => {
                tracing::info!(node = %name, "the API server is available");
                return Ok(());
            }
            Err(error) if error.is_unavailable() => rejected_since = None,
            Err(error) => {
                if rejected_since.get_or_insert_with(Instant::now).elapsed() >= PERMANENT_AFTER {
                    return Err(error);
                }
            }
        }
        sleep(backoff.pause()).await;
    }
}

/// Logs when the node's object is deleted, recreated or cannot be decoded.
async fn log_changes(mut node: Receiver<Arc<StoreView<Node>>>) {
    let mut uid: Option<Box<str>> = None;
    while node.changed().await.is_ok() {
        let view = Arc::clone(&node.borrow_and_update());
        if !view.synced {
            continue;
        }
        for why in &view.unreadable {
            tracing::warn!(why, "the object of this node cannot be decoded");
        }
        let current = view.objects.first().map(|node| node.uid.clone());
        match (&uid, &current) {
            (Some(_), None) => tracing::warn!("the object of this node was deleted from the API server"),
            (Some(before), Some(now)) if before != now => {
                tracing::warn!(%before, %now, "the object of this node was deleted and created again");
            }
            _ => {}
        }
        uid = current.or(uid);
    }
}
