//! Pods as the API writes them, cut down to what decisions depend on.
//!
//! Reading is lenient where Kubernetes is: unknown fields are ignored, null is the same as
//! absent, and quantities may be numbers. What has the wrong type, does not fit its type or is
//! no quantity is an error that names the pod and the field.
#![forbid(unsafe_code)]

mod decode;
mod list;
mod quantity;
#[cfg(test)]
mod tests;

pub use decode::Pod;
pub use list::{PodError, PodErrors, parse_pod, parse_pod_list};
