//! What the agent says of its own state to those who probe it.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::daemon::cluster::Exports;
use crate::daemon::watchdog::Heartbeat;
use crate::telemetry::http::Health;
use eviction_node::clock::mono_ns;

/// What `/healthz` and `/readyz` answer from.
pub(super) struct State {
    pub(super) pulse: Heartbeat,
    pub(super) pods_known: AtomicBool,
    pub(super) exports: Option<Exports>,
}

impl Health for State {
    fn healthy(&self) -> Result<(), String> {
        match self.pulse.missing_ns(mono_ns()) {
            None => Ok(()),
            Some(ns) => {
                let seconds = ns / 1_000_000_000;
                Err(format!("the reaction loop has not turned for {seconds} s after it was due"))
            }
        }
    }

    fn ready(&self) -> Result<(), String> {
        self.healthy()?;
        match self.pods_known.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err("pods are not known".to_owned()),
        }
    }

    fn refresh(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            if let Some(exports) = &self.exports {
                exports.refresh();
            }
        })
    }
}
