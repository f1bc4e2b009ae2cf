//! Adds to the requests of kube's watcher for one resource: deadlines, size limits, pauses, and metrics for
//! what it does not report.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{Request, Response};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};
use tower::ServiceExt as _;

use crate::backoff::{Backoff, random_part_of};
use crate::client::Client;
use crate::error::{BoxError, RequestError};
use crate::metrics::{MetricEvent, WatchEvent, operation};
use crate::request::retry_after;
use crate::stack::Service;

/// The default namespace of kube's client, which is not used, since lists and watches are of all namespaces.
const NAMESPACE: &str = "default";

/// The timeout for the head of a response.
const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// The timeout for a page of a list.
const PAGE_WITHIN: Duration = Duration::from_secs(60);
const LARGEST_PAGE: usize = 32 << 20;

/// The maximum length of a line in a watch, in bytes. etcd stores objects of up to 1.5 MiB, which may be
/// larger as JSON.
const LONGEST_LINE: usize = 8 << 20;

/// The minimum duration of a watch. After a shorter one there is a longer pause.
const SHORT_WATCH: Duration = Duration::from_millis(500);
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// The maximum pause between the end of a watch and the start of the next.
const RESTART_PAUSE: Duration = Duration::from_millis(100);

/// The start of a line with a bookmark from the API server, which kube does not report.
const BOOKMARK: &[u8] = b"{\"type\":\"BOOKMARK\"";

/// The maximum pause that a server may request.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

/// The requests for one resource.
#[derive(Debug)]
pub(crate) struct WatchRequests {
    client: Client,
    resource: &'static str,
    opened: Notify,
    pace: Mutex<Pace>,
}

#[derive(Debug)]
struct Pace {
    not_before: Instant,
    backoff: Backoff,
}

impl WatchRequests {
    pub(crate) fn new(client: Client, resource: &'static str) -> Arc<Self> {
        let pace = Pace { not_before: Instant::now(), backoff: Backoff::new(PAUSES.0, PAUSES.1) };
        Arc::new(Self { client, resource, opened: Notify::new(), pace: Mutex::new(pace) })
    }

    /// Creates kube's client for its watcher, with separate connections.
    pub(crate) async fn kube(self: &Arc<Self>) -> Result<kube::Client, RequestError> {
        let (own, service) = (Arc::clone(self), self.client.service().await?);
        let service = tower::service_fn(move |request| Arc::clone(&own).exchange(service.clone(), request));
        Ok(kube::Client::new(service, NAMESPACE))
    }

    /// Waits until a watch was started since the last call.
    pub(crate) async fn opened(&self) {
        self.opened.notified().await;
    }

    async fn exchange(
        self: Arc<Self>,
        service: Service,
        request: Request<kube::client::Body>,
    ) -> Result<Response<WatchBody>, BoxError> {
        let not_before = self.pace().not_before;
        sleep_until(not_before).await;
        let path = request.uri().to_string();
        let is_watch = path.contains("watch=true");
        let operation = operation(request.method(), &path);
        let address = self.client.access().authority();
        let result = match timeout(HEAD_WITHIN, service.oneshot(request)).await {
            Ok(result) => result.map_err(|cause| RequestError::of_service(cause, &address)),
            Err(_elapsed) => Err(RequestError::Deadline { after: HEAD_WITHIN }),
        };
        let status = result.as_ref().map(|response| response.status().as_u16());
        self.client.record_status(operation, status);
        let (head, body) = result.inspect_err(|_| self.client.check_reachability())?.into_parts();
        if let Some(pause) = retry_after(&head.headers) {
            self.pace().not_before = Instant::now() + pause.min(LONGEST_RETRY_AFTER);
        }
        // kube would take it for a watch that has ended, and start the next one without a pause.
        if head.status.is_redirection() {
            return Err(format!("the server answers {}", head.status.as_u16()).into());
        }
        let is_open = is_watch && head.status.is_success();
        if is_open {
            self.count(WatchEvent::Watched);
            self.received();
            self.opened.notify_one();
        }
        Ok(Response::from_parts(head, WatchBody::new(self, body, is_open)))
    }

    /// Counts an event of the watch.
    pub(crate) fn count(&self, event: WatchEvent) {
        self.client.observer().observe(MetricEvent::Watch(self.resource, event));
    }

