//! The line about a pod that is frozen instead of evicted.

use std::fmt;

use serde::Serialize;

use super::PodRef;
use eviction_core::pod::PodName;

/// What [`PodFreeze::state`] may be.
pub(crate) const FREEZE_STATES: [&str; 4] = ["frozen", "thawed", "dry_run", "failed"];

/// See [`Event::PodFreeze`](super::Event::PodFreeze).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodFreeze {
    #[serde(flatten)]
    pub pod: PodRef,
    pub pod_uid: String,
    pub state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl PodFreeze {
    pub(crate) fn new(pod: &PodName, state: &'static str, reason: Option<String>) -> Self {
        Self { pod: PodRef::new(&pod.namespace, &pod.name), pod_uid: pod.uid.to_string(), state, reason }
    }
}

impl fmt::Display for PodFreeze {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pod, pod_uid: _, state, reason } = self;
        match *state {
            "frozen" => write!(f, "pod {pod} frozen: the API server is unavailable for its eviction")?,
            "thawed" => write!(f, "pod {pod} thawed")?,
            "dry_run" => {
                write!(f, "pod {pod} would be frozen: the API server is unavailable for its eviction")?
            }
            _ => write!(f, "pod {pod} cannot be frozen")?,
        }
        match reason {
            Some(reason) if *state == "thawed" => write!(f, ": {}", reason.replace('_', " ")),
            Some(reason) => write!(f, ": {reason}"),
            None => Ok(()),
        }
    }
}
