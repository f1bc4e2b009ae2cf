//! Requests to the API server, and to the kubelet for its configuration and statistics.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use eviction_core::input::ApiReachability;
use eviction_core::progress::{ApiOperation, ApiResult};
use http::{Response, StatusCode};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout, timeout_at};
use tower::ServiceExt as _;

use crate::access::Access;
use crate::backoff::Backoff;
use crate::error::{OperationError, RequestError};
use crate::metrics::{Observer, operation};
use crate::reachability::{RequestFailures, is_handled};
use crate::request::{Request, read_to_end, status_message};
use crate::response::{interpret, log_missing_permission};
use crate::stack::{BUILD_WITHIN, NONE, Service, Stack, WATCHES, lock_credentials};

/// How long a connection may be idle before a request keeps it alive. The API server closes it after 90 s
/// (`IdleTimeout` of its `http.Server`).
const KEEP_ALIVE: Duration = Duration::from_secs(45);

/// The path that is read to keep a connection alive. Every client may read it, and it costs the server almost
/// nothing.
const VERSION: &str = "/version";

/// The interval between two requests of a probe.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// How long the probe keeps this interval. After that the intervals grow.
const PROBE_OFTEN: Duration = Duration::from_secs(60);
const PROBE_MOST: Duration = Duration::from_secs(10);

/// The timeout of each request of a probe, the same as for an eviction.
const PROBE_WITHIN: Duration = Duration::from_secs(5);

/// Sends requests to the API server. Cloning shares the connections. Needs a tokio runtime with IO and time.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    access: Access,
    /// Built on demand, and again when it no longer works.
    stack: Mutex<Option<Arc<Stack>>>,
    /// Notified when connections were closed.
    closed: Notify,
    observer: Observer,
    reachability: watch::Sender<ApiReachability>,
    failures: Mutex<RequestFailures>,
    /// The operations without a permission, which were logged.
    missing_permissions: Mutex<BTreeSet<ApiOperation>>,
    /// Notified when a request failed or has no response yet, which starts the probe.
    check_reachability: Notify,
}

impl Client {
    /// Creates a client that has not connected yet. Reads the credentials once, so that errors in them are
    /// reported before the first request. Blocks while an exec plugin runs.
    ///
    /// # Errors
    /// If the credentials cannot be read or are invalid.
    pub fn new(access: Access) -> Result<Self, RequestError> {
        Self::observed(access, Observer::default())
    }

