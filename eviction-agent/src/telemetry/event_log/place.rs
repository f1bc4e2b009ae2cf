//! Where something happened: fields that several lines have.

use std::fmt;

use serde::Serialize;

use super::PodRef;

/// A cgroup with its container and pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct CgroupOwner {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    #[serde(flatten)]
    pub pod: Option<PodRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
}

impl fmt::Display for CgroupOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cgroup, container, pod, pod_uid: _ } = self;
        write_place(f, container.as_deref(), pod.as_ref(), cgroup.as_deref())
    }
}

/// Writes container and pod if they are known, else the cgroup.
pub(super) fn write_place(
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

#[cfg(test)]
mod tests {
    use super::{CgroupOwner, PodRef};

    #[test]
    fn a_place_is_shown_by_what_is_known_of_it() {
        let known = |text: &str| Some(text.to_owned());
        let mut place =
            CgroupOwner { cgroup: known("/kubepods"), container: known("app"), ..CgroupOwner::default() };
        assert_eq!(place.to_string(), "/kubepods", "a container without a pod is not named");
        place.pod = Some(PodRef::new("shop", "web"));
        assert_eq!(place.to_string(), "container app of shop/web");
        place.container = None;
        assert_eq!(place.to_string(), "shop/web");
        assert_eq!(CgroupOwner::default().to_string(), "an unknown cgroup");
    }
}
