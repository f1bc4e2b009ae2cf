//! The values of the crate kube, as metrics.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use crate::telemetry::metrics::{
    EventLabels, KindLabels, Metrics, NoLabels, PatchLabels, RequestLabels, ResourceLabels, WatchLabels,
};
use eviction_kube::events::{EventResult, Reason};
use eviction_kube::{
    Client, PATCH_KINDS, PATCH_RESULTS, PatchEvent, PatchObserver, RequestCounts, WatchEvent, WatchMetrics,
};

/// Carries them over when they are asked for.
#[derive(Debug)]
pub(crate) struct Exports {
    metrics: Arc<Metrics>,
    client: Client,
    /// None where pods come from a file.
    watches: Option<[(&'static str, Arc<WatchMetrics>); 2]>,
    /// What was carried over.
    before: Mutex<Before>,
}

#[derive(Debug, Default)]
struct Before {
    counts: RequestCounts,
    happened: [[u64; WatchEvent::ALL.len()]; 2],
}

impl Exports {
    pub(crate) fn new(
        metrics: Arc<Metrics>,
        client: Client,
        watches: Option<[Arc<WatchMetrics>; 2]>,
    ) -> Self {
        let watches = watches.map(|[pods, nodes]| [("pods", pods), ("nodes", nodes)]);
        Self { metrics, client, watches, before: Mutex::default() }
    }

    /// Makes the metrics say what is so now.
    pub(crate) fn refresh(&self) {
        let metrics = &self.metrics;
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.client.counts();
        for (key, count) in &now.requests {
            let (operation, code) = key;
            let labels = RequestLabels { operation, code: code.to_string() };
            let before = before.counts.requests.get(key).copied().unwrap_or(0);
            metrics.kube_api_requests.get_or_create(&labels).inc_by(count.saturating_sub(before));
        }
        let last = now.last_response.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        metrics.kube_api_last_response.get_or_create(&NoLabels {}).set(last.map(|since| since.as_secs_f64()));
        before.counts = now;
        for ((resource, figures), before) in self.watches.iter().flatten().zip(&mut before.happened) {
            let labels = ResourceLabels { resource };
            let objects = metrics.kube_watch_objects.get_or_create(&labels);
            objects.set(i64::try_from(figures.objects()).unwrap_or(i64::MAX));
            if let Some(last) = figures.last_event() {
                metrics.kube_watch_last_event.get_or_create(&labels).set(last.as_secs_f64());
            }
            for (happened, before) in WatchEvent::ALL.into_iter().zip(before) {
                let now = figures.count(happened);
                let labels = WatchLabels { resource, event: happened.name() };
                metrics.kube_watch_events.get_or_create(&labels).inc_by(now.saturating_sub(*before));
                *before = now;
            }
        }
    }
}

/// Counts what becomes of each occurrence.
pub(super) fn event_counter(metrics: Arc<Metrics>) -> impl Fn(Reason, EventResult, u64) + Send + 'static {
    for (reason, result) in
        Reason::ALL.into_iter().flat_map(|reason| EventResult::ALL.map(|result| (reason, result)))
    {
        let labels = EventLabels { reason: reason.name(), result: result.name() };
        metrics.kube_events.get_or_create(&labels);
    }
    move |reason, result, times| {
        let labels = EventLabels { reason: reason.name(), result: result.name() };
        metrics.kube_events.get_or_create(&labels).inc_by(times);
    }
}

/// Counts patches of the node; each result from 0 on.
pub(super) fn patch_observer(metrics: Arc<Metrics>) -> PatchObserver {
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
        let observer = patch_observer(Arc::clone(&metrics));
        let all = PATCH_KINDS.len() * PATCH_RESULTS.len();
        assert_eq!(metrics.node_status_patches.len(), all);
        for result in ["accepted", "conflict", "terminated"] {
            observer("taints", PatchEvent::Result(result));
        }
        assert_eq!(metrics.node_status_patches.len(), all, "each result has its series at the start");
    }

    #[test]
    fn each_reason_and_result_is_counted_from_0() {
        let metrics = Arc::new(Metrics::new("0", "0"));
        let count = event_counter(Arc::clone(&metrics));
        assert_eq!(metrics.kube_events.len(), Reason::ALL.len() * EventResult::ALL.len());
        count(Reason::Evicted, EventResult::Created, 2);
        let of = |result| metrics.kube_events.get_or_create(&EventLabels { reason: "Evicted", result }).get();
        assert_eq!((of("created"), of("refused")), (2, 0));
    }
}
