//! The node as part of a cluster: the channels between the control loop and the API server.

mod metrics;
mod senders;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use eviction_config::{ActionSettings, DryRun, EvictionRequests};
use eviction_core::input::ApiReachability;
use eviction_core::node::Node;
use eviction_core::node_conditions::pressure::{InitialCondition, PressureCause};
use eviction_core::progress::KillUpdate;
use eviction_core::units::GoDuration;
use eviction_kube::events::EventSink;
use eviction_kube::{
    Access, Client, DaemonSetName, EvictionRequest, Evictor, EvictorConfig, KubeSession, Leftovers, NodeName,
    NodeStatusUpdate, Observer, OperationError, StoreView, check_access, clean_node, find_leftovers,
    list_nodes, wait_ready,
};
use eviction_node::clock::Clock;

use super::control_loop::Command;
use super::kubelet_api::Caller;
use super::state::DurableRevision;
use super::state::read_boot_id;
use crate::error::{Failure, chain};
use crate::spsc::Receiver;
use crate::telemetry::event_log::{Backend, NO_BACKEND};
use crate::telemetry::metrics::Metrics;
pub(crate) use metrics::{begin_watches, observer};
use senders::AfterRevision;
pub(crate) use senders::{EvictionSender, NodeStatusSender};

/// The path that is read to find out whether the API server is available if the node's name is not known. It
/// fails as well when etcd is not available.
const READY: &str = "/readyz";

impl From<OperationError> for Failure {
    fn from(error: OperationError) -> Self {
        let message = error.to_string();
        let failure = if error.is_usage() { Self::usage(message) } else { Self::failed(message) };
        match error.advice() {
            Some(help) => failure.help(help),
            None => failure,
        }
    }
}

/// Finds the API server and the credentials for it. Sends no request yet.
///
/// # Errors
/// If the kubeconfig or the service account of the pod cannot be used.
pub(crate) fn connect(kubeconfig: Option<&Path>, observer: Observer) -> Result<Client, Failure> {
    let access = Access::find(kubeconfig).map_err(|error| Failure::because("find the API server", &error))?;
    Client::observed(access, observer).map_err(|error| Failure::because("connect to the API server", &error))
}

/// Returns the backend of the source `pods`.
pub(crate) fn backend(client: &Client, name: &NodeName) -> Backend {
    let access = client.access();
    let reason = format!("pods of node {name} at {}, by {}", access.server(), access.origin());
    Backend::new("pods", "watch", reason)
}

/// The senders of requests to the API server, before they are started.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    evictions: Option<(Receiver<AfterRevision<EvictionRequest>>, EvictorConfig, mpsc::Sender<KillUpdate>)>,
    node_updates: Option<Receiver<AfterRevision<NodeStatusUpdate>>>,
}

impl Cluster {
    /// Creates a cluster without senders. Requests will use this client.
    pub(crate) fn new(client: Client) -> Self {
        Self { client, evictions: None, node_updates: None }
    }

    /// Opens the channel for evictions. Their results are sent to `results`.
    ///
    /// # Errors
    /// If the channel cannot be created.
    pub(crate) fn evictions(
        &mut self,
        requests: EvictionRequests,
        action: ActionSettings,
        results: mpsc::Sender<KillUpdate>,
    ) -> Result<EvictionSender, Failure> {
        let EvictionRequests { max_in_flight, timeout, max_age } = requests;
        let time = |duration: GoDuration| Duration::from_nanos(duration.as_nanos().unsigned_abs());
        let config = EvictorConfig {
            in_flight: max_in_flight.into(),
            within: time(timeout),
            fresh: time(max_age),
            is_dry: action.is_dry(),
        };
        let (sender, receiver) = EvictionSender::new()?;
        self.evictions = Some((receiver, config, results));
        Ok(sender)
    }

