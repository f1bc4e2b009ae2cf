//! The node's own object is kept as the control loop says that it ought to be: conditions and taints.

use std::sync::Arc;

use tokio::sync::mpsc::WeakSender;
use tokio::sync::watch;

use eviction_core::node::Node;
use eviction_core::node_conditions::pressure::InitialConditions;
use eviction_kube::{
    Client, NodeStatusUpdate, PATCH_KINDS, PATCH_RESULTS, PatchEvent, PatchObserver, StoreView, reconcile,
};
use eviction_node::async_fd::{register, take_count};

use super::super::control_loop::Command;
use super::super::state::DurableRevision;
use super::node_status_sender::{PendingUpdate, as_shown};
use crate::error::Failure;
use crate::spsc::{Next, Receiver};
use crate::telemetry::metrics::{KindLabels, Metrics, PatchLabels};
use eviction_node::clock::Clock;

/// What the node's object is kept with.
#[derive(Debug)]
pub(crate) struct NodeStatusKeeper {
    /// What the control loop wants.
    pub(crate) updates: Receiver<PendingUpdate>,
    /// The node's object as it is watched.
    pub(crate) nodes: watch::Receiver<Arc<StoreView<Node>>>,
    /// Where the control loop is told what the object says from before the start.
    pub(crate) commands: WeakSender<Command>,
    pub(crate) client: Client,
    /// Where what is wanted is persisted before it is written to the node.
    pub(crate) persisted: Option<DurableRevision>,
    pub(crate) metrics: Arc<Metrics>,
}

impl NodeStatusKeeper {
    /// Starts to keep it; hands back the number of the update whose taints are written, or have not to
    /// be waited for. Needs a tokio runtime.
    pub(crate) fn start(self) -> watch::Receiver<u64> {
        let Self { updates, nodes, commands, client, persisted, metrics } = self;
        let (wanted, receiver) = watch::channel(None);
        let written = reconcile(&client, &receiver, nodes.clone(), &observer(metrics));
        tokio::spawn(seed(nodes, commands));
        tokio::spawn(async move {
            if let Err(failure) = carry(updates, wanted, persisted).await {
                let why = failure.into_causes().join("; ");
                tracing::error!(why, "the node's conditions and taints are not kept any more");
            }
        });
        written
    }
}

/// Hands updates on when they are persisted, with times as the system's clock shows them.
async fn carry(
    mut updates: Receiver<PendingUpdate>,
    wanted: watch::Sender<Option<Arc<NodeStatusUpdate>>>,
    mut persisted: Option<DurableRevision>,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::because("watch the lane of the node's pressure", &error);
    let bell = updates.bell().and_then(register).map_err(failed)?;
    let clock = Clock::start();
    loop {
        match updates.next() {
            Next::Value(PendingUpdate { update, kept_as }) => {
                if let Some(persisted) = &mut persisted {
                    persisted.wait_for(kept_as).await;
                }
                wanted.send_replace(Some(Arc::new(as_shown(update, &clock))));
            }
            Next::Ended => return Ok(()),
            Next::Empty => drop(take_count(&bell).await.map_err(failed)?),
        }
    }
}

/// Says once what the node's object says from before the start.
async fn seed(mut nodes: watch::Receiver<Arc<StoreView<Node>>>, commands: WeakSender<Command>) {
    let clock = Clock::start();
    let Ok(view) =
        nodes.wait_for(|view| view.synced && !view.objects.is_empty()).await.map(|view| Arc::clone(&view))
    else {
        return;
    };
    let Some(node) = view.objects.first() else { return };
    let seed = InitialConditions::of(node, clock.shown(clock.now().wall)).map(|shown| clock.steady(shown));
    let Some(commands) = commands.upgrade() else { return };
    // Without a control loop there is nobody to tell.
    drop(commands.send(Command::Seed(Box::new(seed))).await);
}

/// Counts what comes of the writes; each result from 0 on.
fn observer(metrics: Arc<Metrics>) -> PatchObserver {
    for kind in PATCH_KINDS {
        metrics.node_status_out_of_sync.get_or_create(&KindLabels { kind });
        for result in PATCH_RESULTS {
            metrics.node_status_patches.get_or_create(&PatchLabels { kind, result });
        }
    }
    Arc::new(move |kind, event| match event {
        PatchEvent::Result(result) => {
            metrics.node_status_patches.get_or_create(&PatchLabels { kind, result }).inc();
        }
        PatchEvent::OutOfSync(is_due) => {
            metrics.node_status_out_of_sync.get_or_create(&KindLabels { kind }).set(i64::from(is_due));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_are_counted_from_0() {
        let metrics = Arc::new(Metrics::new("0", "0"));
        let observer = observer(Arc::clone(&metrics));
        let all = PATCH_KINDS.len() * PATCH_RESULTS.len();
        assert_eq!(metrics.node_status_patches.len(), all);
        for result in ["accepted", "conflict", "terminated"] {
            observer("taints", PatchEvent::Result(result));
        }
        assert_eq!(metrics.node_status_patches.len(), all, "each result has its series at the start");
    }
}
