//! The tower stack of each client: TCP, proxy, TLS, credentials.
//!
//! kube's own stack does not set `TCP_NODELAY` or keep-alive, repeats requests that a server rejects, and
//! logs failures that the agent reports itself.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::header::AUTHORIZATION;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kube::client::middleware::{BaseUriLayer, ExtraHeadersLayer};
use kube::client::{AuthError, Body, ConfigExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::time::timeout;
use tower::filter::{AsyncFilterLayer, FilterLayer};
use tower::util::{BoxCloneSyncService, BoxService};
use tower::{Layer as _, Service as _, ServiceBuilder, ServiceExt as _, service_fn};

use crate::access::{Access, TokenFile};
use crate::error::{BoxError, RequestError};
use eviction_core::error::chain;

/// TCP keep-alive: idle time, interval, and number of probes. An unreachable peer is detected within a
/// minute.
const KEEP_ALIVE: (Duration, Duration, u32) = (Duration::from_secs(20), Duration::from_secs(10), 3);

/// The timeout for TCP and TLS together. It is shorter than that of an eviction, so that for an unreachable
/// server it is known that the request was not sent.
const CONNECT_WITHIN: Duration = Duration::from_millis(3500);

/// The maximum size of hyper's buffer for a response, which must contain its whole head, in bytes.
const BUFFER: usize = 64 << 10;

/// The timeout for an exec plugin, and for the wait until another read of the same credentials ends.
pub(crate) const BUILD_WITHIN: Duration = Duration::from_secs(30);

/// The number of connections that [`Client::keep_warm`](crate::Client::keep_warm) keeps open. At a threshold
/// crossing the agent taints the node and evicts a pod, and neither request should wait for the connection of
/// the other.
const WARM_CONNECTIONS: usize = 2;

/// The maximum number of idle connections, and how long each is kept. Request connections are kept almost as
/// long as by the API server, which closes one after 90 s without a request (`IdleTimeout` of its
/// `http.Server`). Connections for lists and watches are kept between pages, and between a list and its
/// watch.
const REQUESTS: (usize, Duration) = (WARM_CONNECTIONS, Duration::from_secs(80));
pub(crate) const WATCHES: (usize, Duration) = (1, Duration::from_secs(1));
pub(crate) const NONE: (usize, Duration) = (0, Duration::ZERO);

/// The locks of credentials, by [`Access::origin`].
static LOCKS: Mutex<BTreeMap<String, Arc<AsyncMutex<()>>>> = Mutex::new(BTreeMap::new());

/// The interval of attempts to get a lock without a runtime.
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// Waits for the end of other reads of the same credentials, and locks them. An exec plugin that does not end cannot
/// be killed, since kube does not return its process: it keeps the lock, so that retries do not start further ones.
///
/// # Errors
/// If another read does not end in time.
pub(crate) async fn lock_credentials(access: &Access) -> Result<OwnedMutexGuard<()>, RequestError> {
    let lock = timeout(BUILD_WITHIN, lock_of(access).lock_owned()).await;
    lock.map_err(|_elapsed| timed_out(access, BUILD_WITHIN))
}

/// Like [`lock_credentials`], but blocks.
fn lock_credentials_blocking(access: &Access) -> Result<OwnedMutexGuard<()>, RequestError> {
    let (lock, until) = (lock_of(access), Instant::now() + BUILD_WITHIN);
    loop {
        match Arc::clone(&lock).try_lock_owned() {
            Ok(guard) => return Ok(guard),
            Err(_locked) if Instant::now() >= until => return Err(timed_out(access, BUILD_WITHIN)),
            Err(_locked) => std::thread::sleep(LOCK_INTERVAL),
        }
    }
}

fn lock_of(access: &Access) -> Arc<AsyncMutex<()>> {
    let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(locks.entry(access.origin.clone()).or_default())
}

/// Sends requests to one server, with a separate connection pool.
pub(crate) type Service = BoxCloneSyncService<Request<Body>, Response<Incoming>, BoxError>;

/// Returns a request's headers with the `Authorization` header.
type AuthService = BoxService<Request<Body>, Response<Body>, BoxError>;

type Tcp = BoxCloneSyncService<Uri, TokioIo<TcpStream>, BoxError>;

/// The components for connections and requests, built after files and plugins were read.
pub(crate) struct Stack {
    connector: TimeoutConnector<hyper_rustls::HttpsConnector<Tcp>>,
    base_uri: BaseUriLayer,
    headers: ExtraHeadersLayer,
    /// Locked while kube determines the header.
    credentials: Option<Arc<AsyncMutex<AuthService>>>,
    token: Option<Arc<TokenFile>>,
    /// The service for requests, with its connection pool, created on demand.
    pool: Mutex<Option<Service>>,
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stack")
    }
}

