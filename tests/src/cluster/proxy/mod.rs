//! A proxy in front of the API server, for what a network and a server in distress do.
//!
//! It speaks TLS itself, with a certificate of the cluster's authority, and passes bearer tokens on.

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
use fault::Faults;
pub use fault::{Fault, Rewrite, When};

/// A running proxy; it ends, and its connections with it, when it goes out of scope.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    _background: Background,
}

/// How connections fare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Open,
    /// They are accepted, and then nothing passes; those that were open fall silent.
    Silent,
    /// There is nobody who listens; those that were open are reset.
    Down,
}

/// A request that came.
#[derive(Clone, Debug)]
pub struct Seen {
    /// When.
    pub at: Instant,
    /// `POST /api/v1/…`.
    pub request: String,
    /// The status that the client was given; nothing if it got no answer.
    pub status: Option<u16>,
}

struct Shared {
    line: watch::Sender<Line>,
    /// Connections that were begun before the last of them are over.
    cuts: watch::Sender<u64>,
    faults: Mutex<Faults>,
    seen: Mutex<Vec<Seen>>,
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
    async fn passable(&self) {
        let mut line = self.line.subscribe();
        // The sender is part of what is borrowed here: it cannot be gone.
        let _ = line.wait_for(|line| *line != Line::Silent).await;
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// Starts one in front of that cluster's API server.
    ///
    /// # Errors
    /// If no port can be had.
    pub fn start(cluster: &Cluster) -> Result<Self> {
        let identity = cluster.authority.server()?;
        let shared = Arc::new(Shared {
            line: watch::Sender::new(Line::Open),
            cuts: watch::Sender::new(0),
            faults: Mutex::default(),
            seen: Mutex::default(),
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

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on that happens to those requests. Of several that fit, the first that was said counts.
    pub fn on(&self, when: When, fault: Fault) {
        locked(&self.shared.faults).add(when, fault);
    }

    /// From now on connections are refused; those that were open are reset.
    pub fn refuse(&self) {
        self.shared.line.send_replace(Line::Down);
    }

    /// From now on connections are accepted, and nothing more is said on them or on those that were open.
    pub fn hang(&self) {
        self.shared.line.send_replace(Line::Silent);
    }

    /// Resets the connections that are open; new ones are taken as before.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// From now on bytes pass again; what is to happen to requests holds on.
    pub fn reopen(&self) {
        self.shared.line.send_replace(Line::Open);
    }

    /// From now on nothing goes wrong.
    pub fn heal(&self) {
        locked(&self.shared.faults).clear();
        self.shared.line.send_replace(Line::Open);
    }

    /// Shows another authority's certificate from now on, in new connections; hands back the PEM of
    /// that authority.
    ///
    /// # Errors
    /// If none can be made.
    pub fn become_stranger(&self) -> Result<String> {
        let authority = super::pki::Authority::new("stranger")?;
        *locked(&self.shared.to_client) = tls::acceptor(&authority.server()?)?;
        Ok(authority.pem)
    }

    /// The requests that have come.
    pub fn seen(&self) -> Vec<Seen> {
        locked(&self.shared.seen).clone()
    }

    /// How many connections have been accepted.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

/// Accepts connections as long as the line is not down.
async fn listen(shared: Arc<Shared>, first: TcpListener, address: SocketAddr) {
    let mut line = shared.line.subscribe();
    let mut listener = Some(first);
    loop {
        let now = *line.borrow_and_update();
        match (now, listener.take()) {
            (Line::Down, open) => {
                drop(open);
                if line.changed().await.is_err() {
                    return;
                }
            }
            (_, None) => match TcpListener::bind(address).await {
                Ok(bound) => listener = Some(bound),
                // Somebody has the port as the near end of a connection; that ends.
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
                    _ = line.changed() => {}
                }
                listener = Some(open);
            }
        }
    }
}

/// A connection, until either side ends it or the line goes down.
async fn serve(shared: Arc<Shared>, stream: TcpStream) {
    let (mut line, mut cuts) = (shared.line.subscribe(), shared.cuts.subscribe());
    // Nobody waits for what is left when a connection is closed: so a close is a reset. Answers that
    // are whole have been read by then, for it is the client who closes.
    let prepared = stream.set_nodelay(true).and_then(|()| stream.set_zero_linger());
    if prepared.is_err() {
        return;
    }
    let acceptor = locked(&shared.to_client).clone();
    let speak = async {
        shared.passable().await;
        let Ok(stream) = acceptor.accept(stream).await else { return };
        let exchange = Exchange::new(&shared);
        // What becomes of a connection is the client's to say.
        let _ = hyper::server::conn::http1::Builder::new()
            .serve_connection(
                TokioIo::new(stream),
                hyper::service::service_fn(|request| exchange.answer(request)),
            )
            .await;
    };
    tokio::select! {
        () = speak => {}
        _ = line.wait_for(|line| *line == Line::Down) => {}
        _ = cuts.changed() => {}
    }
}