    /// Opens the channel for conditions and taints of the node.
    ///
    /// # Errors
    /// If the channel cannot be created.
    pub(crate) fn node_status(&mut self) -> Result<NodeStatusSender, Failure> {
        let (sender, receiver) = NodeStatusSender::new()?;
        self.node_updates = Some(receiver);
        Ok(sender)
    }

    /// Returns whether the API server is available, if evictions depend on it.
    pub(crate) fn reachability(&self) -> Option<watch::Receiver<ApiReachability>> {
        self.evictions.as_ref().map(|_| self.client.reachability())
    }

    /// Starts to send, each request once the state of its revision is written. Needs a tokio runtime.
    pub(crate) fn start(
        self,
        session: Option<&KubeSession>,
        commands: mpsc::WeakSender<Command>,
        durable: Option<DurableRevision>,
        metrics: &Metrics,
    ) {
        let Self { client, evictions, node_updates } = self;
        let node_status = session.zip(node_updates).map(|(session, updates)| {
            tokio::spawn(send_initial_conditions(session.node(), commands));
            let (desired, receiver) = watch::channel(None);
            let clock = Clock::start();
            tokio::spawn(forward("conditions and taints", updates, durable.clone(), move |update| {
                desired.send_replace(Some(Arc::new(with_system_times(update, &clock))));
                std::future::ready(())
            }));
            metrics::begin_patches(metrics);
            session.reconcile(&receiver)
        });
        if let (None, Some(session)) = (&node_status, session) {
            session.log_leftovers();
        }
        if let Some((requests, config, results)) = evictions {
            let evictor = Evictor::new(client.clone(), config, results, node_status);
            tokio::spawn(forward("evictions", requests, durable, move |request| {
                let evictor = evictor.clone();
                async move { evictor.evict(request).await }
            }));
            // A read of the agent's node object works only while etcd is available.
            let path = session.map_or(READY.to_owned(), |it| format!("/api/v1/nodes/{}", it.name()));
            let client = client.clone();
            tokio::spawn(async move { client.probe(path).await });
        }
        tokio::spawn(async move { client.keep_warm().await });
    }
}

/// Starts to write Events of the node and its pods.
pub(crate) fn events(session: &mut KubeSession, metrics: &Metrics) -> EventSink {
    metrics::begin_events(metrics);
    session.events()
}

/// Forwards values in order, each once the state of its revision is written.
async fn forward<T, F: Future<Output = ()>>(
    what: &'static str,
    mut receiver: Receiver<AfterRevision<T>>,
    mut durable: Option<DurableRevision>,
    mut take: impl FnMut(T) -> F,
) {
    let forwarded = async {
        let wakeups = receiver.wakeups()?;
        while let Some(AfterRevision { value, revision }) = receiver.recv(&wakeups).await? {
            if let Some(durable) = &mut durable {
                durable.wait_for(revision).await;
            }
            take(value).await;
        }
        Ok(())
    };
    let result: std::io::Result<()> = forwarded.await;
    if let Err(error) = result {
        tracing::error!(what, why = chain(&error), "no more requests are sent to the API server");
    }
}

/// Returns the update with times of the system clock.
fn with_system_times(mut update: NodeStatusUpdate, clock: &Clock) -> NodeStatusUpdate {
    for pressure in &mut update.pressures {
        pressure.since = pressure.since.map(|since| clock.shown(since));
        if let Some(PressureCause::Transition { since }) = &mut pressure.cause {
            *since = clock.shown(*since);
        }
    }
    update
}

/// Sends the initial conditions and taints of the node's object to the control loop, once.
async fn send_initial_conditions(
    mut nodes: watch::Receiver<Arc<StoreView<Node>>>,
    commands: mpsc::WeakSender<Command>,
) -> Option<()> {
    let clock = Clock::start();
    let view = Arc::clone(&*nodes.wait_for(|view| view.synced && !view.objects.is_empty()).await.ok()?);
    let node = view.objects.first()?;
    let now = clock.shown(clock.now().wall);
    let seed = InitialCondition::all(node, now, |shown| clock.steady(shown));
    // Without a control loop the initial conditions are not needed.
    commands.upgrade()?.send(Command::Seed(seed)).await.ok()
}

