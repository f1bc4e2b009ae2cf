//! The node as part of a cluster: the connection of the control loop to the API server, and its metrics.

mod senders;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use eviction_config::{ActionSettings, EvictionRequests};
use eviction_core::input::ApiReachability;
use eviction_core::node::Node;
use eviction_core::node_conditions::{InitialCondition, PressureCause};
use eviction_core::progress::KillUpdate;
use eviction_core::units::GoDuration;
use eviction_kube::events::{EventResult, EventSink, Reason};
use eviction_kube::{
    Access, Client, EvictionRequest, Evictor, EvictorConfig, KubeSession, MetricEvent, NodeName,
    NodeStatusUpdate, Observer, OperationError, PATCH_KINDS, PATCH_RESULTS, StoreView, WatchEvent,
    check_access,
};
use eviction_node::clock::Clock;

use super::configuration::ConfigurationFiles;
use super::control_loop::Command;
use super::state::{DurableRevision, read_boot_id};
use crate::error::{Failure, chain};
use crate::spsc::Receiver;
use crate::telemetry::event_log::{Backend, NO_BACKEND};
use crate::telemetry::metrics::{Label, Metrics, unix_now};
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
    /// The requests of the [`EvictionSender`], and what carries them out.
    evictions: Option<(Receiver<(EvictionRequest, u64)>, Evictor)>,
    /// The updates of the [`NodeStatusSender`].
    node_updates: Option<Receiver<(NodeStatusUpdate, u64)>>,
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
        self.evictions = Some((receiver, Evictor::new(self.client.clone(), config, results)));
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
            begin_patches(metrics);
            session.reconcile(&receiver)
        });
        if let (None, Some(session)) = (&node_status, session) {
            session.log_leftovers();
        }
        if let Some((requests, evictor)) = evictions {
            let evictor = evictor.after_updates(node_status);
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
    begin_events(metrics);
    session.events()
}

/// Forwards values in order, each once the state of its revision is written.
async fn forward<T, F: Future<Output = ()>>(
    what: &'static str,
    mut receiver: Receiver<(T, u64)>,
    mut durable: Option<DurableRevision>,
    mut take: impl FnMut(T) -> F,
) {
    let forwarded = async {
        let wakeups = receiver.wakeups()?;
        while let Some((value, revision)) = receiver.recv(&wakeups).await? {
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
pub(crate) async fn check(files: &ConfigurationFiles) -> (Backend, Vec<String>) {
    let none = |reason: String| Backend::new("pods", NO_BACKEND, reason);
    let ConfigurationFiles { kubeconfig, node_name, .. } = files;
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

/// Returns an observer that exports the traffic between the agent and the API server as metrics.
pub(crate) fn observer(metrics: Arc<Metrics>) -> Observer {
    Observer::new(move |event| match event {
        MetricEvent::Request { operation, code } => {
            let label = code.map_or_else(Label::from, |status| Label::from(status.to_string()));
            metrics.kube_api_requests.with([operation.into(), label]).inc();
            if code.is_ok() {
                metrics.kube_api_last_response.set_f64(Some(unix_now()));
            }
        }
        MetricEvent::Watch(resource, event) => {
            metrics.kube_watch_events.with([resource, event.name()]).inc();
        }
        MetricEvent::Received(resource) => {
            metrics.kube_watch_last_event.with([resource]).set(unix_now());
        }
        MetricEvent::Objects(resource, objects) => {
            let objects = i64::try_from(objects).unwrap_or(i64::MAX);
            metrics.kube_watch_objects.with([resource]).set(objects);
        }
        MetricEvent::Event(reason, result, times) => {
            metrics.kube_events.with([reason, result]).inc_by(times);
        }
        MetricEvent::Patch(kind, result) => {
            metrics.node_status_patches.with([kind, result]).inc();
        }
        MetricEvent::OutOfSync(kind, is_out) => {
            metrics.node_status_out_of_sync.with([kind]).set(i64::from(is_out));
        }
    })
}

/// Begins the series of the watches at 0.
pub(crate) fn begin_watches(metrics: &Metrics) {
    for resource in ["pods", "nodes"] {
        metrics.kube_watch_objects.with([resource]);
        for event in WatchEvent::ALL.map(WatchEvent::name) {
            metrics.kube_watch_events.with([resource, event]);
        }
    }
}

/// Begins the series of Events at 0.
fn begin_events(metrics: &Metrics) {
    for reason in Reason::ALL.map(Reason::name) {
        for result in EventResult::ALL.map(EventResult::name) {
            metrics.kube_events.with([reason, result]);
        }
    }
}

/// Begins the series of patches of the node at 0.
fn begin_patches(metrics: &Metrics) {
    for kind in PATCH_KINDS {
        metrics.node_status_out_of_sync.with([kind]);
        for result in PATCH_RESULTS {
            metrics.node_status_patches.with([kind, result]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted_from_0_in_series_that_exist_from_the_start() {
        let metrics = Arc::new(Metrics::new("0", "0"));
        begin_watches(&metrics);
        begin_events(&metrics);
        begin_patches(&metrics);
        let series = || {
            let Metrics { kube_watch_events, kube_events, node_status_patches, .. } = &*metrics;
            (kube_watch_events.series().len(), kube_events.series().len(), node_status_patches.series().len())
        };
        let all = (
            2 * WatchEvent::ALL.len(),
            Reason::ALL.len() * EventResult::ALL.len(),
            PATCH_KINDS.len() * PATCH_RESULTS.len(),
        );
        assert_eq!(series(), all);
        let observer = observer(Arc::clone(&metrics));
        for result in ["accepted", "conflict", "terminated"] {
            observer.observe(MetricEvent::Patch("taints", result));
        }
        observer.observe(MetricEvent::Event("Evicted", "created", 2));
        observer.observe(MetricEvent::Watch("pods", WatchEvent::Listed));
        assert_eq!(series(), all);
        let of = |result| metrics.kube_events.with(["Evicted", result]).get();
        assert_eq!((of("created"), of("refused")), (2, 0));
    }

    #[test]
    fn requests_are_counted_by_operation_and_code() {
        let metrics = Arc::new(Metrics::new("0", "0"));
        let observer = observer(Arc::clone(&metrics));
        let operation = "evict_pod";
        observer.observe(MetricEvent::Request { operation, code: Err("unsent") });
        assert_eq!(metrics.kube_api_last_response.get(), None, "there was none");
        for status in [201, 429, 429] {
            observer.observe(MetricEvent::Request { operation, code: Ok(status) });
        }
        let of = |code: &str| metrics.kube_api_requests.with([operation.to_owned(), code.to_owned()]).get();
        assert_eq!((of("201"), of("429"), of("unsent")), (1, 2, 1));
        assert!(metrics.kube_api_last_response.get().is_some());
    }
}
