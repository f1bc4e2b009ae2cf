//! Requests to the API server, and to the kubelet for its configuration and statistics.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use crate::access::{Access, KubeletAddress};
use crate::backoff::Backoff;
use crate::error::{AccessError, RequestError};
use crate::metrics::{Observer, operation};
use crate::reachability::{ApiReachability, Availability};
use crate::request::{Request, Response, retry_after};
use crate::stack::{Service, Stack, TokenFile};

/// Connections that [`Client::keep_warm`] keeps good: at a threshold crossing the node is tainted and
/// a pod evicted, and neither waits for the other's connection.
const WARM: usize = 2;

/// How many idle connections are kept for how long: those for requests as long as the API server does,
/// which closes one after 90 s without a request (`IdleTimeout` of its `http.Server`); those for lists
/// and watches from a page to the next, and from a list to its watch.
const REQUESTS: (usize, Duration) = (WARM, Duration::from_secs(80));
const WATCHES: (usize, Duration) = (1, Duration::from_secs(1));
const NONE: (usize, Duration) = (0, Duration::ZERO);

/// After so long an idle connection is used for a request: the API server closes it after 90 s
/// (`IdleTimeout` of its `http.Server`).
const KEEP_ALIVE: Duration = Duration::from_secs(45);

/// Read to keep a connection alive: any client may, and it costs the server nothing.
const VERSION: &str = "/version";

/// Between two requests of a probe.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// For so long; after that less and less often.
const PROBE_OFTEN: Duration = Duration::from_secs(60);
const PROBE_MOST: Duration = Duration::from_secs(10);

/// How long each may take: as long as an eviction.
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
    /// The connections were given up.
    closed: Notify,
    observer: Observer,
    /// Whether the server is available, and how that is known.
    reachable: watch::Sender<bool>,
    reachability: Mutex<ApiReachability>,
    born: Instant,
    /// A request failed, or has no response yet: the probe starts.
    check_reachability: Notify,
}

/// What is made when it is needed, and made anew when it is no good any more.
#[derive(Debug, Default)]
struct Connections {
    stack: Option<Arc<Stack>>,
    /// kube's client for requests, with its pool of connections.
    pool: Option<Pool>,
}

#[derive(Clone)]
struct Pool(kube::Client);

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pool")
    }
}

/// Over which connection a request goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Connection {
    /// Any of the pool.
    Pooled,
    /// One of its own: those of the pool may be what is broken.
    Fresh,
}

impl Client {
    /// A client that has not connected yet. Credentials are read here once, so that what is wrong with
    /// them is known before the first request. Blocks while an exec plugin runs.
    ///
    /// # Errors
    /// If they cannot be read or are not what they should be.
    pub fn new(access: Access) -> Result<Self, AccessError> {
        Self::observed(access, Observer::default())
    }

    /// The same; the observer takes what is counted of it, and of what sends its requests by it.
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
            closed: Notify::new(),
            observer,
            reachable: watch::Sender::new(true),
            reachability: Mutex::default(),
            born: Instant::now(),
            check_reachability: Notify::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Where the server is.
    pub fn access(&self) -> &Access {
        &self.shared.access
    }

    /// Sends a request and reads the response, whatever its status.
    ///
    /// Never sent a second time once it may have arrived. May be cancelled; then the connection ends.
    ///
    /// # Errors
    /// If there is no response; [`RequestError::may_have_been_carried_out`] says whether the request
    /// may have been carried out all the same.
    pub async fn request(&self, request: Request) -> Result<Response, RequestError> {
        self.send(request, Connection::Pooled).await
    }

    async fn send(&self, request: Request, connection: Connection) -> Result<Response, RequestError> {
        let began = self.shared.born.elapsed();
        let result = self.exchange(&request, connection).await;
        let status = result.as_ref().map(|response| response.status);
        self.shared.observer.request(operation(&request.method, &request.path), status);
        match &result {
            Ok(response) if response.status == 401 => self.renew_credentials(),
            Err(RequestError::Certificate { .. }) => self.renew_credentials(),
            // The others go the same way.
            Err(RequestError::Deadline { .. } | RequestError::Broken(_))
                if connection == Connection::Pooled =>
            {
                self.shared.connections().pool = None;
                self.shared.closed.notify_one();
            }
            _ => {}
        }
        // That one is answered also by a server that has lost its store.
        if request.path != VERSION {
            self.shared.note_result(began, Availability::of(&result));
        } else if result.is_err() {
            self.check_reachability();
        }
        result
    }

