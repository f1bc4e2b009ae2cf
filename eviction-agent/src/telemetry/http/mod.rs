//! `/metrics`, `/healthz`, `/readyz`.
//!
//! Served by hyper on the main thread: nothing here can delay the control loop.

pub(crate) mod local;
pub(crate) mod page;

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::telemetry::metrics::{Form, Metrics};

/// A scraper needs one.
const MAX_CONNECTIONS: usize = 32;
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// A request's line and headers; the body is never read.
const REQUEST_BYTES: usize = 8192;
/// Of them, so many for one peer: a peer that does not read its responses must not block the kubelet's probes.
const MOST_OF_A_PEER: usize = 6;
/// A connection lasts no longer, and has one request.
const LONGEST: Duration = Duration::from_secs(10);

/// What `/healthz` and `/readyz` answer from.
pub trait Health: Send + Sync + 'static {
    /// `Err` with the reason if the control loop is stalled.
    ///
    /// # Errors
    /// The reason, as the answer's text.
    fn healthy(&self) -> Result<(), String>;
    /// `Err` with the reason while pods are not known or no source works.
    ///
    /// # Errors
    /// The reason, as the answer's text.
    fn ready(&self) -> Result<(), String>;
}

/// Serves until dropped.
pub async fn serve(listener: TcpListener, metrics: Arc<Metrics>, health: Arc<dyn Health>) {
    let (listener, peers) = (&listener, &Mutex::default());
    let accept = || async move {
        let (stream, peer) = listener.accept().await?;
        Ok(place(peers, peer.ip()).map(|place| (stream, place)))
    };
    let answer = move |request: &Request<Incoming>| answer(request, &metrics, health.as_ref());
    serve_connections(MAX_CONNECTIONS, LONGEST, accept, answer).await;
}

/// Answers the connections that `accept` returns, so many at a time and none longer than `longest`, until
/// dropped. What comes with a connection is dropped with it.
async fn serve_connections<S, G, F>(
    connections: usize,
    longest: Duration,
    accept: impl Fn() -> F,
    answer: impl Fn(&Request<Incoming>) -> Response<Full<Bytes>> + Clone + Send + 'static,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    G: Send + 'static,
    F: Future<Output = io::Result<Option<(S, G)>>>,
{
    let slots = Arc::new(Semaphore::new(connections));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let (stream, guard) = match accept().await {
            Ok(Some(accepted)) => accepted,
            Ok(None) => continue,
            Err(error) => {
                // Out of descriptors and the like, which passes.
                tracing::warn!(%error, "accepting an HTTP connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let answer = answer.clone();
        tokio::spawn(async move {
            let _held = (slot, guard);
            let service = service_fn(move |request| {
                let response = answer(&request);
                async move { Ok::<_, Infallible>(response) }
            });
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .max_buf_size(REQUEST_BYTES)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            match tokio::time::timeout(longest, served).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "serving an HTTP connection"),
                Err(_elapsed) => tracing::debug!("an HTTP connection that lasted too long is closed"),
            }
        });
    }
}

/// A place for one more connection of a peer, held until it is dropped, unless that peer has as many as it may.
fn place(peers: &Mutex<Vec<Weak<IpAddr>>>, peer: IpAddr) -> Option<Arc<IpAddr>> {
    let mut peers = peers.lock().unwrap_or_else(PoisonError::into_inner);
    peers.retain(|place| place.strong_count() > 0);
    let taken = peers.iter().filter_map(Weak::upgrade).filter(|place| **place == peer).count();
    (taken < MOST_OF_A_PEER).then(|| {
        let place = Arc::new(peer);
        peers.push(Arc::downgrade(&place));
        place
    })
}

fn answer(request: &Request<Incoming>, metrics: &Metrics, health: &dyn Health) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered here\n".to_owned());
    }
    match request.uri().path() {
        "/metrics" => scrape(request, metrics),
        "/healthz" => health_response(health.healthy()),
        "/readyz" => health_response(health.ready()),
        _ => text(StatusCode::NOT_FOUND, "/metrics, /healthz and /readyz are here\n".to_owned()),
    }
}

fn scrape(request: &Request<Incoming>, metrics: &Metrics) -> Response<Full<Bytes>> {
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    let form = Form::wanted(accept);
    let Ok(body) = metrics.scrape(form) else {
        return text(StatusCode::INTERNAL_SERVER_ERROR, "a metric could not be written\n".to_owned());
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(form.content_type()));
    response
}

fn health_response(result: Result<(), String>) -> Response<Full<Bytes>> {
    match result {
        Ok(()) => text(StatusCode::OK, "ok\n".to_owned()),
        Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_so_many_places_and_gets_them_back() {
        let peers = Mutex::default();
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|peer| peer.parse::<IpAddr>().unwrap());
        let mut places: Vec<_> = std::iter::from_fn(|| place(&peers, one)).collect();
        assert_eq!(places.len(), MOST_OF_A_PEER);
        assert!(place(&peers, other).is_some());
        places.pop();
        assert!(place(&peers, one).is_some());
        drop(places);
        drop(place(&peers, other));
        assert_eq!(peers.lock().unwrap().len(), 1, "nothing is kept of who left");
    }
}