    fn received(&self) {
        self.client.observer().observe(MetricEvent::Received(self.resource));
    }

    /// Reports the number of known objects.
    pub(crate) fn count_objects(&self, objects: usize) {
        self.client.observer().observe(MetricEvent::Objects(self.resource, objects));
    }

    /// Sets the pause after a watch that lasted for `lasted`.
    fn watch_ended(&self, lasted: Duration) {
        let mut pace = self.pace();
        let pause = if lasted >= SHORT_WATCH {
            pace.backoff.reset();
            random_part_of(RESTART_PAUSE)
        } else {
            pace.backoff.pause()
        };
        pace.not_before = pace.not_before.max(Instant::now() + pause);
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The body of a list or of a watch.
pub(crate) struct WatchBody {
    requests: Arc<WatchRequests>,
    body: Incoming,
    kind: Kind,
}

enum Kind {
    List { deadline: Pin<Box<Sleep>>, received: usize },
    Watch { started: Instant, lines: Lines },
}

impl WatchBody {
    fn new(requests: Arc<WatchRequests>, body: Incoming, is_watch: bool) -> Self {
        let kind = match is_watch {
            true => Kind::Watch { started: Instant::now(), lines: Lines::default() },
            false => Kind::List { deadline: Box::pin(sleep(PAGE_WITHIN)), received: 0 },
        };
        Self { requests, body, kind }
    }
}

impl Body for WatchBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { requests, body, kind } = &mut *self;
        let next = match (Pin::new(body).poll_frame(cx), &mut *kind) {
            (Poll::Pending, Kind::List { deadline, .. }) => {
                ready!(deadline.as_mut().poll(cx));
                return Poll::Ready(Some(Err("the list does not end".into())));
            }
            (Poll::Pending, Kind::Watch { .. }) => return Poll::Pending,
            (Poll::Ready(next), _) => next,
        };
        Poll::Ready(match (next, kind) {
            // kube treats some of these errors as the end of the watch, and reports others.
            (Some(Err(_)), _) => Some(Err("the connection broke".into())),
            (None, Kind::Watch { .. }) => {
                requests.count(WatchEvent::Closed);
                None
            }
            (None, Kind::List { .. }) => None,
            (Some(Ok(frame)), kind) => {
                requests.received();
                let Ok(data) = frame.into_data() else { return Poll::Ready(None) };
                match kind {
                    Kind::Watch { lines, .. } => Some(Ok(Frame::data(lines.filter(data, requests)))),
                    Kind::List { received, .. } => {
                        *received += data.len();
                        match *received > LARGEST_PAGE {
                            true => Some(Err(RequestError::TooLarge { limit: LARGEST_PAGE }.into())),
                            false => Some(Ok(Frame::data(data))),
                        }
                    }
                }
            }
        })
    }
}

impl Drop for WatchBody {
    fn drop(&mut self) {
        if let Kind::Watch { started, .. } = &self.kind {
            self.requests.watch_ended(started.elapsed());
        }
    }
}

/// The line state of a watch.
#[derive(Debug, Default)]
struct Lines {
    /// The length so far of the current line, in bytes.
    length: usize,
    /// Whether the current line is too long, and its rest is dropped.
    skipping: bool,
}

impl Lines {
    /// Passes the data on, except the rest of lines that are too long. kube skips lines that are not JSON.
    fn filter(&mut self, data: Bytes, requests: &WatchRequests) -> Bytes {
        let mut passed = BytesMut::new();
        let mut is_whole = true;
        for part in data.split_inclusive(|byte| *byte == b'\n') {
            let ends = part.ends_with(b"\n");
            if self.length == 0 && part.starts_with(BOOKMARK) {
                requests.count(WatchEvent::Bookmark);
            }
            self.length += part.len();
            if self.length > LONGEST_LINE && !self.skipping {
                self.skipping = true;
                requests.count(WatchEvent::TooLong);
                passed.put_u8(b'\n');
            }
            if !self.skipping {
                passed.extend_from_slice(part);
            }
            is_whole &= !self.skipping;
            if ends {
                *self = Self::default();
            }
        }
        if is_whole { data } else { passed.freeze() }
    }
}
