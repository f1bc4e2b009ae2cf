//! Adds to the requests of kube's watcher for one resource: deadlines, size limits, pauses, and metrics for
//! what it does not report.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use tower::ServiceExt as _;

use crate::backoff::{Backoff, random_part_of};
use crate::client::Client;
use crate::error::{BoxError, RequestError};
use crate::metrics::{MetricEvent, WatchEvent, operation};
use crate::request::{read_to_end, retry_after};
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

/// The minimum duration of a watch. A shorter one counts as an error.
const SHORT_WATCH: Duration = Duration::from_millis(500);

/// The pauses after errors, first and longest, and the time without errors after which the first one follows again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
const RESET_AFTER: Duration = Duration::from_secs(30);

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

/// When the next request may be sent.
#[derive(Debug)]
struct Pace {
    not_before: Instant,
    backoff: Backoff,
    last_error: Option<Instant>,
    /// The number of errors in a row.
    errors: u32,
    /// Whether the next request is delayed for an error already: the server may report one and end the watch.
    is_paused: bool,
}

impl Pace {
    fn new(now: Instant) -> Self {
        let backoff = Backoff::new(PAUSES.0, PAUSES.1);
        Self { not_before: now, backoff, last_error: None, errors: 0, is_paused: false }
    }

    /// Delays the next request after an error, or longer if the server has requested that. Returns the number of
    /// errors in a row.
    fn pause(&mut self, now: Instant) -> u32 {
        if std::mem::replace(&mut self.is_paused, true) {
            return self.errors;
        }
        if self.last_error.replace(now).is_none_or(|last| now.saturating_duration_since(last) > RESET_AFTER) {
            self.backoff.reset();
            self.errors = 0;
        }
        self.errors += 1;
        self.not_before = self.not_before.max(now + self.backoff.pause());
        self.errors
    }
}

impl WatchRequests {
    pub(crate) fn new(client: Client, resource: &'static str) -> Arc<Self> {
        let pace = Mutex::new(Pace::new(Instant::now()));
        Arc::new(Self { client, resource, opened: Notify::new(), pace })
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
    ) -> Result<Response<Either<WatchBody, Full<Bytes>>>, BoxError> {
        self.wait().await;
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
        let body = if is_watch && head.status.is_success() {
            self.count(WatchEvent::Watched);
            self.received();
            self.opened.notify_one();
            Either::Left(WatchBody { requests: self, body, started: Instant::now(), line_length: 0 })
        } else {
            let page = timeout(PAGE_WITHIN, read_to_end(body, LARGEST_PAGE)).await;
            let page = page.map_err(|_elapsed| RequestError::Deadline { after: PAGE_WITHIN })??;
            self.received();
            Either::Right(Full::new(page))
        };
        Ok(Response::from_parts(head, body))
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

    /// Delays the next request after an error. Returns the number of errors in a row.
    pub(crate) fn pause(&self) -> u32 {
        self.pace().pause(Instant::now())
    }

    /// Waits until the next request may be sent.
    pub(crate) async fn wait(&self) {
        let not_before = self.pace().not_before;
        sleep_until(not_before).await;
        self.pace().is_paused = false;
    }

    /// Delays the next request after a watch that the server has ended after `lasted`.
    fn watch_closed(&self, lasted: Duration) {
        self.count(WatchEvent::Closed);
        let (now, mut pace) = (Instant::now(), self.pace());
        if lasted < SHORT_WATCH {
            pace.pause(now);
        } else {
            pace.not_before = pace.not_before.max(now + random_part_of(RESTART_PAUSE));
        }
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The body of a watch.
pub(crate) struct WatchBody {
    requests: Arc<WatchRequests>,
    body: Incoming,
    started: Instant,
    /// The length so far of the current line, in bytes.
    line_length: usize,
}

impl Body for WatchBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            // kube reports this text, and treats others as the end of the watch.
            Some(Err(_)) => return Poll::Ready(Some(Err("the connection broke".into()))),
            frame => frame.and_then(Result::ok).inspect(|_| self.requests.received()),
        };
        // Trailers end a body as well.
        let data = frame.and_then(|frame| frame.into_data().ok());
        if data.is_none() {
            // kube starts the next watch without a pause, and reports nothing.
            self.requests.watch_closed(self.started.elapsed());
        }
        Poll::Ready(data.map(|data| Ok(Frame::data(self.filter(data)))))
    }
}

impl WatchBody {
    /// Passes the data on, except the rest of lines that are too long. kube skips lines that are not JSON.
    fn filter(&mut self, data: Bytes) -> Bytes {
        let mut passed = BytesMut::new();
        let mut is_whole = true;
        for part in data.split_inclusive(|byte| *byte == b'\n') {
            if self.line_length == 0 && part.starts_with(BOOKMARK) {
                self.requests.count(WatchEvent::Bookmark);
            }
            let was_too_long = self.line_length > LONGEST_LINE;
            self.line_length += part.len();
            if self.line_length <= LONGEST_LINE {
                passed.extend_from_slice(part);
            } else {
                is_whole = false;
                if !was_too_long {
                    self.requests.count(WatchEvent::TooLong);
                    passed.put_u8(b'\n');
                }
            }
            if part.ends_with(b"\n") {
                self.line_length = 0;
            }
        }
        if is_whole { data } else { passed.freeze() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the pause after an error at `now`, whose next request follows at once.
    fn pause(pace: &mut Pace, now: Instant) -> Duration {
        pace.pause(now);
        pace.is_paused = false;
        pace.not_before - now
    }

    #[test]
    fn pauses_grow_until_there_were_no_errors_for_some_time() {
        let (first, longest) = PAUSES;
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        assert!(pause(&mut pace, now) <= first);
        for _ in 0..9 {
            now += longest;
            assert!(pause(&mut pace, now) <= longest);
        }
        assert!(pause(&mut pace, now + longest) >= longest / 2);
        // Watches end and start in the meantime.
        now += longest + 2 * RESET_AFTER;
        pace.not_before = now;
        assert!(pause(&mut pace, now) <= first);
    }

    #[test]
    fn an_error_delays_the_next_request_once_and_not_less_than_the_server_requests() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        pace.not_before = now + LONGEST_RETRY_AFTER;
        for _ in 0..9 {
            assert_eq!(pace.pause(now), 1);
        }
        assert_eq!(pace.not_before, now + LONGEST_RETRY_AFTER);
        pace.is_paused = false;
        let later = now + RESET_AFTER / 2;
        pace.not_before = later;
        assert!(pause(&mut pace, later) <= 2 * PAUSES.0, "only two errors");
        assert_eq!([pace.pause(later), pace.pause(later)], [3, 3]);
        pace.is_paused = false;
        assert_eq!(pace.pause(later + 2 * RESET_AFTER), 1);
    }
}
