//! Carries the values of connection and watches over into metrics.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use crate::telemetry::metrics::{Metrics, NoLabels, RequestLabels, ResourceLabels, WatchLabels};
use eviction_kube::{Client, RequestCounts};
use eviction_kube::{WatchEvent, WatchMetrics};

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
