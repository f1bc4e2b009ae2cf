//! What every source says about itself.
#![forbid(unsafe_code)]

use serde::Serialize;

/// The means by which a source gets its figures or events on this machine, and why that one.
/// It is logged once, exported as a metric and shown by `check`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BackendInfo {
    /// What is observed, for instance `usage`.
    pub source: &'static str,
    /// The means in use, for instance `timerfd`.
    pub rung: &'static str,
    /// Why this one and no better one.
    pub reason: String,
    /// Whether no growth escapes it.
    pub sees_every_charge: bool,
    /// How many bytes a group can grow before this source sees it; 0 where that says nothing.
    pub grain_bytes: u64,
}

impl BackendInfo {
    /// One that says nothing of how charges are seen.
    pub fn plain(source: &'static str, rung: &'static str, reason: impl Into<String>) -> Self {
        Self { source, rung, reason: reason.into(), sees_every_charge: false, grain_bytes: 0 }
    }
}
