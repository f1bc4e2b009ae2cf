//! Server of a report and its data on loopback, for a browser on this machine.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::net::TcpListener;

use super::Report;
use crate::telemetry::http::{response, serve_connections, text};

const CONNECTIONS: usize = 16;
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
const HEADERS: [(HeaderName, &str); 4] = [
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("x-content-type-options"), "nosniff"),
    (HeaderName::from_static("x-frame-options"), "DENY"),
    (HeaderName::from_static("referrer-policy"), "no-referrer"),
];

/// The current report, or the error because of which there is none.
pub(crate) type CurrentReport = Arc<Mutex<Result<Report, String>>>;

/// Serves until dropped. The paths are `/TOKEN/` and `/TOKEN/data.json`, because other users of the
/// machine do not know the token.
pub(crate) async fn serve(listener: TcpListener, token: String, report: CurrentReport) {
    let listener = &listener;
    let accept = || async move {
        let (stream, peer) = listener.accept().await?;
        io::Result::Ok(peer.ip().is_loopback().then_some((stream, ())))
    };
    let respond = move |request: &Request<Incoming>| {
        let mut response = respond(request, &token, &report);
        for (name, value) in HEADERS {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    };
    serve_connections(CONNECTIONS, CONNECTION_TIMEOUT, accept, respond).await;
}

fn respond<B>(request: &Request<B>, token: &str, report: &CurrentReport) -> Response<Full<Bytes>> {
    let refuse = |status, why: &str| text(status, format!("{why}\n"));
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    if !host.is_some_and(is_loopback) {
        // The Host of a page of another site, whose name was made to resolve to loopback (DNS rebinding).
        return refuse(StatusCode::FORBIDDEN, "only this machine is served");
    }
    if request.method() != Method::GET {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered here");
    }
    let report = || report.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let path = request.uri().path().strip_prefix('/').and_then(|path| path.strip_prefix(token));
    let (kind, body) = match path {
        Some("/") => {
            let page = report().and_then(|report| report.html().map_err(|error| error.to_string()));
            ("text/html; charset=utf-8", page)
        }
        Some("/data.json") => ("application/json", report().map(|report| report.json())),
        _ => return refuse(StatusCode::NOT_FOUND, "the address that was printed has the page"),
    };
    match body {
        Ok(body) => response(StatusCode::OK, kind, body),
        Err(why) => refuse(StatusCode::SERVICE_UNAVAILABLE, &why),
    }
}

/// Returns whether a Host header names this machine by a loopback address or as localhost.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(address, _)| address),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|it| it.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(method: &str, path: &str, host: Option<&str>) -> u16 {
        let request = Request::builder().method(method).uri(path);
        let request = host.into_iter().fold(request, |request, host| request.header(HOST, host));
        let report = Arc::new(Mutex::new(Ok(Report::default())));
        respond(&request.body(()).unwrap(), "secret", &report).status().as_u16()
    }

    #[test]
    fn only_loopback_requests_with_the_token_are_served() {
        for host in ["127.0.0.1:8090", "localhost", "LocalHost:1", "[::1]:8090", "127.1.2.3"] {
            assert_eq!(status("GET", "/secret/", Some(host)), 200, "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8090",
            "10.0.0.1",
            "[fe80::1]",
            "[::1",
            "",
            "127.0.0.1.evil.example",
        ] {
            assert_eq!(status("GET", "/secret/", Some(host)), 403, "{host}");
        }
        assert_eq!(status("GET", "/secret/", None), 403);
        let host = Some("localhost");
        assert_eq!(status("GET", "/secret/data.json", host), 200);
        assert_eq!(status("POST", "/secret/", host), 405);
        for path in ["/", "/secret", "/other/", "/data.json", "/secret/x"] {
            assert_eq!(status("GET", path, host), 404, "{path}");
        }
    }
}
