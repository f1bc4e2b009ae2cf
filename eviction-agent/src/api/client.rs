//! Requests, each on a connection of its own while it is under way.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::{Response, StatusCode};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout_at};

use super::access::Access;
use super::answer::{Answer, retry_after};
use super::backoff::Backoff;
use super::connection::{Sender, connect};
use super::counts::{Counters, Counts, operation};
use super::error::{ConnectError, RequestError};
use super::reach::{Reach, Sign};
use super::request::Request;
use super::stream::{Stream, collect};
use super::tls::Tls;
use super::token::Token;

/// Connections that are kept for the next requests.
const SPARE: usize = 3;

/// Connections that [`Client::keep_warm`] keeps good: at a crossing the node is marked and a pod
/// evicted, and neither waits for the other's connection.
const WARM: usize = 2;

/// After so long without a request a kept connection is used for one, so that it is known to be
/// good: the API server closes it after 90 s (`IdleTimeout` of its `http.Server`).
const KEEP_ALIVE: Duration = Duration::from_secs(45);

/// Asked to keep a connection alive: any client may, and it costs the server nothing.
const VERSION: &str = "/version";

/// While there is doubt, between two requests that find out.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// For so long; after that less and less often.
const PROBE_OFTEN: Duration = Duration::from_secs(60);
const PROBE_MOST: Duration = Duration::from_secs(10);

/// How long each may take: as long as an eviction.
const PROBE_WITHIN: Duration = Duration::from_secs(5);

/// Asks the API server. Cloning shares the connections. Needs a tokio runtime with IO and time.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    access: Access,
    tls: Tls,
    token: Option<Token>,
    idle: Mutex<Vec<Idle>>,
    /// A connection has ended.
    closed: Arc<Notify>,
    counters: Counters,
    /// Whether the server can be asked, and how that is known.
    reachable: watch::Sender<bool>,
    reach: Mutex<Reach>,
    born: Instant,
    /// Nothing has come of a request, or not yet.
    doubt: Notify,
}

#[derive(Debug)]
struct Idle {
    sender: Sender,
    used: Instant,
}