    async fn exchange(&self, request: &Request, connection: Connection) -> Result<Response, RequestError> {
        let message = request.write()?;
        let client = self.kube(connection).await?;
        let address = self.shared.access.authority();
        let exchange = async {
            let response = client.send(message).await.map_err(|error| RequestError::of(error, &address))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, request.largest).collect().await;
            let body = body.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
                Some(_) => RequestError::TooLarge { limit: request.largest },
                None => RequestError::Broken(error),
            })?;
            let (status, retry_after) = (head.status.as_u16(), retry_after(&head.headers));
            Ok(Response { status, retry_after, body: body.to_bytes() })
        };
        let late = |_elapsed| RequestError::Deadline { after: request.within };
        timeout(request.within, exchange).await.map_err(late)?
    }

    async fn kube(&self, connection: Connection) -> Result<kube::Client, RequestError> {
        if connection == Connection::Fresh {
            return Ok(kube_client(self.stack().await?.service(NONE)));
        }
        if let Some(Pool(client)) = &self.shared.connections().pool {
            return Ok(client.clone());
        }
        let stack = self.stack().await?;
        let pool = &mut self.shared.connections().pool;
        Ok(pool.get_or_insert_with(|| Pool(kube_client(stack.service(REQUESTS)))).0.clone())
    }

    /// Sends lists and watches over connections of its own.
    pub(crate) async fn service(&self) -> Result<Service, RequestError> {
        Ok(self.stack().await?.service(WATCHES))
    }

    async fn stack(&self) -> Result<Arc<Stack>, RequestError> {
        if let Some(stack) = &self.shared.connections().stack {
            return Ok(Arc::clone(stack));
        }
        let (access, token) = (self.shared.access.clone(), self.shared.token.clone());
        let built = tokio::task::spawn_blocking(move || Stack::build(&access, token)).await;
        let stack = Arc::new(built.map_err(|error| RequestError::Malformed(error.into()))??);
        Ok(Arc::clone(self.shared.connections().stack.insert(stack)))
    }

    /// The server does not accept the credentials, or they do not fit the server: reads them again for the
    /// next request.
    pub(crate) fn renew_credentials(&self) {
        if let Some(token) = &self.shared.token {
            token.refused();
        }
        if self.shared.access.is_renewed_by_stack() {
            *self.shared.connections() = Connections::default();
            self.shared.closed.notify_one();
        }
    }

    /// Takes what is counted.
    pub(crate) fn observer(&self) -> &Observer {
        &self.shared.observer
    }

    /// Whether the server is available: by what became of the requests so far, and after a failure, of those
    /// of [`Client::probe`].
    pub fn reachable(&self) -> watch::Receiver<bool> {
        self.shared.reachable.subscribe()
    }

    /// Wakes [`Client::probe`]: the server may be unavailable.
    pub fn check_reachability(&self) {
        self.shared.check_reachability.notify_one();
    }

    /// Reads that path from a failure until a success, for ever: once a second, after a minute up to every
    /// ten. It should be something for which the server has to ask its store.
    pub async fn probe(&self, path: String) {
        loop {
            self.shared.check_reachability.notified().await;
            let mut connection = Connection::Fresh;
            let began = Instant::now();
            let mut pauses = Backoff::new(PROBE_EVERY, PROBE_MOST);
            loop {
                let asked = Instant::now();
                let request = Request::get(path.clone()).within(PROBE_WITHIN);
                let result = self.send(request, connection).await;
                if Availability::of(&result) == Availability::Available {
                    break;
                }
                connection = if result.is_err() { Connection::Fresh } else { Connection::Pooled };
                // A server that comes back has all nodes at its door.
                let pause = if began.elapsed() < PROBE_OFTEN { PROBE_EVERY } else { pauses.pause() };
                sleep(pause.saturating_sub(asked.elapsed())).await;
            }
        }
    }

    /// Keeps two connections open that are known to be good, for ever: the next request pays for no
    /// handshake.
    pub async fn keep_warm(&self) {
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(20));
        loop {
            // Two at once need two connections.
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
            // At least a moment, so that a server that closes each connection is not stormed.
            sleep(Duration::from_millis(500)).await;
            let _whichever = timeout(KEEP_ALIVE, closed).await;
        }
    }
}

/// kube's client over that service. Namespaces are always given.
pub(crate) fn kube_client<S, B>(service: S) -> kube::Client
where
    S: tower::Service<
            http::Request<kube::client::Body>,
            Response = http::Response<B>,
            Error = crate::error::BoxError,
        > + Send
        + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = bytes::Bytes, Error: Into<crate::error::BoxError>> + Send + 'static,
{
    kube::Client::new(service, "default")
}

/// What the kubelet is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KubeletEndpoint {
    /// The configuration that it runs with.
    Configz,
    /// The Summary of `stats/v1alpha1`.
    StatsSummary,
}

impl KubeletEndpoint {
    /// Where it is served.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Configz => "/configz",
            Self::StatsSummary => "/stats/summary",
        }
    }
}

/// The kubelet may have to ask the API server who asks: it gives that up after 10 s
/// (`authentication.webhook`).
const KUBELET_WITHIN: Duration = Duration::from_secs(12);

/// Asks a kubelet with the credentials for the API server. Without a `server_name` its certificate may
/// be for `node_name`, as one that it has signed itself is, or for its address.
///
/// # Errors
/// Why there is no response; of certificates, why the first name does not fit.
pub async fn ask_kubelet(
    access: &Access,
    kubelet: &KubeletAddress,
    node_name: Option<&str>,
    endpoint: KubeletEndpoint,
) -> Result<Response, RequestError> {
    let ask = async |kubelet: KubeletAddress| {
        let client = Client::new(access.to_kubelet(kubelet)?)?;
        client.request(Request::get(endpoint.path()).within(KUBELET_WITHIN)).await
    };
    let Some(node_name) = node_name.filter(|_| kubelet.server_name.is_none()) else {
        return ask(kubelet.clone()).await;
    };
    let by_name = KubeletAddress { server_name: Some(node_name.to_owned()), ..kubelet.clone() };
    match ask(by_name).await {
        Err(error @ RequestError::Certificate { .. }) => match ask(kubelet.clone()).await {
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

    fn note_result(&self, began: Duration, availability: Availability) {
        let mut reachability = self.reachability.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reachable) = reachability.note(began, self.born.elapsed(), availability) {
            self.reachable.send_replace(reachable);
        }
        if availability == Availability::Unavailable {
            self.check_reachability.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
