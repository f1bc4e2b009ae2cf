//! Which node of the cluster this is, which pods it has, and how fresh that is.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::WeakSender;
use tokio::sync::watch::Receiver;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::identity::{self, Found, NodeName};
use super::node_status::NodeStatusKeeper;
use super::node_status_sender::PendingUpdate;
use super::pods::{self, WatchedPods};
use crate::daemon::control_loop::Command;
use crate::daemon::state::DurableRevision;
use crate::error::Failure;
use crate::spsc;
use crate::telemetry::event_log;
use crate::telemetry::kube_events;
use crate::telemetry::metrics::Metrics;
use eviction_core::node::Node;
use eviction_core::policy::Policy;
use eviction_kube::events::{EventSink, Recorder};
use eviction_kube::{
    Access, Backoff, Client, Resource, StoreView, WatchMetrics, Watcher, own_marks, parse_node,
};

/// A refusal that lasts so long is one.
const LASTING: Duration = Duration::from_secs(30);

/// How long a start waits for the first list: without pods there is nobody to evict.
const FIRST_LIST: Duration = Duration::from_secs(5);

/// How the agent finds its cluster.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The kubeconfig; without one, the service account of the pod that the agent runs in.
    pub kubeconfig: Option<PathBuf>,
    /// The name of this node's object.
    pub node_name: Option<String>,
}

/// The node as a part of its cluster: what is watched of it.
#[derive(Debug)]
pub(crate) struct Membership {
    client: Client,
    name: NodeName,
    pods: Arc<WatchMetrics>,
    node: Arc<WatchMetrics>,
    seen_node: Receiver<Arc<StoreView<Node>>>,
    /// Ends only with what is wrong with the node's name or its rights, found out late because the
    /// server could not be asked at the start.
    work: JoinHandle<Failure>,
    telling: Option<JoinHandle<()>>,
}

impl Membership {
    /// Finds the server and the node's own object, and begins to watch. A server that cannot be
    /// reached now is waited for; everything else that is wrong is said at once.
    pub(crate) async fn join(
        client: Client,
        node_name: Option<&str>,
        policy: &Policy,
    ) -> Result<(Self, WatchedPods), Failure> {
        let name = NodeName::of(node_name)?;
        let found = identity::find_patiently(&client, &name).await?;
        let known = match found {
            Found::Node(_) => true,
            Found::Unreachable(why) => {
                tracing::warn!(why, "the API server cannot be asked: pods are not known until it can");
                false
            }
        };
        let (pods_figures, node_figures) =
            (Arc::new(WatchMetrics::default()), Arc::new(WatchMetrics::default()));
        let pods = Resource {
            kind: ("Pod", "pods"),
            field_selector: format!("spec.nodeName={name}"),
            decode: pods::decoder(policy),
        };
        let own_node = Resource {
            kind: ("Node", "nodes"),
            field_selector: format!("metadata.name={name}"),
            decode: Box::new(parse_node),
        };
        let (pods_watcher, seen_pods) = Watcher::new(client.clone(), pods, Arc::clone(&pods_figures));
        let (node_watcher, seen_node) = Watcher::new(client.clone(), own_node, Arc::clone(&node_figures));
        let (work_client, work_name) = (client.clone(), name.clone());
        let told_node = seen_node.clone();
        let work = tokio::spawn(async move {
            if !known && let Err(failure) = identify(&work_client, &work_name).await {
                return failure;
            }
            tokio::join!(pods_watcher.run(), node_watcher.run(), tell_of_node(told_node));
            Failure::failed("watch the API server: nobody listens")
        });
        let mut pods = WatchedPods::new(seen_pods);
        if known {
            pods.wait(FIRST_LIST).await;
        }
        let joined =
            Self { client, name, pods: pods_figures, node: node_figures, seen_node, work, telling: None };
        Ok((joined, pods))
    }

    /// Waits until it is known that the agent is not where it thinks it is. May be cancelled.
    pub(crate) async fn failed(&mut self) -> Failure {
        match (&mut self.work).await {
            Ok(failure) => failure,
            Err(error) => Failure::because("watch the API server", &error),
        }
    }

    /// The name of the node's object.
    pub(crate) fn name(&self) -> &NodeName {
        &self.name
    }

