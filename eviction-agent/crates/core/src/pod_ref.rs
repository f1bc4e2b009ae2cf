//! The namespace and the name of a pod, as event lines have them.

use std::fmt;

use serde::Serialize;

use super::pod::{Pod, PodName};

/// A pod by its namespace and name, shown as `namespace/name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PodRef {
    /// `metadata.namespace`.
    pub namespace: Box<str>,
    /// `metadata.name`.
    #[serde(rename = "pod")]
    pub name: Box<str>,
}

impl PodRef {
    /// The pod of that name in that namespace.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The same pod with its UID.
    pub fn with_uid(&self, uid: &str) -> PodName {
        PodName { uid: uid.into(), namespace: self.namespace.clone(), name: self.name.clone() }
    }
}

impl From<&Pod> for PodRef {
    fn from(pod: &Pod) -> Self {
        Self::new(&pod.namespace, &pod.name)
    }
}

impl From<&PodName> for PodRef {
    fn from(pod: &PodName) -> Self {
        Self::new(&pod.namespace, &pod.name)
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Writes the container and its pod if they are known, else the cgroup.
///
/// # Errors
/// Those of `f`.
pub fn write_owner(
    f: &mut fmt::Formatter<'_>,
    container: Option<&str>,
    pod: Option<&PodRef>,
    cgroup: Option<&str>,
) -> fmt::Result {
    match (container, pod) {
        (Some(container), Some(pod)) => write!(f, "container {container} of {pod}"),
        (None, Some(pod)) => write!(f, "{pod}"),
        (_, None) => f.write_str(cgroup.unwrap_or("an unknown cgroup")),
    }
}
