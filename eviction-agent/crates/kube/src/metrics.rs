//! Events for metrics: requests, watches, Events and patches of the node.

use std::fmt;
use std::sync::Arc;

use http::Method;

use crate::error::RequestError;

/// An event that is counted or exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricEvent {
    /// A request ended, including requests for watches and to keep a connection alive.
    Request {
        /// The operation, named after the API verb and resource.
        operation: &'static str,
        /// The status code of the response, or why there is none: `unsent`, or `unanswered` if the request may have
        /// been carried out.
        code: Result<u16, &'static str>,
    },
    /// An event of the watch of this resource.
    Watch(&'static str, WatchEvent),
    /// A watch of this resource started, or a part of a list, an event or a bookmark arrived.
    Received(&'static str),
    /// The number of known objects of this resource.
    Objects(&'static str, usize),
    /// A number of occurrences with this reason had this result
    /// ([`EventResult::name`](crate::events::EventResult::name)).
    Event(&'static str, &'static str, u64),
    /// A patch of this kind had this result: one of [`PATCH_RESULTS`](crate::PATCH_RESULTS).
    Patch(&'static str, &'static str),
    /// Whether the node's object differs from the desired state in the part that patches of this kind change.
    OutOfSync(&'static str, bool),
}

/// Receives events for metrics. The default observer drops them.
#[derive(Clone, Default)]
pub struct Observer(Option<Arc<dyn Fn(MetricEvent) + Send + Sync>>);

impl Observer {
    /// Creates an observer that calls `observe` with each event. `observe` must not block.
    pub fn new(observe: impl Fn(MetricEvent) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(observe)))
    }

    /// Passes an event to the callback.
    pub fn observe(&self, event: MetricEvent) {
        if let Some(observe) = &self.0 {
            observe(event);
        }
    }

    /// Counts the end of a request with its status, or with the reason for a missing response.
    pub(crate) fn request(&self, operation: &'static str, status: Result<u16, &RequestError>) {
        let code = status.map_err(|error| match error.may_have_been_carried_out() {
            true => "unanswered",
            false => "unsent",
        });
        self.observe(MetricEvent::Request { operation, code });
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

/// Returns the operation of a request, named after the API verb and resource.
pub(crate) fn operation(method: &Method, path: &str) -> &'static str {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let path = path
        .strip_prefix("/api/v1/")
        .or_else(|| path.strip_prefix("/apis/events.k8s.io/v1/"))
        .unwrap_or(path);
    let mut segments: Vec<&str> = path.split('/').collect();
    if segments.len() > 2 && segments[0] == "namespaces" {
        segments.drain(..2);
    }
    let is_watch = query.contains("watch=");
    match (method, segments.as_slice()) {
        (&Method::POST, ["pods", _, "eviction"]) => "evict_pod",
        (&Method::DELETE, ["pods", _]) => "delete_pod",
        (&Method::PATCH, ["pods", _, "status"]) => "patch_pod_status",
        (&Method::GET, ["pods", _]) => "get_pod",
        (&Method::GET, ["pods"]) if is_watch => "watch_pods",
        (&Method::GET, ["pods"]) => "list_pods",
        (&Method::PATCH, ["nodes", _, "status"]) => "patch_node_status",
        (&Method::PATCH, ["nodes", _]) => "patch_node",
        (&Method::GET, ["nodes", _]) => "get_node",
        (&Method::GET, ["nodes"]) if is_watch => "watch_nodes",
        (&Method::GET, ["nodes"]) => "list_nodes",
        (&Method::POST, ["events"]) => "create_event",
        (&Method::PATCH, ["events", _]) => "patch_event",
        (&Method::GET, ["", "version"]) => "get_version",
        _ => "other",
    }
}

eviction_core::named_enum! {
    /// An event of a watch.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum WatchEvent {
        /// An object was added, changed in a relevant field, or deleted.
        Changed = "changed",
        /// An object changed in no relevant field.
        Unchanged = "unchanged",
        /// An event that arrived before.
        Repeated = "repeated",
        /// An event that is older than the known state.
        Reordered = "reordered",
        /// An object or a line that cannot be decoded.
        Unreadable = "unreadable",
        /// An object or a line that is too long.
        TooLong = "too_long",
        /// An object beyond the maximum number of stored objects. It is dropped, or a finished one in its place.
        TooMany = "too_many",
        /// A bookmark.
        Bookmark = "bookmark",
        /// A list was read completely.
        Listed = "listed",
        /// A watch was started.
        Watched = "watched",
        /// The server ended a watch as scheduled.
        Closed = "closed",
        /// The server no longer has the changes since the last version.
        Expired = "expired",
        /// A list or a watch could not be started, or broke.
        Failed = "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_named_after_verb_and_resource() {
        let get = |path: &str| operation(&Method::GET, path);
        assert_eq!(get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn&limit=50"), "list_pods");
        assert_eq!(get("/api/v1/pods?watch=1"), "watch_pods");
        assert_eq!(get("/api/v1/nodes/n"), "get_node");
        assert_eq!(get("/version"), "get_version");
        assert_eq!(get("/configz"), "other");
        let post = |path: &str| operation(&Method::POST, path);
        assert_eq!(post("/api/v1/namespaces/a/pods/b/eviction"), "evict_pod");
        assert_eq!(operation(&Method::DELETE, "/api/v1/namespaces/a/pods/b?dryRun=All"), "delete_pod");
        assert_eq!(post("/apis/events.k8s.io/v1/namespaces/a/events"), "create_event");
    }
}
