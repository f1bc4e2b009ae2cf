//! Under what an eviction counts against rate limits.

use serde::{Deserialize, Serialize};

use crate::pod::Pod;
use crate::policy::preferences::RateLimitScope;

/// Under what the eviction of a pod is entered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RateLimitKey {
    /// The pod's own uid.
    pub uid: Box<str>,
    /// Its namespace.
    pub namespace: Box<str>,
    /// The uid of its owner, or the next best.
    pub owner: Option<Box<str>>,
}

impl RateLimitKey {
    pub(crate) fn of(pod: &Pod) -> Self {
        Self { uid: pod.uid.clone(), namespace: pod.namespace.clone(), owner: owner(pod) }
    }

    pub(crate) fn is_with(&self, other: &Self, scope: RateLimitScope) -> bool {
        match scope {
            RateLimitScope::Namespace => self.namespace == other.namespace,
            RateLimitScope::Owner => self.owner.is_some() && self.owner == other.owner,
        }
    }
}

/// A pod from a file may have an owner without a uid.
fn owner(pod: &Pod) -> Option<Box<str>> {
    let owner = pod.owner.as_ref()?;
    if owner.uid.is_empty() {
        return Some(format!("{}/{}/{}", pod.namespace, owner.kind, owner.name).into());
    }
    Some(owner.uid.clone())
}