impl Client {
    /// A client that has not connected yet. Files that a connection needs are read here once, so
    /// that what is wrong with them is known before the server is asked.
    ///
    /// # Errors
    /// If they cannot be read or are not what they should be.
    pub fn new(access: Access) -> Result<Self, ConnectError> {
        let tls = Tls::default();
        tls.connector(&access)?;
        super::tls::server_name(&access)?;
        let token = access.token.clone().map(Token::new);
        if let Some(token) = &token {
            token.header(Instant::now())?;
        }
        let closed = Arc::default();
        let (idle, counters) = (Mutex::default(), Counters::default());
        let (reachable, reach) = (watch::Sender::new(true), Mutex::default());
        let (born, doubt) = (Instant::now(), Notify::new());
        let shared = Shared { access, tls, token, idle, closed, counters, reachable, reach, born, doubt };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Where the server is.
    pub fn access(&self) -> &Access {
        &self.shared.access
    }

    /// What became of all requests so far.
    pub fn counts(&self) -> Counts {
        self.shared.counters.read()
    }

    /// Sends a request and reads the answer, whatever its status.
    ///
    /// Never sent a second time once it may have arrived. May be cancelled; then the connection ends.
    ///
    /// # Errors
    /// If there is no answer; [`RequestError::may_have_been_carried_out`] says whether the request
    /// may have been carried out all the same.
    pub async fn request(&self, request: Request) -> Result<Answer, RequestError> {
        self.ask(request, Kept::Take).await
    }

    async fn ask(&self, request: Request, kept: Kept) -> Result<Answer, RequestError> {
        let began = self.shared.born.elapsed();
        let until = tokio::time::Instant::now() + request.within;
        let answer = async {
            let (response, sender) = self.send(&request, until, kept).await?;
            let (head, mut body) = response.into_parts();
            let late = |_elapsed| RequestError::Deadline { after: request.within };
            let body = timeout_at(until, collect(&mut body, request.largest)).await.map_err(late)??;
            if head.status == StatusCode::UNAUTHORIZED && self.shared.access.identity.is_some() {
                // The certificate is shown when a connection begins, and all others came with the same.
                self.shared.let_go();
            } else {
                self.shared.keep(sender);
            }
            Ok(Answer { status: head.status.as_u16(), retry_after: retry_after(&head.headers), body })
        };
        let answer = answer.await;
        self.shared.counters.end(operation(&request), answer.as_ref().map(|answer| answer.status));
        let is_lost = matches!(answer, Err(RequestError::Deadline { .. } | RequestError::Broken(_)));
        if is_lost && kept != Kept::Leave {
            // The others came the same way.
            self.shared.let_go();
        }
        // That one is answered also by a server that has lost its store.
        if request.path != VERSION {
            self.shared.note_sign(began, Sign::of(&answer));
        } else if answer.is_err() {
            self.doubt();
        }
        answer
    }

    /// Whether the server can be asked: by what became of the requests so far, and once there is
    /// doubt, of those of [`Client::probe`].
    pub fn reachable(&self) -> watch::Receiver<bool> {
        self.shared.reachable.subscribe()
    }

    /// There is reason to find out whether the server can still be asked.
    pub fn doubt(&self) {
        self.shared.doubt.notify_one();
    }

    /// Asks for that path while there is doubt, for ever: once a second, after a minute up to every ten. It should be something for
    /// which the server has to ask its store.
    pub async fn probe(&self, path: String) {
        loop {
            self.shared.doubt.notified().await;
            // On a connection of its own: those that are kept may be what is broken.
            let mut kept = Kept::Leave;
            let began = tokio::time::Instant::now();
            let mut pauses = Backoff::new(PROBE_EVERY, PROBE_MOST);
            loop {
                let asked = tokio::time::Instant::now();
                let request = Request::get(path.clone()).within(PROBE_WITHIN);
                let answer = self.ask(request, kept).await;
                if Sign::of(&answer) == Sign::Heard {
                    break;
                }
                kept = if answer.is_err() { Kept::Leave } else { Kept::Take };
                // A server that comes back has all nodes at its door.
                let pause = if began.elapsed() < PROBE_OFTEN { PROBE_EVERY } else { pauses.pause() };
                tokio::time::sleep_until(asked + pause).await;
            }
        }
    }

    /// Sends a GET whose answer is read as it comes, on a connection that ends with it.
    ///
    /// # Errors
    /// If the head of the answer does not come.
    pub async fn stream(
        &self,
        path: impl Into<String>,
        head_within: Duration,
    ) -> Result<Stream, RequestError> {
        let request = Request::get(path).within(head_within);
        let until = tokio::time::Instant::now() + head_within;
        let head = async {
            let (response, sender) = self.send(&request, until, Kept::Leave).await?;
            Ok(Stream::new(response, sender))
        };
        let head = head.await;
        let status = head.as_ref().map(|stream| stream.status());
        self.shared.counters.end(operation(&request), status);
        if head.is_err() {
            self.doubt();
        }
        head
    }

    /// Keeps two connections at hand that are known to be good, for ever: who asks next pays for no
    /// handshake.
    pub async fn keep_warm(&self) {
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(20));
        loop {
            let pause = match self.warm().await {
                Ok(Some(pause)) => pause,
                // What ends meanwhile is no reason to try again sooner.
                Ok(None) => {
                    sleep(backoff.pause()).await;
                    continue;
                }
                Err(error) => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "no spare connection");
                    sleep(backoff.pause()).await;
                    continue;
                }
            };
            backoff.reset();
            let closed = self.shared.closed.notified();
            // At least a moment, so that a server that closes each connection is not stormed.
            sleep(pause.min(Duration::from_millis(500))).await;
            let _whichever = tokio::time::timeout(pause, closed).await;
        }
    }

    /// Uses each kept connection that was long unused, and makes those that are missing; says when
    /// to look again. Nothing if the server does not believe who asks.
    async fn warm(&self) -> Result<Option<Duration>, RequestError> {
        // The first does not come back to its place before the second is used.
        for _ in 0..SPARE {
            let kept = match self.shared.longest_unused() {
                Some((_, kept)) if kept < WARM => Kept::Leave,
                None => Kept::Leave,
                Some((unused, _)) => match KEEP_ALIVE.checked_sub(unused).filter(|left| !left.is_zero()) {
                    Some(left) => return Ok(Some(left)),
                    None => Kept::TakeOldest,
                },
            };
            if self.ask(Request::get(VERSION), kept).await?.status == StatusCode::UNAUTHORIZED {
                return Ok(None);
            }
        }
        Ok(Some(KEEP_ALIVE))
    }

    async fn send(
        &self,
        request: &Request,
        until: tokio::time::Instant,
        kept: Kept,
    ) -> Result<(Response<Incoming>, Sender), RequestError> {
        let shared = &*self.shared;
        let token = shared.token.as_ref().map(|token| token.header(Instant::now())).transpose()?;
        let mut message =
            request.write(&shared.access.server.authority(), &shared.access.server.base, token)?;
        loop {
            let idle = match kept {
                Kept::Take => shared.take(),
                Kept::TakeOldest => shared.take_oldest(),
                Kept::Leave => None,
            };
            let reused = idle.is_some();
            let connected = async {
                let mut sender = match idle {
                    Some(sender) => sender,
                    None => shared.connect(until).await?,
                };
                // An end that was not noticed yet is found by the next step.
                let _ready = sender.ready().await;
                Ok::<_, ConnectError>(sender)
            };
            let mut sender = timeout_at(until, connected)
                .await
                .map_err(|_elapsed| RequestError::NoConnection { after: request.within })??;
            let late = |_elapsed| RequestError::Deadline { after: request.within };
            match timeout_at(until, sender.try_send_request(message)).await.map_err(late)? {
                Ok(response) => {
                    if response.status() == StatusCode::UNAUTHORIZED
                        && let Some(token) = &shared.token
                    {
                        token.refused();
                    }
                    return Ok((response, sender));
                }
                Err(mut error) => match error.take_message() {
                    // It did not leave this process.
                    Some(unsent) if reused => message = unsent,
                    Some(_) => {
                        let source = error.into_error().into();
                        let address = shared.access.server.authority();
                        return Err(ConnectError::Greeting { address, source }.into());
                    }
                    None => return Err(RequestError::Broken(error.into_error().into())),
                },
            }
        }
    }
}