impl Stack {
    /// Reads the credentials, and runs the exec plugin if there is one. Blocks.
    pub(crate) fn build(access: &Access) -> Result<Self, RequestError> {
        let lock = lock_credentials_blocking(access)?;
        let (stack, _lock) = Self::build_within(access, lock, BUILD_WITHIN)?;
        Ok(stack)
    }

    /// Like [`Stack::build`]. Returns the lock as well, so that the next reader of the same credentials can be given
    /// this stack instead.
    pub(crate) fn build_within(
        access: &Access,
        lock: OwnedMutexGuard<()>,
        within: Duration,
    ) -> Result<(Self, OwnedMutexGuard<()>), RequestError> {
        let failed = |why| RequestError::credentials("credentials", &access.origin, why);
        let (sender, receiver) = sync_channel(1);
        let own = access.clone();
        // kube waits for a plugin without a timeout.
        std::thread::spawn(move || {
            let built = Self::build_without_timeout(&own).map_err(|error| explain(&own, &error));
            // After a timeout the receiver is dropped.
            drop(sender.send(built.map(|stack| (stack, lock))));
        });
        match receiver.recv_timeout(within) {
            Ok(built) => built.map_err(failed),
            Err(RecvTimeoutError::Timeout) => Err(timed_out(access, within)),
            Err(RecvTimeoutError::Disconnected) => Err(failed("they cannot be read".to_owned())),
        }
    }

    fn build_without_timeout(access: &Access) -> Result<Self, kube::Error> {
        let Access { config, token, .. } = access;
        let credentials = config.auth_layer()?.map(|layer| {
            let service = layer.layer(service_fn(echo_headers).map_err(BoxError::from));
            Arc::new(AsyncMutex::new(AuthService::new(service)))
        });
        let mut connector =
            TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp(config)?)?);
        connector.set_connect_timeout(Some(CONNECT_WITHIN));
        let (base_uri, headers) = (config.base_uri_layer(), config.extra_headers_layer()?);
        let (token, pool) = (token.clone(), Mutex::default());
        Ok(Self { connector, base_uri, headers, credentials, token, pool })
    }

    /// Returns the service for requests. Needs a tokio runtime.
    pub(crate) fn pool(&self) -> Service {
        self.lock_pool().get_or_insert_with(|| self.service(REQUESTS)).clone()
    }

    /// Closes the idle connections of the pool.
    pub(crate) fn close_pool(&self) {
        *self.lock_pool() = None;
    }

    fn lock_pool(&self) -> MutexGuard<'_, Option<Service>> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a service that keeps `connections` idle connections for `idle`. Needs a tokio runtime.
    pub(crate) fn service(&self, (connections, idle): (usize, Duration)) -> Service {
        let client = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(idle)
            .pool_max_idle_per_host(connections)
            .http1_max_buf_size(BUFFER)
            .build(self.connector.clone());
        let credentials = self.credentials.clone().map(|credentials| {
            AsyncFilterLayer::new(move |request| authorize(Arc::clone(&credentials), request))
        });
        let token = self.token.clone().map(|token| {
            FilterLayer::new(move |mut request: Request<Body>| {
                let header = token.header(Instant::now())?;
                request.headers_mut().insert(AUTHORIZATION, header);
                Ok::<_, RequestError>(request)
            })
        });
        let service = ServiceBuilder::new()
            .layer(&self.base_uri)
            .layer(&self.headers)
            .option_layer(credentials)
            .option_layer(token)
            .service(client.map_err(BoxError::from));
        BoxCloneSyncService::new(service.map_err(BoxError::from))
    }
}

fn timed_out(access: &Access, within: Duration) -> RequestError {
    let why = format_args!("the exec plugin does not end within {within:?}");
    RequestError::credentials("credentials", &access.origin, why)
}

/// Adds the `Authorization` header to a request. Before a token from a plugin expires, kube runs the plugin again.
async fn authorize(
    credentials: Arc<AsyncMutex<AuthService>>,
    mut request: Request<Body>,
) -> Result<Request<Body>, BoxError> {
    let mut service = credentials.lock_owned().await;
    // If a request that times out cancelled kube's wait for the plugin, the next one would start another plugin.
    let authorized =
        tokio::spawn(async move { service.ready().await?.call(Request::new(Body::empty())).await });
    request.headers_mut().extend(authorized.await??.into_parts().0.headers);
    Ok(request)
}

