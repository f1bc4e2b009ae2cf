//! The namespace and the name of a pod.

use std::fmt;

use serde::Serialize;

use eviction_core::pod::PodName;

/// A pod by its namespace and name, shown as `namespace/name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PodRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
}

impl PodRef {
    /// The pod of that name in that namespace.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), pod: name.to_owned() }
    }

    /// `None` if the name is not known.
    pub(crate) fn if_known(namespace: &str, name: &str) -> Option<Self> {
        (!name.is_empty()).then(|| Self::new(namespace, name))
    }

    /// The same pod with its UID.
    pub(crate) fn with_uid(&self, uid: &str) -> PodName {
        PodName { uid: uid.into(), namespace: self.namespace.as_str().into(), name: self.pod.as_str().into() }
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.pod)
    }
}
