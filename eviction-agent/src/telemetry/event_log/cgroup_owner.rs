//! The pod and the container of a cgroup: fields that several lines have.

use std::fmt;

use serde::Serialize;

use super::PodRef;
use eviction_core::pod_ref::write_owner;

/// A cgroup with its container and pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one owner that describes the fields")]
pub struct CgroupOwner {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Box<str>>,
    #[serde(flatten)]
    pub pod: Option<PodRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<Box<str>>,
}

impl fmt::Display for CgroupOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cgroup, container, pod, pod_uid: _ } = self;
        write_owner(f, container.as_deref(), pod.as_ref(), cgroup.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::{CgroupOwner, PodRef};

    #[test]
    fn an_owner_is_shown_by_what_is_known_of_it() {
        let known = |text: &str| Some(text.into());
        let mut owner =
            CgroupOwner { cgroup: known("/kubepods"), container: known("app"), ..CgroupOwner::default() };
        assert_eq!(owner.to_string(), "/kubepods", "a container without a pod is not named");
        owner.pod = Some(PodRef::new("shop", "web"));
        assert_eq!(owner.to_string(), "container app of shop/web");
        owner.container = None;
        assert_eq!(owner.to_string(), "shop/web");
        assert_eq!(CgroupOwner::default().to_string(), "an unknown cgroup");
    }
}