/// Sends the images of the node's object to the control loop whenever they change.
pub(crate) async fn send_images(
    mut nodes: watch::Receiver<Arc<StoreView<Node>>>,
    commands: mpsc::WeakSender<Command>,
) -> Option<()> {
    let mut sent = Vec::new();
    loop {
        let images = nodes.borrow_and_update().objects.first().map(|node| node.images.clone());
        if let Some(images) = images.filter(|images| *images != sent) {
            sent.clone_from(&images);
            commands.upgrade()?.send(Command::Images(images)).await.ok()?;
        }
        nodes.changed().await.ok()?;
    }
}

/// Checks the connection to the cluster for `check`. Returns the backend of the pods, and every problem that
/// would keep `run` from starting or from reading the pods.
pub(crate) async fn check(caller: &Caller) -> (Backend, Vec<String>) {
    let none = |reason: String| Backend::new("pods", NO_BACKEND, reason);
    let Caller { kubeconfig, node_name, node_ip: _ } = caller;
    let connected = NodeName::parse(node_name.as_deref())
        .map_err(Failure::from)
        .and_then(|name| Ok((connect(kubeconfig.as_deref(), Observer::default())?, name)));
    let (client, name) = match connected {
        Ok(connected) => connected,
        Err(failure) => {
            let causes = failure.into_causes();
            return (none(causes.join("; ")), causes);
        }
    };
    match check_access(&client, &name, read_boot_id().as_deref()).await {
        Ok(problems) => (backend(&client, &name), problems.iter().map(ToString::to_string).collect()),
        Err(error) => {
            // The daemon waits for a server that is not available.
            let problem = (!error.is_unavailable()).then(|| error.to_string());
            (none(error.to_string()), problem.into_iter().collect())
        }
    }
}

/// Waits until the pods of a DaemonSet are ready, for `within` at most. Returns their number.
///
/// # Errors
/// The pods that are not ready, with their nodes and the reasons; or why the API server cannot be reached.
pub fn await_daemon_set(
    kubeconfig: Option<&Path>,
    daemon_set: &DaemonSetName,
    within: Duration,
) -> Result<u64, Failure> {
    let client = connect(kubeconfig, Observer::default())?;
    Ok(run_once(wait_ready(&client, daemon_set, within))??)
}

/// Runs a future on a new runtime.
fn run_once<T>(future: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = crate::daemon::start_runtime()?;
    let result = runtime.block_on(future);
    runtime.shutdown_background();
    Ok(result)
}

/// A node, and what was removed from it, or why that failed.
pub type Cleaned = (String, Result<Leftovers, Failure>);

/// Removes the agent's conditions and taints from these nodes, else from all nodes of the cluster, one after
/// the other. Without a kubeconfig, uses the service account of the pod that this runs in.
///
/// # Errors
/// If the API server cannot be reached, its nodes cannot be listed, or a name is not a valid node name.
pub fn clean_nodes(
    kubeconfig: Option<&Path>,
    nodes: Option<Vec<String>>,
    dry_run: DryRun,
) -> Result<Vec<Cleaned>, Failure> {
    for name in nodes.iter().flatten() {
        NodeName::parse(Some(name))?;
    }
    let client = connect(kubeconfig, Observer::default())?;
    run_once(async {
        let names = match nodes {
            Some(names) => names,
            None => list_nodes(&client).await?,
        };
        let mut cleaned = Vec::new();
        for name in names {
            let result = match dry_run {
                DryRun::Client => find_leftovers(&client, &name).await,
                DryRun::None | DryRun::Server => clean_node(&client, &name, dry_run == DryRun::Server).await,
            };
            cleaned.push((name, result.map_err(Failure::from)));
        }
        Ok(cleaned)
    })?
}
