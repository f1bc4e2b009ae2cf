//! Takes occurrences from whoever knows of them, and tells the API server.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use eviction_core::time::nanos;

use super::correlator::{Correlator, Next, Writing};
use super::occurrence::{Fate, Occurrence, Reason};
use super::response::{Told, judge};
use crate::backoff::Backoff;
use crate::client::Client;
use crate::clock::now_ns;

/// How long a server that does not answer is left alone, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Where occurrences are noted. Cloning shares all.
#[derive(Clone, Debug)]
pub struct Recorder {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    correlator: Mutex<Correlator>,
    /// Something was noted.
    bell: Notify,
}

impl Shared {
    fn correlator(&self) -> MutexGuard<'_, Correlator> {
        self.correlator.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorder {
    /// One that tells of that node and its pods. `tally` hears of each occurrence what became of it.
    pub fn new(node: &str, tally: impl Fn(Reason, Fate, u64) + Send + 'static) -> Self {
        let correlator = Mutex::new(Correlator::new(node, now_ns(), Box::new(tally)));
        Self { shared: Arc::new(Shared { correlator, bell: Notify::new() }) }
    }

    /// Takes note of something. Waits for nothing but others who do the same.
    pub fn note(&self, occurrence: Occurrence) {
        self.shared.correlator().note(occurrence, now_ns());
        self.shared.bell.notify_one();
    }

    /// How many occurrences wait to be told.
    pub fn waiting(&self) -> u64 {
        self.shared.correlator().waiting()
    }

    /// Tells what is noted, one request at a time, for ever. Needs a tokio runtime.
    pub async fn run(self, client: Client) {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        let mut is_forbidden = false;
        loop {
            let next = self.shared.correlator().next(now_ns());
            match next {
                Next::Idle => self.shared.bell.notified().await,
                Next::Wait(until_ns) => {
                    let pause = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
                    tokio::select! {
                        () = sleep(pause) => {}
                        () = self.shared.bell.notified() => {}
                    }
                }
                Next::Write(writing) => {
                    let told = judge(writing.makes, &client.request(writing.request.clone()).await);
                    let pause = match &told {
                        Told::Later { .. } => backoff.pause(),
                        _ => {
                            backoff.reset();
                            Duration::ZERO
                        }
                    };
                    say(&writing, &told, &mut is_forbidden);
                    self.shared.correlator().told(&writing, &told, nanos(pause), now_ns());
                }
            }
        }
    }
}

/// Says what people have to do something about; that a right is missing, once.
fn say(writing: &Writing, told: &Told, is_forbidden: &mut bool) {
    match told {
        Told::Forbidden { why, .. } if !*is_forbidden => {
            *is_forbidden = true;
            tracing::error!(
                verb = if writing.makes { "create" } else { "patch" },
                resource = "events.events.k8s.io",
                why,
                help = "add the rule to the ClusterRole of the agent's service account",
                "a permission is missing"
            );
        }
        Told::Refused { why } => {
            tracing::warn!(reason = writing.reason().name(), why, "the API server does not take an event");
        }
        Told::Done => *is_forbidden = false,
        Told::Forbidden { .. } | Told::Missing | Told::Later { .. } => {}
    }
}
