//! What the engine is told between two passes of a scenario.

use serde::Deserialize;

/// What came of an eviction.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evicted {
    /// Whose.
    pub uid: Box<str>,
    /// Why the pod is not gone; empty if it is.
    #[serde(default)]
    pub error: Box<str>,
}
