//! What the connection and the watches have been through, for metrics.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::api::{Client, Counts};
use crate::metrics::{Metrics, OutcomeLabels, ResourceLabels, WatchLabels};
use crate::source::api::{Figures, Happened};

/// Carries figures over into metrics when they are asked for.
#[derive(Debug)]
pub(crate) struct Exports {
    metrics: Arc<Metrics>,
    client: Client,
    watches: [(&'static str, Arc<Figures>); 2],
    born: Instant,
    /// What was carried over.
    before: Mutex<Before>,
}

#[derive(Debug, Default)]
struct Before {
    counts: Counts,
    happened: [[u64; Happened::ALL.len()]; 2],
}

impl Exports {
    pub(super) fn new(metrics: Arc<Metrics>, client: Client, pods: Arc<Figures>, node: Arc<Figures>) -> Self {
        let watches = [("pods", pods), ("nodes", node)];
        Self { metrics, client, watches, born: Instant::now(), before: Mutex::default() }
    }

    /// Makes the metrics say what is so now.
    pub(crate) fn refresh(&self) {
        let metrics = &self.metrics;
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.client.counts();
        let Counts { connections, answered, unsent, unanswered, last_answer } = now.clone();
        metrics.api_connections.inc_by(connections.saturating_sub(before.counts.connections));
        for (outcome, now, before) in [
            ("answered", answered, before.counts.answered),
            ("unsent", unsent, before.counts.unsent),
            ("unanswered", unanswered, before.counts.unanswered),
        ] {
            let labels = OutcomeLabels { outcome };
            metrics.api_requests.get_or_create(&labels).inc_by(now.saturating_sub(before));
        }
        if let Some(age) = last_answer {
            metrics.api_answer_age.set(age.as_secs_f64());
        }
        before.counts = now;
        for ((resource, figures), before) in self.watches.iter().zip(&mut before.happened) {
            let labels = ResourceLabels { resource };
            metrics
                .watched_objects
                .get_or_create(&labels)
                .set(i64::try_from(figures.objects()).unwrap_or(i64::MAX));
            // Where nothing was heard yet, since somebody listens.
            let age = figures.age_seconds().unwrap_or_else(|| self.born.elapsed().as_secs_f64());
            metrics.watch_age.get_or_create(&labels).set(age);
            for (happened, before) in Happened::ALL.into_iter().zip(before) {
                let now = figures.count(happened);
                let labels = WatchLabels { resource, outcome: happened.name() };
                metrics.watch_events.get_or_create(&labels).inc_by(now.saturating_sub(*before));
                *before = now;
            }
        }
    }
}