/// What becomes of the connections that are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    Take,
    TakeOldest,
    Leave,
}

impl Shared {
    fn note_sign(&self, began: Duration, sign: Sign) {
        let mut reach = self.reach.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reachable) = reach.note(began, self.born.elapsed(), sign) {
            self.reachable.send_replace(reachable);
        }
        if sign == Sign::Unheard {
            self.doubt.notify_one();
        }
    }

    async fn connect(&self, until: tokio::time::Instant) -> Result<Sender, ConnectError> {
        self.counters.connection();
        connect(&self.access, &self.tls, Arc::clone(&self.closed), until).await
    }

    /// The connection that was used last.
    fn take(&self) -> Option<Sender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(Idle { sender, used: _ }) = idle.pop() {
            if !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    /// The one that was not used for the longest time.
    fn take_oldest(&self) -> Option<Sender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|idle| !idle.sender.is_closed());
        if idle.is_empty() { None } else { Some(idle.remove(0).sender) }
    }

    /// Keeps none of those that are kept.
    fn let_go(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn keep(&self, sender: Sender) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|idle| !idle.sender.is_closed());
        if !sender.is_closed() {
            // This one was good a moment ago.
            if idle.len() >= SPARE {
                idle.remove(0);
            }
            idle.push(Idle { sender, used: Instant::now() });
        }
    }

    /// For how long that one was not used, and how many are kept; nothing if there is none.
    fn longest_unused(&self) -> Option<(Duration, usize)> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|idle| !idle.sender.is_closed());
        idle.first().map(|first| (first.used.elapsed(), idle.len()))
    }
}
