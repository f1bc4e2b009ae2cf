//! What kube's watcher does not do, around the requests that it sends for one resource: deadlines,
//! limits on sizes, pauses, and the counts of what it does not report.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};
use tower::ServiceExt as _;

use crate::backoff::{Backoff, part_of};
use crate::client::{Client, kube_client};
use crate::error::{BoxError, RequestError};
use crate::metrics::{MetricEvent, WatchEvent, operation};
use crate::request::retry_after;
use crate::stack::Service;

/// The head of a response.
const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// A page of a list.
const PAGE_WITHIN: Duration = Duration::from_secs(60);
const LARGEST_PAGE: usize = 32 << 20;

/// etcd takes objects of 1.5 MiB; as JSON they may be larger.
const LONGEST_LINE: usize = 8 << 20;

/// A watch that ends sooner is not followed by the next one at once.
const SHORT: Duration = Duration::from_millis(500);
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// Between the end of a watch and the begin of the next.
const BREATH: Duration = Duration::from_millis(100);

/// How the API server begins the line of a bookmark, which kube does not report.
const BOOKMARK: &[u8] = b"{\"type\":\"BOOKMARK\"";

/// The longest pause that a server may ask for.
const LONGEST_WISH: Duration = Duration::from_secs(60);

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

    /// kube's client for its watcher, with connections of its own.
    pub(crate) async fn kube(self: &Arc<Self>) -> Result<kube::Client, RequestError> {
        let (own, service) = (Arc::clone(self), self.client.service().await?);
        Ok(kube_client(tower::service_fn(move |request| Arc::clone(&own).exchange(service.clone(), request))))
    }

    /// Waits until a watch was begun since the last call.
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
        self.client.observer().request(operation, status);
        let (head, body) = result
            .inspect_err(|error| {
                self.client.check_reachability();
                if let RequestError::Certificate { .. } = error {
                    self.client.renew_credentials();
                }
            })?
            .into_parts();
        if head.status == StatusCode::UNAUTHORIZED {
            self.client.renew_credentials();
        }
        if let Some(wish) = retry_after(&head.headers) {
            self.pace().not_before = Instant::now() + wish.min(LONGEST_WISH);
        }
        let is_open = is_watch && head.status.is_success();
        if is_open {
            self.count(WatchEvent::Watched);
            self.received();
            self.opened.notify_one();
        }
        Ok(Response::from_parts(head, WatchBody::new(self, body, is_open)))
    }

    /// Counts what happened to the watch.
    pub(crate) fn count(&self, event: WatchEvent) {
        self.client.observer().observe(MetricEvent::Watch(self.resource, event));
    }

    fn received(&self) {
        self.client.observer().observe(MetricEvent::Received(self.resource));
    }

    /// How many objects are known.
    pub(crate) fn count_objects(&self, objects: usize) {
        self.client.observer().observe(MetricEvent::Objects(self.resource, objects));
    }

    /// A watch has ended that lasted so long: the next one does not begin at once.
    fn watch_ended(&self, lasted: Duration) {
        let mut pace = self.pace();
        let pause = if lasted >= SHORT {
            pace.backoff.reset();
            part_of(BREATH)
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
    Watch { begun: Instant, lines: Lines },
}

impl WatchBody {
    fn new(requests: Arc<WatchRequests>, body: Incoming, is_watch: bool) -> Self {
        let kind = match is_watch {
            true => Kind::Watch { begun: Instant::now(), lines: Lines::default() },
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
            // kube takes some of them for the end of the watch, and reports others.
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
                    Kind::Watch { lines, .. } => Some(Ok(Frame::data(lines.take(data, requests)))),
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
        if let Kind::Watch { begun, .. } = &self.kind {
            self.requests.watch_ended(begun.elapsed());
        }
    }
}

/// The lines of a watch as they pass by.
#[derive(Debug, Default)]
struct Lines {
    /// Bytes of the line that has not ended yet.
    length: usize,
    /// It is too long: what is left of it is dropped.
    skipping: bool,
}

impl Lines {
    /// Passes on what arrived, but of a line that is too long only the begin. kube passes over what is no
    /// JSON.
    fn take(&mut self, data: Bytes, requests: &WatchRequests) -> Bytes {
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
