//! Exports the counts of the crate `eviction-kube` as metrics.

use std::sync::Arc;

use crate::telemetry::metrics::{Label, Metrics, unix_now};
use eviction_kube::events::{EventResult, Reason};
use eviction_kube::{MetricEvent, Observer, PATCH_KINDS, PATCH_RESULTS, WatchEvent};

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
pub(super) fn begin_events(metrics: &Metrics) {
    for reason in Reason::ALL.map(Reason::name) {
        for result in EventResult::ALL.map(EventResult::name) {
            metrics.kube_events.with([reason, result]);
        }
    }
}

/// Begins the series of patches of the node at 0.
pub(super) fn begin_patches(metrics: &Metrics) {
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
