//! When something happened to a pod.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// A pod to which something happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodEventTime {
    /// Which.
    pub uid: Box<str>,
    /// When.
    pub at: Timestamp,
}
