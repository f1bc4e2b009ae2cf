//! `/metrics`, `/healthz`, `/readyz`.
//!
//! Served by hyper on the slow side: nothing here can delay a reaction.

mod exposition;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, CONTENT_TYPE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::metrics::Metrics;

/// More would only be somebody's mistake; a scraper needs one.
const MAX_CONNECTIONS: usize = 32;
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// What `/healthz` and `/readyz` answer from.
pub trait Health: Send + Sync + 'static {
    /// `Err` with the reason if the loop has not turned lately.
    ///
    /// # Errors
    /// The reason, as the answer's text.
    fn healthy(&self) -> Result<(), String>;
    /// `Err` with the reason while pods are not known or no source works.
    ///
    /// # Errors
    /// The reason, as the answer's text.
    fn ready(&self) -> Result<(), String>;
    /// Called before the metrics are written: what is counted elsewhere is carried over.
    fn refresh(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// Takes the address; a port of 0 lets the system choose.
///
/// # Errors
/// If the address cannot be bound.
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Serves until dropped.
pub async fn serve(listener: TcpListener, metrics: Arc<Metrics>, health: Arc<dyn Health>) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors and the like: passes, or the next scrape tells.
                tracing::warn!(%error, "accepting an HTTP connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let metrics = Arc::clone(&metrics);
        let health = Arc::clone(&health);
        tokio::spawn(async move {
            let _slot = slot;
            let service = service_fn(move |request| {
                let (metrics, health) = (Arc::clone(&metrics), Arc::clone(&health));
                async move { Ok::<_, Infallible>(answer(&request, &metrics, health.as_ref()).await) }
            });
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            if let Err(error) = served {
                tracing::debug!(%error, "serving an HTTP connection");
            }
        });
    }
}

async fn answer(
    request: &Request<Incoming>,
    metrics: &Metrics,
    health: &dyn Health,
) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered here\n".to_owned());
    }
    match request.uri().path() {
        "/metrics" => {
            health.refresh().await;
            scrape(request, metrics)
        }
        "/healthz" => verdict(health.healthy()),
        "/readyz" => verdict(health.ready()),
        _ => text(StatusCode::NOT_FOUND, "/metrics, /healthz and /readyz are here\n".to_owned()),
    }
}

fn scrape(request: &Request<Incoming>, metrics: &Metrics) -> Response<Full<Bytes>> {
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    let Ok(body) = metrics.encode() else {
        return text(StatusCode::INTERNAL_SERVER_ERROR, "a metric could not be written\n".to_owned());
    };
    let form = exposition::Form::wanted(accept);
    let mut response = Response::new(Full::new(Bytes::from(form.render(body))));
    response.headers_mut().insert(CONTENT_TYPE, form.content_type());
    response
}

fn verdict(result: Result<(), String>) -> Response<Full<Bytes>> {
    match result {
        Ok(()) => text(StatusCode::OK, "ok\n".to_owned()),
        Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