async fn echo_headers(request: Request<Body>) -> Result<Response<Body>, Infallible> {
    let mut response = Response::new(Body::empty());
    *response.headers_mut() = request.into_parts().0.headers;
    Ok(response)
}

/// Returns the connector for TCP, through the proxy if one is configured.
fn tcp(config: &kube::Config) -> Result<Tcp, kube::Error> {
    let (idle, interval, count) = KEEP_ALIVE;
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_keepalive(Some(idle));
    http.set_keepalive_interval(Some(interval));
    http.set_keepalive_retries(Some(count));
    // This timeout is divided among the server's addresses.
    http.set_connect_timeout(Some(CONNECT_WITHIN));
    let Some(proxy) = &config.proxy_url else {
        return Ok(BoxCloneSyncService::new(http.map_err(BoxError::from)));
    };
    // Separates the user and the password from the address.
    let parsed = Matcher::builder().all(proxy.to_string()).build().intercept(&config.cluster_url);
    match (proxy.scheme_str(), parsed) {
        (Some("http"), Some(proxy)) => {
            let mut tunnel = Tunnel::new(proxy.uri().clone(), http);
            if let Some(auth) = proxy.basic_auth() {
                tunnel = tunnel.with_auth(auth.clone());
            }
            Ok(BoxCloneSyncService::new(tunnel.map_err(BoxError::from)))
        }
        (Some("socks5"), Some(proxy)) => {
            let mut socks = SocksV5::new(proxy.uri().clone(), http);
            if let Some((user, password)) = proxy.raw_auth() {
                socks = socks.with_auth(user.to_owned(), password.to_owned());
            }
            Ok(BoxCloneSyncService::new(socks.map_err(BoxError::from)))
        }
        _ => Err(kube::Error::ProxyProtocolUnsupported { proxy_url: Box::new(proxy.clone()) }),
    }
}

/// Returns why a stack cannot be built. kube's own message contains a plugin's whole output and its
/// environment.
fn explain(access: &Access, error: &kube::Error) -> String {
    let kube::Error::Auth(error) = error else { return chain(error) };
    let exec = access.config.auth_info.exec.as_ref().and_then(|exec| exec.command.as_deref());
    let command = exec.unwrap_or("the auth provider's command");
    match error {
        AuthError::AuthExecRun { out, .. } => {
            let stderr = String::from_utf8_lossy(&out.stderr).trim().chars().take(300).collect::<String>();
            format!("{command} fails with {}: {stderr}", out.status)
        }
        AuthError::AuthExecStart(error) => format!("run {command}: {error}"),
        error => chain(error),
    }
}

#[cfg(test)]
mod tests {
    use kube::config::ExecConfig;

    use super::*;
    use crate::fake_server::access;

    const SERVER: &str = "http://127.0.0.1:1";

    #[test]
    fn hanging_exec_plugin_blocks_only_its_own_credentials_and_is_not_started_again() {
        const SCRIPT: &str = r#"cd "$0"; echo run >> runs; until [ -e go ] || [ ! -e runs ]; do sleep 0.05; done; echo '{"status": {"token": "t"}}'"#;
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let mut access = access(SERVER);
        access.origin = folder.path().display().to_string();
        access.config.auth_info.exec = Some(ExecConfig {
            command: Some("/bin/sh".into()),
            args: Some(vec!["-c".into(), SCRIPT.into(), access.origin.clone()]),
            interactive_mode: Some(kube::config::ExecInteractiveMode::Never),
            ..ExecConfig::default()
        });
        let runs = || std::fs::read_to_string(path("runs")).unwrap().lines().count();
        std::fs::write(path("go"), "").unwrap();
        Stack::build(&access).unwrap();
        let runs_of_a_build = runs();
        std::fs::remove_file(path("go")).unwrap();
        let lock = lock_credentials_blocking(&access).unwrap();
        let built = Stack::build_within(&access, lock, Duration::from_millis(100));
        let error = built.err().unwrap().to_string();
        assert!(error.ends_with(": the exec plugin does not end within 100ms"), "{error}");
        assert!(lock_of(&access).try_lock_owned().is_err(), "the plugin still runs");
        let other =
            Access { origin: format!("another {}", access.origin), ..crate::fake_server::access(SERVER) };
        Stack::build(&other).unwrap();
        std::fs::write(path("go"), "").unwrap();
        Stack::build(&access).unwrap();
        assert_eq!(runs(), 3 * runs_of_a_build, "of the first build, one that timed out, and the last");
    }
}
