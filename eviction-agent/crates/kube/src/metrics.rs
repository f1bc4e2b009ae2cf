//! What is counted and exported: requests, watches, Events and patches of the node.

use std::fmt;
use std::sync::Arc;

use http::Method;

use crate::error::RequestError;

/// Something that is counted or exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricEvent {
    /// A request ended, also one for a watch or to keep a connection alive.
    Request {
        /// The operation, in the words of the API.
        operation: &'static str,
        /// The status code of the response, or why there is none.
        code: Code,
    },
    /// Something happened to the watch of this resource.
    Watch(&'static str, WatchEvent),
    /// A watch was begun, or a part of a list, an event or a bookmark of this resource arrived.
    Received(&'static str),
    /// So many objects of this resource are known.
    Objects(&'static str, usize),
    /// So many occurrences of this reason had this result:
    /// [`EventResult::name`](crate::events::EventResult::name).
    Event(&'static str, &'static str, u64),
    /// A patch of this kind had this result: one of [`PATCH_RESULTS`](crate::PATCH_RESULTS).
    Patch(&'static str, &'static str),
    /// Whether the node's object differs from the desired state, in what patches of this kind change.
    OutOfSync(&'static str, bool),
}

/// Takes what is counted or exported. The default one drops it.
#[derive(Clone, Default)]
pub struct Observer(Option<Arc<dyn Fn(MetricEvent) + Send + Sync>>);

impl Observer {
    /// Has `observe` called with each event; it must not wait for anything.
    pub fn new(observe: impl Fn(MetricEvent) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(observe)))
    }

    /// Passes on an event.
    pub fn observe(&self, event: MetricEvent) {
        if let Some(observe) = &self.0 {
            observe(event);
        }
    }

    /// Counts the end of a request: its status, or why there is no response.
    pub(crate) fn request(&self, operation: &'static str, status: Result<u16, &RequestError>) {
        let code = match status {
            Ok(status) => Code::Status(status),
            Err(error) if error.may_have_been_carried_out() => Code::Unanswered,
            Err(_) => Code::Unsent,
        };
        self.observe(MetricEvent::Request { operation, code });
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// A response with this status.
    Status(u16),
    /// The request was never sent.
    Unsent,
    /// It may have been carried out, but no response came.
    Unanswered,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "{status}"),
            Self::Unsent => f.write_str("unsent"),
            Self::Unanswered => f.write_str("unanswered"),
        }
    }
}

/// The operation of a request, in the words of the API.
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
        (&Method::GET, ["pods"]) => {
            if is_watch {
                "watch_pods"
            } else {
                "list_pods"
            }
        }
        (&Method::PATCH, ["nodes", _, "status"]) => "patch_node_status",
        (&Method::PATCH, ["nodes", _]) => "patch_node",
        (&Method::GET, ["nodes", _]) => "get_node",
        (&Method::GET, ["nodes"]) => {
            if is_watch {
                "watch_nodes"
            } else {
                "list_nodes"
            }
        }
        (&Method::POST, ["events"]) => "create_event",
        (&Method::PATCH, ["events", _]) => "patch_event",
        (&Method::GET, ["", "version"]) => "get_version",
        _ => "other",
    }
}

eviction_core::named_enum! {
    /// What happened to a watch.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum WatchEvent {
        /// An object came, changed in what counts, or went.
        Changed = "changed",
        /// An object is as it was, in everything that counts.
        Unchanged = "unchanged",
        /// An event that came before.
        Repeated = "repeated",
        /// An event that is older than what is known.
        Reordered = "reordered",
        /// An object or a line that is not understood.
        Unreadable = "unreadable",
        /// An object or a line that is too long.
        TooLong = "too_long",
        /// An object beyond the number that is kept.
        TooMany = "too_many",
        /// A bookmark.
        Bookmark = "bookmark",
        /// A list was read from begin to end.
        Listed = "listed",
        /// A watch was begun.
        Watched = "watched",
        /// The server ended a watch in time.
        Closed = "closed",
        /// The server no longer knows what has happened since.
        Expired = "expired",
        /// A list or a watch did not come about, or broke.
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
