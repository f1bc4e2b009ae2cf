//! A proxy in front of the API server, which simulates faults of the network and of the server.
//!
//! It terminates TLS, with a certificate of the cluster's authority, and passes bearer tokens on.

mod body;
mod exchange;
mod fault;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::background::Background;
use super::{Cluster, tls};
use exchange::Exchange;
pub use fault::{Fault, Rewrite, When};

/// A running proxy. Dropping it ends the proxy and its connections.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    _background: Background,
}

/// The state of all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkState {
    Open,
    /// Connections are accepted, but no bytes pass. Open connections are silent.
    Silent,
    /// No port is open. Open connections are reset.
    Down,
}

/// A request that was received.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// When it was received.
    pub at: Instant,
    /// `POST /api/v1/…`.
    pub request: String,
    /// The status that the client got; `None` if it got no response.
    pub status: Option<u16>,
}

struct Shared {
    link: watch::Sender<LinkState>,
    /// The number of resets. Connections that began before the last one are reset.
    resets: watch::Sender<u64>,
    /// The active faults: the first that fits applies.
    faults: Mutex<Vec<(When, Fault)>>,
    requests: Mutex<Vec<ReceivedRequest>>,
    connections: AtomicUsize,
    server: SocketAddr,
    to_server: TlsConnector,
    to_client: Mutex<TlsAcceptor>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Shared {
    /// Waits until bytes may pass.
    async fn wait_while_silent(&self) {
        let mut link = self.link.subscribe();
        // The sender is part of what is borrowed here, so it cannot have been dropped.
        let _ = link.wait_for(|link| *link != LinkState::Silent).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// Starts a proxy in front of that cluster's API server.
    ///
    /// # Errors
    /// If no port is free.
    pub fn start(cluster: &Cluster) -> Result<Self> {
        let identity = cluster.authority.server()?;
        let shared = Arc::new(Shared {
            link: watch::Sender::new(LinkState::Open),
            resets: watch::Sender::new(0),
            faults: Mutex::default(),
            requests: Mutex::default(),
            connections: AtomicUsize::new(0),
            server: (Ipv4Addr::LOCALHOST, cluster.port()).into(),
            to_server: tls::connector(&cluster.authority.pem)?,
            to_client: Mutex::new(tls::acceptor(&identity)?),
        });
        let background = Background::start()?;
        let listener =
            background.run(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).context("find a port for a proxy")?;
        let address = listener.local_addr().context("read a proxy's port")?;
        background.handle().spawn(listen(Arc::clone(&shared), listener, address));
        Ok(Self { shared, port: address.port(), _background: background })
    }

    /// Returns its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Applies a fault to these requests from now on. If several fit, the first one that was added applies.
    pub fn on(&self, when: When, fault: Fault) {
        lock(&self.shared.faults).push((when, fault));
    }

    /// Refuses connections from now on, and resets those that are open.
    pub fn refuse(&self) {
        self.shared.link.send_replace(LinkState::Down);
    }

    /// Accepts connections from now on, but passes no bytes on them or on those that are open.
    pub fn hang(&self) {
        self.shared.link.send_replace(LinkState::Silent);
    }

    /// Resets open connections; new ones are accepted as before.
    pub fn reset_connections(&self) {
        self.shared.resets.send_modify(|resets| *resets += 1);
    }

    /// Passes bytes again from now on. The faults of requests stay.
    pub fn reopen(&self) {
        self.shared.link.send_replace(LinkState::Open);
    }

    /// Removes all faults.
    pub fn heal(&self) {
        lock(&self.shared.faults).clear();
        self.shared.link.send_replace(LinkState::Open);
    }

    /// Uses another authority's certificate from now on, in new connections. Returns the PEM of that authority.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn use_untrusted_certificate(&self) -> Result<String> {
        let authority = super::pki::Authority::new("stranger")?;
        *lock(&self.shared.to_client) = tls::acceptor(&authority.server()?)?;
        Ok(authority.pem)
    }

    /// Returns the requests that were received.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        lock(&self.shared.requests).clone()
    }

    /// Returns how many connections have been accepted.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

/// Accepts connections as long as the link is not down.
async fn listen(shared: Arc<Shared>, first: TcpListener, address: SocketAddr) {
    let mut link = shared.link.subscribe();
    let mut listener = Some(first);
    loop {
        let now = *link.borrow_and_update();
        match (now, listener.take()) {
            (LinkState::Down, open) => {
                drop(open);
                if link.changed().await.is_err() {
                    return;
                }
            }
            (_, None) => match TcpListener::bind(address).await {
                Ok(bound) => listener = Some(bound),
                // Another connection has this port as its local port, until that connection ends.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            },
            (_, Some(open)) => {
                tokio::select! {
                    accepted = open.accept() => {
                        if let Ok((stream, _)) = accepted {
                            shared.connections.fetch_add(1, Ordering::Relaxed);
                            tokio::spawn(serve(Arc::clone(&shared), stream));
                        }
                    }
                    _ = link.changed() => {}
                }
                listener = Some(open);
            }
        }
    }
}

/// Serves a connection until either side ends it or the link goes down.
async fn serve(shared: Arc<Shared>, stream: TcpStream) {
    let (mut link, mut resets) = (shared.link.subscribe(), shared.resets.subscribe());
    // With a linger time of zero, a close is a reset. Complete responses have been read by then, since it is
    // the client that closes.
    let prepared = stream.set_nodelay(true).and_then(|()| stream.set_zero_linger());
    if prepared.is_err() {
        return;
    }
    let acceptor = lock(&shared.to_client).clone();
    let exchange_all = async {
        shared.wait_while_silent().await;
        let Ok(stream) = acceptor.accept(stream).await else { return };
        let exchange = Exchange::new(&shared);
        // The client handles errors of the connection.
        let _ = hyper::server::conn::http1::Builder::new()
            .serve_connection(
                TokioIo::new(stream),
                hyper::service::service_fn(|request| exchange.answer(request)),
            )
            .await;
    };
    tokio::select! {
        () = exchange_all => {}
        _ = link.wait_for(|link| *link == LinkState::Down) => {}
        _ = resets.changed() => {}
    }
}
