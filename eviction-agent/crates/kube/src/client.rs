//! Requests to the API server, and to the kubelet for its configuration and statistics.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use eviction_core::progress::{ApiOperation, ApiResult};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout, timeout_at};
use tower::ServiceExt as _;

use crate::access::{Access, KubeletAddress};
use crate::backoff::Backoff;
use crate::error::{AccessError, OperationError, RequestError};
use crate::metrics::{Observer, operation};
use crate::reachability::{ApiReachability, is_handled};
use crate::request::{Request, Response, retry_after};
use crate::response::{Permissions, interpret};
use crate::stack::{Service, Stack, TokenFile};

/// The number of connections that [`Client::keep_warm`] keeps open. At a threshold crossing the agent taints
/// the node and evicts a pod, and neither request should wait for the connection of the other.
const WARM_CONNECTIONS: usize = 2;

/// The maximum number of idle connections, and how long each is kept. Request connections are kept almost as
/// long as by the API server, which closes one after 90 s without a request (`IdleTimeout` of its
/// `http.Server`). Connections for lists and watches are kept between pages, and between a list and its
/// watch.
const REQUESTS: (usize, Duration) = (WARM_CONNECTIONS, Duration::from_secs(80));
const WATCHES: (usize, Duration) = (1, Duration::from_secs(1));
const NONE: (usize, Duration) = (0, Duration::ZERO);

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
    token: Option<Arc<TokenFile>>,
    connections: Mutex<Connections>,
    /// Locked while the credentials are read, so that only one exec plugin runs at a time.
    reading: Arc<tokio::sync::Mutex<()>>,
    /// Notified when connections were closed.
    closed: Notify,
    observer: Observer,
    /// Whether the server is available.
    reachable: watch::Sender<bool>,
    reachability: Mutex<ApiReachability>,
    permissions: Permissions,
    /// Notified when a request failed or has no response yet, which starts the probe.
    check_reachability: Notify,
}

/// The connections, created on demand and recreated when they no longer work.
#[derive(Default)]
struct Connections {
    stack: Option<Arc<Stack>>,
    /// The service for requests, with its connection pool.
    pool: Option<Service>,
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connections")
    }
}

impl Client {
    /// Creates a client that has not connected yet. Reads the credentials once, so that errors in them are
    /// reported before the first request. Blocks while an exec plugin runs.
    ///
    /// # Errors
    /// If the credentials cannot be read or are invalid.
    pub fn new(access: Access) -> Result<Self, AccessError> {
        Self::observed(access, Observer::default())
    }

    /// Like [`Client::new`]; the observer counts the requests of the client and of its users.
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn observed(access: Access, observer: Observer) -> Result<Self, AccessError> {
        let token = access.token_file.clone().map(|file| Arc::new(TokenFile::new(file)));
        if let Some(token) = &token {
            token.header(Instant::now())?;
        }
        let stack = Stack::build(&access, token.clone())?;
        let connections = Mutex::new(Connections { stack: Some(Arc::new(stack)), pool: None });
        let shared = Shared {
            access,
            token,
            connections,
            reading: Arc::default(),
            closed: Notify::new(),
            observer,
            reachable: watch::Sender::new(true),
            reachability: Mutex::default(),
            permissions: Permissions::default(),
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
    pub async fn request(&self, request: Request) -> Result<Response, RequestError> {
        self.send(request, false).await
    }

    /// Sends a request of this operation. Returns its result, and the body of the response if it was accepted.
    pub(crate) async fn call(&self, operation: ApiOperation, request: Request) -> (ApiResult, Option<Bytes>) {
        let response = self.request(request).await;
        let result = interpret(operation, &response);
        self.shared.permissions.record(operation, &result);
        let body = response.ok().filter(|_| result == ApiResult::Accepted).map(|response| response.body);
        (result, body)
    }

    /// Sends a request over a connection of the pool, or over a new one, since those of the pool may be broken.
    async fn send(&self, request: Request, is_new: bool) -> Result<Response, RequestError> {
        let began = Instant::now();
        let result = self.exchange(&request, is_new).await;
        let status = result.as_ref().map(|response| response.status);
        self.record_status(operation(&request.method, &request.path), status);
        // The other pooled connections use the same network path.
        if let Err(RequestError::Deadline { .. } | RequestError::Broken(_)) = &result
            && !is_new
        {
            self.shared.connections().pool = None;
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
        let status = response.status;
        if status == 200 {
            return Ok(response.body);
        }
        let error = OperationError::new(format!("{operation}: {status}: {}", response.status_message()));
        Err(match help {
            Some(help) if status == 403 => error.help(help),
            _ => error,
        })
    }

    async fn exchange(&self, request: &Request, is_new: bool) -> Result<Response, RequestError> {
        let message = request.write()?;
        let (address, within) = (self.shared.access.authority(), request.within);
        let until = tokio::time::Instant::now() + within;
        let service = timeout_at(until, self.pool(is_new)).await.map_err(|_elapsed| {
            let source = format!("the credentials were not read within {within:?}").into();
            RequestError::Connect { address: address.clone(), source }
        })??;
        let exchange = async {
            let response = service.oneshot(message).await;
            let response = response.map_err(|cause| RequestError::of_service(cause, &address))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, request.largest).collect().await;
            let body = body.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
                Some(_) => RequestError::TooLarge { limit: request.largest },
                None => RequestError::Broken(error),
            })?;
            let (status, retry_after) = (head.status.as_u16(), retry_after(&head.headers));
            Ok(Response { status, retry_after, body: body.to_bytes() })
        };
        let timed_out = |_elapsed| RequestError::Deadline { after: within };
        timeout_at(until, exchange).await.map_err(timed_out)?
    }

