//! Event lines about pods that are stopped without an eviction: killed by a BPF program, or frozen.

use std::fmt;

use serde::Serialize;

use super::{PodRef, text};
use eviction_core::pod::PodName;
use eviction_core::signal::Signal;
use eviction_core::units::display_bytes;

/// See [`super::Event::KernelKill`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelKill {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision_id: Option<String>,
    #[serde(flatten)]
    pub pod: PodRef,
    pub pod_uid: String,
    pub pid: u32,
    pub comm: String,
    pub signal: Signal,
    pub threshold_bytes: u64,
    pub available: u64,
    pub growth: u64,
    pub usage: u64,
    pub armed_mono_ns: u64,
    pub killed_mono_ns: u64,
    pub received_mono_ns: u64,
}

impl fmt::Display for KernelKill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, pod, pid, comm, signal, threshold_bytes, available, growth, .. } = self;
        let Self { armed_mono_ns, killed_mono_ns, received_mono_ns, .. } = self;
        let milliseconds = |from: u64, to: u64| text::milliseconds(to.saturating_sub(from) / 1_000);
        write!(
            f,
            "kernel kill: {comm} (pid {pid}) of {pod} took {signal} below {} with {} more than at the last sample; kill order armed {} before with {} available, reported {} after",
            display_bytes((*threshold_bytes).into()),
            display_bytes((*growth).into()),
            milliseconds(*armed_mono_ns, *killed_mono_ns),
            display_bytes((*available).into()),
            milliseconds(*killed_mono_ns, *received_mono_ns)
        )?;
        match id {
            Some(id) => write!(f, "; the rest of the pod is evicted by decision {id}"),
            None => f.write_str("; the pod would no longer be evicted, so the rest of it stays"),
        }
    }
}

/// The values of [`PodFreeze::state`].
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
        Self { pod: PodRef::from(pod), pod_uid: pod.uid.to_string(), state, reason }
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
