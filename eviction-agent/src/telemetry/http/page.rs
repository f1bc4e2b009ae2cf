//! Server of one page and its data on loopback, for a browser on this machine.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use tokio::net::TcpListener;

use super::{response, serve_connections, text};

const CONNECTIONS: usize = 16;
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
const HEADERS: [(HeaderName, &str); 4] = [
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("x-content-type-options"), "nosniff"),
    (HeaderName::from_static("x-frame-options"), "DENY"),
    (HeaderName::from_static("referrer-policy"), "no-referrer"),
];

/// The requested resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageRequest {
    Page,
    Data,
}

/// Serves until dropped. The paths are `/TOKEN/` and `/TOKEN/data.json`, because other users of the
/// machine do not know the token.
pub(crate) async fn serve(
    listener: TcpListener,
    token: String,
    body: impl Fn(PageRequest) -> Result<String, String> + Clone + Send + 'static,
) {
    let listener = &listener;
    let accept = || async move {
        let (stream, peer) = listener.accept().await?;
        io::Result::Ok(peer.ip().is_loopback().then_some((stream, ())))
    };
    let respond = move |request: &Request<Incoming>| {
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        let mut response = match parse_request(request, host, &token) {
            Err((status, why)) => text(status, why.to_owned()),
            Ok(requested) => match body(requested) {
                Ok(body) => response(StatusCode::OK, content_type(requested), body),
                Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
            },
        };
        for (name, value) in HEADERS {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    };
    serve_connections(CONNECTIONS, CONNECTION_TIMEOUT, accept, respond).await;
}

/// The status and the text of a refused request.
type Refusal = (StatusCode, &'static str);

fn parse_request<B>(request: &Request<B>, host: Option<&str>, token: &str) -> Result<PageRequest, Refusal> {
    if !host.is_some_and(is_loopback) {
        // The Host of a page of another site, whose name was made to resolve to loopback (DNS rebinding).
        return Err((StatusCode::FORBIDDEN, "only this machine is served\n"));
    }
    if request.method() != Method::GET {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "only GET is answered here\n"));
    }
    let path = request.uri().path().strip_prefix('/').and_then(|path| path.strip_prefix(token));
    match path {
        Some("/") => Ok(PageRequest::Page),
        Some("/data.json") => Ok(PageRequest::Data),
        _ => Err((StatusCode::NOT_FOUND, "the address that was printed has the page\n")),
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

fn content_type(requested: PageRequest) -> &'static str {
    match requested {
        PageRequest::Page => "text/html; charset=utf-8",
        PageRequest::Data => "application/json",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(method: &str, path: &str, host: Option<&str>) -> u16 {
        let request = Request::builder().method(method).uri(path).body(()).unwrap();
        parse_request(&request, host, "secret").map_or_else(|(status, _)| status.as_u16(), |_| 200)
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
