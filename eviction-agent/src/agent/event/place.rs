//! Where something happened, as several lines tell it.

use std::fmt;

use serde::Serialize;

/// A cgroup, and whose it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct Place {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cgroup, container, pod, uid: _ } = self;
        write_place(f, container.as_deref(), pod.as_deref(), cgroup.as_deref())
    }
}

/// The most that is known of a place.
pub(super) fn write_place(
    f: &mut fmt::Formatter<'_>,
    container: Option<&str>,
    pod: Option<&str>,
    cgroup: Option<&str>,
) -> fmt::Result {
    match (container, pod) {
        (Some(container), Some(pod)) => write!(f, "container {container} of {pod}"),
        (None, Some(pod)) => f.write_str(pod),
        (_, None) => f.write_str(cgroup.unwrap_or("an unknown cgroup")),
    }
}

#[cfg(test)]
mod tests {
    use super::Place;

    #[test]
    fn the_most_that_is_known_is_told() {
        let known = |text: &str| Some(text.to_owned());
        let mut place = Place { cgroup: known("/kubepods"), container: known("app"), ..Place::default() };
        assert_eq!(place.to_string(), "/kubepods", "a container of nobody says nothing");
        place.pod = known("shop/web");
        assert_eq!(place.to_string(), "container app of shop/web");
        place.container = None;
        assert_eq!(place.to_string(), "shop/web");
        assert_eq!(Place::default().to_string(), "an unknown cgroup");
    }
}
