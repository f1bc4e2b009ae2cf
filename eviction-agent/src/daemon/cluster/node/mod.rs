//! The node's own object is kept as the reaction says that it ought to be: conditions and taints.
//!
//! What is kept is the state that it ought to be in, not a queue of changes: after an outage it is
//! made so at once, whatever was the case meanwhile. Each of the two kinds has a task of its own,
//! so that a condition that hangs holds up no taint.

mod clean;
mod conditions;
mod known;
mod news;
mod pace;
mod taints;

use std::sync::Arc;

use tokio::sync::mpsc::WeakSender;
use tokio::sync::watch;

use super::super::clock::Clock;
use super::super::control_loop::Command;
use super::super::error::Failure;
use super::super::spsc::{Next, Receiver};
use super::super::state::DurableRevision;
use crate::telemetry::metrics::{KindLabels, Metrics, PatchLabels};
pub(crate) use clean::own_marks;
pub use clean::{Clean, CleanOptions, Cleaned, clean_nodes};
use conditions::Conditions;
use eviction_core::api_result::ApiResult;
use eviction_core::node::Node;
use eviction_core::pressure::InitialConditions;
use eviction_kube::Client;
use eviction_kube::NodePatcher;
use eviction_kube::StoreView;
use eviction_node::async_fd::{register, take_count};
use known::{Known, is_before};
pub(crate) use news::{NodeNews, NodeTeller};
use taints::Taints;

/// What the node's object is kept with.
#[derive(Debug)]
pub(crate) struct Keeper {
    /// What the reaction says.
    pub(crate) news: Receiver<NodeNews>,
    /// The node's object as it is watched.
    pub(crate) seen: watch::Receiver<Arc<StoreView<Node>>>,
    /// Where the reaction is told what the object says from before the start.
    pub(crate) commands: WeakSender<Command>,
    pub(crate) client: Client,
    /// Where what is said is kept before it is written to the node.
    pub(crate) kept: Option<DurableRevision>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Keeper {
    /// Starts to keep it; hands back the number of the news whose taints are written, or have not to
    /// be waited for. Needs a tokio runtime.
    pub(crate) fn start(self) -> watch::Receiver<u64> {
        let Self { news, seen, commands, client, kept, metrics } = self;
        let hand = Arc::new(NodePatcher::new(client, false));
        let known = Known::new();
        let (tell, heard) = watch::channel(None);
        let (settled, written) = watch::channel(0);
        let taints = Taints::new(
            Arc::clone(&hand),
            heard.clone(),
            known.clone(),
            settled,
            Count::new(&metrics, "taints"),
        );
        let conditions =
            Conditions::new(hand, heard, known.clone(), written.clone(), Count::new(&metrics, "conditions"));
        tokio::spawn(taints.keep());
        tokio::spawn(conditions.keep());
        tokio::spawn(follow(seen, known, commands));
        tokio::spawn(async move {
            if let Err(failure) = carry(news, tell, kept).await {
                let why = failure.into_causes().join("; ");
                tracing::error!(why, "the node's conditions and taints are not kept any more");
            }
        });
        written
    }
}

/// Hands news on when they are kept, with times as the system's clock shows them.
async fn carry(
    mut news: Receiver<NodeNews>,
    tell: watch::Sender<Option<Arc<NodeNews>>>,
    mut kept: Option<DurableRevision>,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::because("watch the lane of the node's pressure", &error);
    let bell = news.bell().and_then(register).map_err(failed)?;
    let clock = Clock::start();
    loop {
        match news.next() {
            Next::Value(news) => {
                if let Some(kept) = &mut kept {
                    kept.wait_for(news.kept_as).await;
                }
                tell.send_replace(Some(Arc::new(news.shown_by(&clock))));
            }
            Next::Ended => return Ok(()),
            Next::Empty => drop(take_count(&bell).await.map_err(failed)?),
        }
    }
}

/// Follows the node's object, and says once what it says from before the start.
async fn follow(
    mut seen: watch::Receiver<Arc<StoreView<Node>>>,
    known: Known,
    commands: WeakSender<Command>,
) {
    let clock = Clock::start();
    let mut is_seeded = false;
    let mut before: Option<Arc<Node>> = None;
    while seen.changed().await.is_ok() {
        let now = Arc::clone(&seen.borrow_and_update());
        if !now.synced {
            continue;
        }
        let Some(node) = now.objects.first() else {
            known.forget();
            continue;
        };
        match before.replace(Arc::clone(node)) {
            // A watch goes back only where the server's store was restored: no answer is of that time.
            Some(before) if is_before(node, &before) => known.replace(Arc::clone(node)),
            _ => known.offer(Arc::clone(node)),
        }
        if is_seeded {
            continue;
        }
        let seed =
            InitialConditions::of(node, clock.shown(clock.now().wall)).map(|shown| clock.steady(shown));
        let Some(commands) = commands.upgrade() else { return };
        if commands.send(Command::Seed(Box::new(seed))).await.is_err() {
            return;
        }
        is_seeded = true;
    }
}

/// Results of a patch: [`ApiResult::name`] without those of evictions alone, and a conflict.
const RESULTS: [&str; 9] = [
    "accepted",
    "conflict",
    "forbidden",
    "throttled",
    "terminated",
    "rejected",
    "unauthorized",
    "unknown",
    "not_sent",
];

/// RequestCounts what came of writes of one kind.
#[derive(Debug)]
struct Count {
    metrics: Arc<Metrics>,
    mark: &'static str,
}

impl Count {
    fn new(metrics: &Arc<Metrics>, mark: &'static str) -> Self {
        let count = Self { metrics: Arc::clone(metrics), mark };
        count.is_due(false);
        for result in RESULTS {
            count.metrics.node_status_patches.get_or_create(&PatchLabels { kind: mark, result });
        }
        count
    }

    fn answer(&self, answered: &ApiResult, is_stale: bool) {
        let result = if is_stale { "conflict" } else { answered.name() };
        let labels = PatchLabels { kind: self.mark, result };
        self.metrics.node_status_patches.get_or_create(&labels).inc();
    }

    /// Whether the node says something else than it should.
    fn is_due(&self, is_due: bool) {
        let labels = KindLabels { kind: self.mark };
        self.metrics.node_status_out_of_sync.get_or_create(&labels).set(i64::from(is_due));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_are_counted_from_0() {
        let metrics = Arc::new(Metrics::new("0", "0"));
        let count = Count::new(&metrics, "taints");
        assert_eq!(metrics.node_status_patches.len(), RESULTS.len());
        for (answered, is_stale) in
            [(ApiResult::Accepted, false), (ApiResult::Accepted, true), (ApiResult::Gone, false)]
        {
            count.answer(&answered, is_stale);
        }
        assert_eq!(
            metrics.node_status_patches.len(),
            RESULTS.len(),
            "each result has its series at the start"
        );
    }
}