    /// Where the pods come from.
    pub(crate) fn info(&self) -> event_log::Backend {
        source(&self.client, &self.name)
    }

    /// Begins to keep the node's own object as `updates` say, each when it was persisted; hands back the
    /// number of the update that need not be waited for.
    pub(crate) fn keep(
        &self,
        updates: spsc::Receiver<PendingUpdate>,
        commands: WeakSender<Command>,
        persisted: Option<DurableRevision>,
        metrics: Arc<Metrics>,
    ) -> Receiver<u64> {
        let (client, nodes) = (self.client.clone(), self.seen_node.clone());
        NodeStatusKeeper { updates, nodes, commands, client, persisted, metrics }.start()
    }

    /// Says of what an agent that acted has left on the node that nobody takes it away: only who acts does.
    pub(crate) fn leave_marks(&self) {
        tokio::spawn(tell_of_marks(self.seen_node.clone(), self.name.to_string()));
    }

    /// Starts to write Events of the node and its pods. Needs the runtime that it was joined on.
    pub(crate) fn events(&mut self, metrics: Arc<Metrics>) -> EventSink {
        let name = self.name.to_string();
        let recorder = Recorder::new(&name, kube_events::counter(metrics));
        self.telling = Some(tokio::spawn(recorder.clone().run(self.client.clone())));
        EventSink::new(recorder, &name)
    }

    /// What its watches have been through: of pods, and of the node.
    pub(crate) fn watches(&self) -> [Arc<WatchMetrics>; 2] {
        [Arc::clone(&self.pods), Arc::clone(&self.node)]
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.work.abort();
        if let Some(telling) = &self.telling {
            telling.abort();
        }
    }
}

/// How the API server is reached, and as whom, by all that ask it; it is not asked yet.
///
/// # Errors
/// What is wrong with the kubeconfig, or with the pod's service account.
pub(crate) fn connect(kubeconfig: Option<&Path>) -> Result<Client, Failure> {
    let access = Access::find(kubeconfig).map_err(|error| Failure::because("find the API server", &error))?;
    Client::new(access).map_err(|error| Failure::because("connect to the API server", &error))
}

pub(super) fn source(client: &Client, name: &NodeName) -> event_log::Backend {
    let access = client.access();
    event_log::Backend {
        source: "pods".to_owned(),
        backend: "watch".to_owned(),
        reason: format!("pods of node {name} at {}, by {}", access.server(), access.origin()),
    }
}

/// Asks until the server answers. One that has just come up refuses what it will grant when it has
/// read who may do what: a refusal has to last.
async fn identify(client: &Client, name: &NodeName) -> Result<Node, Failure> {
    let mut backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));
    let mut refused: Option<Instant> = None;
    loop {
        match identity::find_patiently(client, name).await {
            Ok(Found::Node(node)) => {
                tracing::info!(node = %name, "the API server can be asked");
                return Ok(node);
            }
            Ok(Found::Unreachable(_)) => refused = None,
            Err(failure) if refused.get_or_insert_with(Instant::now).elapsed() >= LASTING => {
                return Err(failure);
            }
            Err(_) => {}
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

/// Says so once, if there is anything.
async fn tell_of_marks(mut seen: Receiver<Arc<StoreView<Node>>>, name: String) {
    loop {
        let now = Arc::clone(&seen.borrow_and_update());
        if let Some(node) = now.objects.first().filter(|_| now.synced) {
            let marks = own_marks(node);
            if !marks.is_empty() {
                let (marks, help) = (marks.join(", "), format!("eviction-agent cleanup {name}"));
                tracing::warn!(
                    marks,
                    help,
                    "the node has marks of an agent that acted: a dry run leaves them as they are"
                );
            }
            return;
        }
        if seen.changed().await.is_err() {
            return;
        }
    }
}

/// Says when the node's own object goes, or another one comes under its name.
async fn tell_of_node(mut seen: Receiver<Arc<StoreView<Node>>>) {
    let mut uid: Option<Box<str>> = None;
    while seen.changed().await.is_ok() {
        let now = Arc::clone(&seen.borrow_and_update());
        if !now.synced {
            continue;
        }
        for unreadable in &now.unreadable {
            tracing::warn!(node = %unreadable.key, why = unreadable.why, "this node's object is not understood");
        }
        let current = now.objects.first().map(|node| node.uid.clone());
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