    /// Like [`Client::new`]; the observer counts the requests of the client and of its users.
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn observed(access: Access, observer: Observer) -> Result<Self, RequestError> {
        if let Some(token) = &access.token {
            token.header(Instant::now())?;
        }
        let stack = Stack::build(&access)?;
        let shared = Shared {
            access,
            stack: Mutex::new(Some(Arc::new(stack))),
            closed: Notify::new(),
            observer,
            reachability: watch::Sender::default(),
            failures: Mutex::default(),
            missing_permissions: Mutex::default(),
            check_reachability: Notify::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns the address of the server and the credentials.
    pub fn access(&self) -> &Access {
        &self.shared.access
    }

    /// Sends a request and reads the response, whatever its status.
    ///
    /// A request that may have arrived is never sent again. The future may be cancelled, which closes the
    /// connection.
    ///
    /// # Errors
    /// If there is no response. [`RequestError::may_have_been_carried_out`] returns whether the request may
    /// have been carried out anyway.
    pub async fn request(&self, request: Request) -> Result<Response<Bytes>, RequestError> {
        self.send(request, false).await
    }

    /// Sends a request of this operation. Returns its result, and the body of the response if it was accepted.
    pub(crate) async fn call(&self, operation: ApiOperation, request: Request) -> (ApiResult, Option<Bytes>) {
        let response = self.request(request).await;
        let result = interpret(operation, &response);
        log_missing_permission(&mut lock(&self.shared.missing_permissions), operation, &result);
        let body = response.ok().filter(|_| result == ApiResult::Accepted).map(Response::into_body);
        (result, body)
    }

    /// Sends a request over a connection of the pool, or over a new one, since those of the pool may be broken.
    async fn send(&self, request: Request, is_new: bool) -> Result<Response<Bytes>, RequestError> {
        let began = Instant::now();
        let result = self.exchange(&request, is_new).await;
        let status = result.as_ref().map(|response| response.status().as_u16());
        self.record_status(operation(&request.method, &request.path), status);
        // The other pooled connections use the same network path.
        if let Err(RequestError::Deadline { .. } | RequestError::Broken(_)) = &result
            && !is_new
        {
            lock(&self.shared.stack).iter().for_each(|stack| stack.close_pool());
            self.shared.closed.notify_one();
        }
        // The server can answer this path even without its store.
        if request.path != VERSION {
            self.shared.record_result(began, is_handled(&result));
        } else if result.is_err() {
            self.check_reachability();
        }
        result
    }

    /// Returns the body of the response to a request that reads. `help` is for a missing permission.
    ///
    /// # Errors
    /// If there is no response, or one with another status than 200.
    pub(crate) async fn read_body(
        &self,
        operation: &str,
        request: Request,
        help: Option<&'static str>,
    ) -> Result<Bytes, OperationError> {
        let result = self.request(request).await;
        let response = result.map_err(|error| OperationError::because(operation, &error))?;
        let status = response.status().as_u16();
        if status == 200 {
            return Ok(response.into_body());
        }
        let error = OperationError::new(format!("{operation}: {status}: {}", status_message(&response)));
        Err(match help {
            Some(help) if status == 403 => error.help(help),
            _ => error,
        })
    }

    /// Sends a request over a connection of the pool or, with `is_new`, over a new one.
    async fn exchange(&self, request: &Request, is_new: bool) -> Result<Response<Bytes>, RequestError> {
        let message = request.write()?;
        let (address, within) = (self.shared.access.authority(), request.within);
        let until = tokio::time::Instant::now() + within;
        let stack = timeout_at(until, self.stack()).await.map_err(|_elapsed| {
            let source = format!("the credentials were not read within {within:?}").into();
            RequestError::Connect { address: address.clone(), source }
        })??;
        let service = if is_new { stack.service(NONE) } else { stack.pool() };
        let exchange = async {
            let response = service.oneshot(message).await;
            let response = response.map_err(|cause| RequestError::of_service(cause, &address))?;
            let (head, body) = response.into_parts();
            Ok(Response::from_parts(head, read_to_end(body, request.largest).await?))
        };
        let timed_out = |_elapsed| RequestError::Deadline { after: within };
        timeout_at(until, exchange).await.map_err(timed_out)?
    }

    /// Returns a service with separate connections, for lists and watches.
    pub(crate) async fn service(&self) -> Result<Service, RequestError> {
        Ok(self.stack().await?.service(WATCHES))
    }

    async fn stack(&self) -> Result<Arc<Stack>, RequestError> {
        if let Some(stack) = &*lock(&self.shared.stack) {
            return Ok(Arc::clone(stack));
        }
        let credentials = lock_credentials(&self.shared.access).await?;
        if let Some(stack) = &*lock(&self.shared.stack) {
            return Ok(Arc::clone(stack));
        }
        let shared = Arc::clone(&self.shared);
        // The read continues if this request times out, so that a later request finds its result.
        let built = tokio::task::spawn_blocking(move || {
            let (stack, _lock) = Stack::build_within(&shared.access, credentials, BUILD_WITHIN)?;
            Ok::<_, RequestError>(Arc::clone(lock(&shared.stack).insert(Arc::new(stack))))
        });
        built.await.map_err(|error| RequestError::Malformed(error.into()))?
    }

    /// Counts a request. If the server rejected the credentials or its certificate did not verify, the next
    /// request reads the credentials again.
    pub(crate) fn record_status(&self, operation: &'static str, status: Result<u16, &RequestError>) {
        self.shared.observer.request(operation, status);
        if !matches!(status, Ok(401) | Err(RequestError::Certificate { .. })) {
            return;
        }
        if let Some(token) = &self.shared.access.token {
            token.invalidate();
        }
        if self.shared.access.is_renewed_by_stack() {
            *lock(&self.shared.stack) = None;
            self.shared.closed.notify_one();
        }
    }

    /// Returns the observer that counts the requests.
    pub(crate) fn observer(&self) -> &Observer {
        &self.shared.observer
    }

    /// Returns whether the server is available, according to the previous requests and, after a failure, to
    /// those of [`Client::probe`].
    pub fn reachability(&self) -> watch::Receiver<ApiReachability> {
        self.shared.reachability.subscribe()
    }

    /// Starts [`Client::probe`], because the server may be unavailable.
    pub fn check_reachability(&self) {
        self.shared.check_reachability.notify_one();
    }

    /// Runs forever. After a failure it reads `path` until a success: once a second, and after a minute less
    /// often, down to once in ten seconds. The path should require the server to access its store.
    pub async fn probe(&self, path: String) {
        loop {
            self.shared.check_reachability.notified().await;
            let mut is_new = true;
            let began = Instant::now();
            let mut pauses = Backoff::new(PROBE_EVERY, PROBE_MOST);
            loop {
                let requested_at = Instant::now();
                let request = Request::get(path.clone()).within(PROBE_WITHIN);
                let result = self.send(request, is_new).await;
                if is_handled(&result) {
                    break;
                }
                is_new = result.is_err();
                // All nodes reconnect to a server that has recovered.
                let pause = if began.elapsed() < PROBE_OFTEN { PROBE_EVERY } else { pauses.pause() };
                sleep(pause.saturating_sub(requested_at.elapsed())).await;
            }
        }
    }

    /// Runs forever and keeps two working connections open, so that the next request needs no handshake.
    pub async fn keep_warm(&self) {
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(20));
        loop {
            // Two simultaneous requests need two connections.
            let (first, second) =
                tokio::join!(self.request(Request::get(VERSION)), self.request(Request::get(VERSION)));
            let is_good = |result: &Result<Response<_>, RequestError>| {
                result.as_ref().is_ok_and(|response| response.status() != StatusCode::UNAUTHORIZED)
            };
            if !is_good(&first) || !is_good(&second) {
                sleep(backoff.pause()).await;
                continue;
            }
            backoff.reset();
            let closed = self.shared.closed.notified();
            // A minimum pause, so that a server that closes each connection is not flooded.
            sleep(Duration::from_millis(500)).await;
            let _whichever = timeout(KEEP_ALIVE, closed).await;
        }
    }
}

/// The timeout of a kubelet request. The kubelet may have to authenticate the client at the API server, which
/// it gives up after 10 s (`authentication.webhook`).
const KUBELET_WITHIN: Duration = Duration::from_secs(12);

/// Reads this path of a kubelet. Unless `kubelet` has a server name, the kubelet's certificate may be for `node_name`,
/// as a self-signed one is, or for its address.
///
/// # Errors
/// If there is no response. If no certificate verifies, the error is that of the first name.
pub async fn read_kubelet(
    kubelet: &Access,
    node_name: Option<&str>,
    path: &str,
) -> Result<Response<Bytes>, RequestError> {
    let read = async |kubelet: Access| {
        let client = Client::new(kubelet)?;
        client.request(Request::get(path).within(KUBELET_WITHIN)).await
    };
    let Some(node_name) = node_name.filter(|_| kubelet.config.tls_server_name.is_none()) else {
        return read(kubelet.clone()).await;
    };
    match read(kubelet.clone().with_server_name(node_name)).await {
        Err(error @ RequestError::Certificate { .. }) => match read(kubelet.clone()).await {
            Err(RequestError::Certificate { .. }) => Err(error),
            result => result,
        },
        result => result,
    }
}

impl Shared {
    fn record_result(&self, began: Instant, is_handled: bool) {
        let now = lock(&self.failures).record(began, Instant::now(), is_handled);
        self.reachability.send_if_modified(|before| std::mem::replace(before, now) != now);
        if !is_handled {
            self.check_reachability.notify_one();
        }
    }
}

/// Locks a mutex, even if a thread panicked that had locked it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
