//! What became of requests and watches, to be exported.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::Method;

use crate::error::RequestError;

/// What became of all requests so far, watches and those that keep a connection alive included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Requests by operation, and by the status code of the response or why there is none.
    pub requests: BTreeMap<(&'static str, Code), u64>,
    /// When the last response came.
    pub last_response: Option<SystemTime>,
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

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Status(status) => write!(f, "{status}"),
            Self::Unsent => f.write_str("unsent"),
            Self::Unanswered => f.write_str("unanswered"),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters(Mutex<RequestCounts>);

impl Counters {
    fn lock(&self) -> MutexGuard<'_, RequestCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn read(&self) -> RequestCounts {
        self.lock().clone()
    }

    /// Counts the end of a request: its status, or why there is no response.
    pub(crate) fn end(&self, operation: &'static str, status: Result<u16, &RequestError>) {
        let mut counts = self.lock();
        let code = match status {
            Ok(status) => {
                counts.last_response = Some(SystemTime::now());
                Code::Status(status)
            }
            Err(error) if error.may_have_been_carried_out() => Code::Unanswered,
            Err(_) => Code::Unsent,
        };
        *counts.requests.entry((operation, code)).or_default() += 1;
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

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// An object came, changed in what counts, or went.
    Changed,
    /// An object is as it was, in everything that counts.
    Unchanged,
    /// An event that came before.
    Repeated,
    /// An event that is older than what is known.
    Reordered,
    /// An object or a line that is not understood.
    Unreadable,
    /// An object or a line that is too long.
    TooLong,
    /// An object beyond the number that is kept.
    TooMany,
    /// A bookmark.
    Bookmark,
    /// A list was read from begin to end.
    Listed,
    /// A watch was begun.
    Watched,
    /// The server ended a watch in time.
    Closed,
    /// The server no longer knows what has happened since.
    Expired,
    /// A list or a watch did not come about, or broke.
    Failed,
}

impl WatchEvent {
    /// All of them, in the order of their counters.
    pub const ALL: [Self; 13] = [
        Self::Changed,
        Self::Unchanged,
        Self::Repeated,
        Self::Reordered,
        Self::Unreadable,
        Self::TooLong,
        Self::TooMany,
        Self::Bookmark,
        Self::Listed,
        Self::Watched,
        Self::Closed,
        Self::Expired,
        Self::Failed,
    ];

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
            Self::Repeated => "repeated",
            Self::Reordered => "reordered",
            Self::Unreadable => "unreadable",
            Self::TooLong => "too_long",
            Self::TooMany => "too_many",
            Self::Bookmark => "bookmark",
            Self::Listed => "listed",
            Self::Watched => "watched",
            Self::Closed => "closed",
            Self::Expired => "expired",
            Self::Failed => "failed",
        }
    }
}

/// Counters of one watch; shared with whoever exports them.
#[derive(Debug, Default)]
pub struct WatchMetrics {
    counts: [AtomicU64; WatchEvent::ALL.len()],
    /// Milliseconds since the Unix epoch; 0 for never.
    last_event_ms: AtomicU64,
    objects: AtomicU64,
}

impl WatchMetrics {
    /// How often it happened.
    pub fn count(&self, event: WatchEvent) -> u64 {
        self.counts.get(event as usize).map_or(0, |count| count.load(Relaxed))
    }

    /// When the last list, begin of a watch, event or bookmark came, since the Unix epoch.
    pub fn last_event(&self) -> Option<Duration> {
        let note_event = self.last_event_ms.load(Relaxed);
        (note_event > 0).then(|| Duration::from_millis(note_event))
    }

    /// How many objects are known.
    pub fn objects(&self) -> u64 {
        self.objects.load(Relaxed)
    }

    pub(crate) fn add(&self, event: WatchEvent) {
        if let Some(count) = self.counts.get(event as usize) {
            count.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn note_event(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_event_ms.store(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), Relaxed);
    }

    pub(crate) fn set_objects(&self, objects: usize) {
        self.objects.store(objects as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::WatchEvent;
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

    #[test]
    fn a_request_counts_by_operation_and_code() {
        let counters = Counters::default();
        counters.end("evict_pod", Ok(201));
        counters.end("evict_pod", Ok(429));
        counters.end("evict_pod", Ok(429));
        let counts = counters.read();
        assert_eq!(counts.requests[&("evict_pod", Code::Status(429))], 2);
        assert_eq!(counts.requests[&("evict_pod", Code::Status(201))], 1);
        assert!(counts.last_response.is_some());
    }

    #[test]
    fn each_has_its_own_counter() {
        for (place, event) in WatchEvent::ALL.into_iter().enumerate() {
            assert_eq!(event as usize, place);
        }
    }
}
