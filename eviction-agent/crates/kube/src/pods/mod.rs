//! Pods as the API writes them, cut down to what decisions depend on.
//!
//! Reading is lenient where Kubernetes is: unknown fields are ignored, null is the same as
//! absent, and quantities may be numbers. What has the wrong type, does not fit its type or is
//! no quantity is an error that names the pod and the field.

mod decode;

use std::fmt;

use eviction_core::pod as core;
use serde::{Deserializer, Serialize};
use serde_json::Value;

pub use decode::Pod;

/// What is wrong with a pod, or with the list as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodError {
    /// `namespace/name`, or the place in the list; empty for the list as a whole.
    pub pod: String,
    /// The field, such as `spec.containers[0].resources.requests.memory`.
    pub path: String,
    /// What is wrong with it.
    pub cause: String,
}

impl fmt::Display for PodError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.pod.is_empty() {
            write!(f, "pod {}: ", self.pod)?;
        }
        if !self.path.is_empty() && self.path != "." {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.cause)
    }
}

impl std::error::Error for PodError {}

/// Reads a pod from JSON. It must have a name and a uid.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn parse_pod(json: &[u8]) -> Result<core::Pod, PodError> {
    pod(&mut serde_json::Deserializer::from_slice(json)).map_err(|mut error| {
        let value = serde_json::from_slice::<Value>(json).ok();
        error.pod = value.as_ref().and_then(name_of).unwrap_or_default();
        error
    })
}

/// Reads a pod from what was JSON or YAML. It must have a name and a uid.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn pod_of(value: &Value) -> Result<core::Pod, PodError> {
    pod(value).map_err(|error| PodError { pod: name_of(value).unwrap_or_default(), ..error })
}

/// Decodes one pod and holds it to what every pod of a node has.
fn pod<'de, D: Deserializer<'de>>(deserializer: D) -> Result<core::Pod, PodError> {
    let wrong = |path: &str, cause: String| PodError { pod: String::new(), path: path.to_owned(), cause };
    let pod: Pod = serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let cause = error.inner().to_string();
        // The line and the column are those of the single pod.
        let cause = cause.rsplit_once(" at line ").map_or(cause.as_str(), |(cause, _)| cause);
        wrong(&error.path().to_string(), cause.to_owned())
    })?;
    let pod = core::Pod::from(pod);
    for (path, text) in [("metadata.name", &pod.name), ("metadata.uid", &pod.uid)] {
        if text.is_empty() {
            return Err(wrong(path, "is missing".to_owned()));
        }
    }
    Ok(pod)
}

/// `namespace/name`, if there is a name.
fn name_of(pod: &Value) -> Option<String> {
    let metadata = pod.get("metadata")?;
    let name = metadata.get("name")?.as_str().filter(|name| !name.is_empty())?;
    let namespace = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default();
    Some(format!("{namespace}/{name}"))
}