    /// Returns the service with the connections of the pool, or one with a new connection.
    async fn pool(&self, is_new: bool) -> Result<Service, RequestError> {
        if is_new {
            return Ok(self.stack().await?.service(NONE));
        }
        if let Some(pool) = &self.shared.connections().pool {
            return Ok(pool.clone());
        }
        let stack = self.stack().await?;
        let pool = &mut self.shared.connections().pool;
        Ok(pool.get_or_insert_with(|| stack.service(REQUESTS)).clone())
    }

    /// Returns a service with separate connections, for lists and watches.
    pub(crate) async fn service(&self) -> Result<Service, RequestError> {
        Ok(self.stack().await?.service(WATCHES))
    }

    async fn stack(&self) -> Result<Arc<Stack>, RequestError> {
        if let Some(stack) = &self.shared.connections().stack {
            return Ok(Arc::clone(stack));
        }
        let reading = Arc::clone(&self.shared.reading).lock_owned().await;
        if let Some(stack) = &self.shared.connections().stack {
            return Ok(Arc::clone(stack));
        }
        let shared = Arc::clone(&self.shared);
        // The read continues if this request times out, so that a later request finds its result.
        let built = tokio::task::spawn_blocking(move || {
            let _reading = reading;
            let stack = Arc::new(Stack::build(&shared.access, shared.token.clone())?);
            Ok::<_, AccessError>(Arc::clone(shared.connections().stack.insert(stack)))
        });
        Ok(built.await.map_err(|error| RequestError::Malformed(error.into()))??)
    }

    /// Counts a request. If the server rejected the credentials or its certificate did not verify, the next
    /// request reads the credentials again.
    pub(crate) fn record_status(&self, operation: &'static str, status: Result<u16, &RequestError>) {
        self.shared.observer.request(operation, status);
        if !matches!(status, Ok(401) | Err(RequestError::Certificate { .. })) {
            return;
        }
        if let Some(token) = &self.shared.token {
            token.invalidate();
        }
        if self.shared.access.is_renewed_by_stack() {
            *self.shared.connections() = Connections::default();
            self.shared.closed.notify_one();
        }
    }

    /// Returns the observer that counts the requests.
    pub(crate) fn observer(&self) -> &Observer {
        &self.shared.observer
    }

    /// Returns whether the server is available, according to the previous requests and, after a failure, to
    /// those of [`Client::probe`].
    pub fn reachable(&self) -> watch::Receiver<bool> {
        self.shared.reachable.subscribe()
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
            let is_good =
                |result: &Result<Response, _>| matches!(result, Ok(response) if response.status != 401);
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

/// An endpoint of the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KubeletEndpoint {
    /// The running configuration of the kubelet.
    Configz,
    /// The Summary of `stats/v1alpha1`.
    StatsSummary,
}

impl KubeletEndpoint {
    /// Returns the path of the endpoint.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Configz => "/configz",
            Self::StatsSummary => "/stats/summary",
        }
    }
}

/// The timeout of a kubelet request. The kubelet may have to authenticate the client at the API server, which
/// it gives up after 10 s (`authentication.webhook`).
const KUBELET_WITHIN: Duration = Duration::from_secs(12);

/// Sends a request to a kubelet with the credentials for the API server. Without a `server_name`, the
/// kubelet's certificate may be for `node_name`, as a self-signed one is, or for its address.
///
/// # Errors
/// If there is no response. If no certificate verifies, the error is that of the first name.
pub async fn read_kubelet(
    access: &Access,
    kubelet: &KubeletAddress,
    node_name: Option<&str>,
    endpoint: KubeletEndpoint,
) -> Result<Response, RequestError> {
    let send_request = async |kubelet: KubeletAddress| {
        let client = Client::new(access.to_kubelet(kubelet)?)?;
        client.request(Request::get(endpoint.path()).within(KUBELET_WITHIN)).await
    };
    let Some(node_name) = node_name.filter(|_| kubelet.server_name.is_none()) else {
        return send_request(kubelet.clone()).await;
    };
    let by_name = KubeletAddress { server_name: Some(node_name.to_owned()), ..kubelet.clone() };
    match send_request(by_name).await {
        Err(error @ RequestError::Certificate { .. }) => match send_request(kubelet.clone()).await {
            Err(RequestError::Certificate { .. }) => Err(error),
            result => result,
        },
        result => result,
    }
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_result(&self, began: Instant, is_handled: bool) {
        let mut reachability = self.reachability.lock().unwrap_or_else(PoisonError::into_inner);
        let now_reachable = reachability.record(began, Instant::now(), is_handled);
        self.reachable
            .send_if_modified(|reachable| std::mem::replace(reachable, now_reachable) != now_reachable);
        if !is_handled {
            self.check_reachability.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
