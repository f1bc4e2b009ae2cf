//! The HTTP server of `/metrics`, `/healthz` and `/readyz`.
//!
//! It runs on hyper on the main thread, so it cannot delay the control loop.

pub(crate) mod local;

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

use crate::telemetry::health::Health;
use crate::telemetry::metrics::{Form, Metrics};

/// The maximum number of connections. A scraper needs one.
const MAX_CONNECTIONS: usize = 32;
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum size in bytes of the request line and the headers. The body is never read.
const REQUEST_BYTES: usize = 8192;
/// The maximum number of connections of one peer: a peer that does not read its responses must not block the
/// kubelet's probes.
const MAX_CONNECTIONS_PER_PEER: usize = 6;
/// The maximum duration of a connection. Each connection has one request.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves until dropped.
pub(crate) async fn serve(listener: TcpListener, metrics: Arc<Metrics>, health: Arc<Health>) {
    let (listener, peers) = (&listener, &Mutex::default());
    let accept = || async move {
        let (stream, peer) = listener.accept().await?;
        Ok(reserve_connection(peers, peer.ip()).map(|reservation| (stream, reservation)))
    };
    let respond = move |request: &Request<Incoming>| respond(request, &metrics, &health);
    serve_connections(MAX_CONNECTIONS, CONNECTION_TIMEOUT, accept, respond).await;
}

/// Answers the connections that `accept` returns: at most `connections` at a time, none longer than `timeout`,
/// until dropped. The guard that comes with a connection is dropped with it.
pub(crate) async fn serve_connections<S, G, F>(
    connections: usize,
    timeout: Duration,
    accept: impl Fn() -> F,
    respond: impl Fn(&Request<Incoming>) -> Response<Full<Bytes>> + Clone + Send + 'static,
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
                // Temporary errors, for example if there is no free file descriptor.
                tracing::warn!(%error, "cannot accept an HTTP connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let respond = respond.clone();
        tokio::spawn(async move {
            let _held = (slot, guard);
            let service = service_fn(move |request| {
                let response = respond(&request);
                async move { Ok::<_, Infallible>(response) }
            });
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .max_buf_size(REQUEST_BYTES)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            match tokio::time::timeout(timeout, served).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "an HTTP connection failed"),
                Err(_elapsed) => tracing::debug!("an HTTP connection that lasted too long is closed"),
            }
        });
    }
}

/// Reserves one more connection of a peer, unless the peer has the maximum. The reservation ends when it is
/// dropped.
fn reserve_connection(peers: &Mutex<Vec<Weak<IpAddr>>>, peer: IpAddr) -> Option<Arc<IpAddr>> {
    let mut peers = peers.lock().unwrap_or_else(PoisonError::into_inner);
    peers.retain(|reservation| reservation.strong_count() > 0);
    let taken = peers.iter().filter_map(Weak::upgrade).filter(|reservation| **reservation == peer).count();
    (taken < MAX_CONNECTIONS_PER_PEER).then(|| {
        let reservation = Arc::new(peer);
        peers.push(Arc::downgrade(&reservation));
        reservation
    })
}

fn respond(request: &Request<Incoming>, metrics: &Metrics, health: &Health) -> Response<Full<Bytes>> {
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
    response(StatusCode::OK, form.content_type(), body)
}

fn health_response(result: Result<(), String>) -> Response<Full<Bytes>> {
    match result {
        Ok(()) => text(StatusCode::OK, "ok\n".to_owned()),
        Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

pub(crate) fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    response(status, "text/plain; charset=utf-8", body)
}

pub(crate) fn response(
    status: StatusCode,
    kind: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_per_peer_are_limited_and_freed_when_dropped() {
        let peers = Mutex::default();
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|peer| peer.parse::<IpAddr>().unwrap());
        let mut reservations: Vec<_> = std::iter::from_fn(|| reserve_connection(&peers, one)).collect();
        assert_eq!(reservations.len(), MAX_CONNECTIONS_PER_PEER);
        assert!(reserve_connection(&peers, other).is_some());
        reservations.pop();
        assert!(reserve_connection(&peers, one).is_some());
        drop(reservations);
        drop(reserve_connection(&peers, other));
        assert_eq!(peers.lock().unwrap().len(), 1, "nothing is kept of who left");
    }
}
