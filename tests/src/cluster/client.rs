//! A simple HTTPS client of the API server: JSON requests and responses over one open connection. It shares no
//! code with the agent, so that checks of the agent do not share its faults.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio_rustls::TlsConnector;

use super::background::Background;
use super::stream::Watch;
use super::tls;

/// The timeout for a server that hangs; none of these requests takes long. etcd's own timeout is a minute.
const GUARD: Duration = Duration::from_secs(90);

/// A client of one server, with one token.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    background: Background,
    address: SocketAddr,
    tls: TlsConnector,
    token: String,
    /// The open connection between two requests.
    idle: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("address", &self.0.address).finish_non_exhaustive()
    }
}

/// The kind of a `PATCH`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patch {
    /// RFC 7386.
    Merge,
    /// RFC 6902.
    Json,
    /// Kubernetes' own, which merges lists by their keys.
    Strategic,
}

impl Patch {
    const fn content_type(self) -> &'static str {
        match self {
            Self::Merge => "application/merge-patch+json",
            Self::Json => "application/json-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
        }
    }
}

/// A response of the server.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The request, for errors.
    request_line: String,
    /// The HTTP status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body; a string if it is not JSON.
    pub body: Value,
}

impl Answer {
    /// Returns the body, if the request succeeded.
    ///
    /// # Errors
    /// If it did not, with the server's message.
    pub fn ok(self) -> Result<Value> {
        if !(200..300).contains(&self.status) {
            let message = self.body.get("message").unwrap_or(&self.body);
            bail!("{}: {} {message}", self.request_line, self.status);
        }
        Ok(self.body)
    }

    /// Returns `reason` of the `Status` that refuses; empty if there is none.
    pub fn reason(&self) -> &str {
        self.body.get("reason").and_then(Value::as_str).unwrap_or_default()
    }
}

impl Client {
    pub(super) fn new(background: &Background, port: u16, ca_pem: &str, token: &str) -> Result<Self> {
        Ok(Self(Arc::new(Inner {
            background: background.clone(),
            address: (Ipv4Addr::LOCALHOST, port).into(),
            tls: tls::connector(ca_pem)?,
            token: token.to_owned(),
            idle: Mutex::new(None),
        })))
    }

    /// Sends a `GET`.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn get(&self, path: &str) -> Result<Answer> {
        self.send(Method::GET, path, "", Bytes::new())
    }

    /// Sends a `POST` of an object.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn post(&self, path: &str, body: &Value) -> Result<Answer> {
        self.send(Method::POST, path, "application/json", body.to_string())
    }

    /// Sends a `PUT` of an object.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn put(&self, path: &str, body: &Value) -> Result<Answer> {
        self.send(Method::PUT, path, "application/json", body.to_string())
    }

    /// Sends a `DELETE`, with `DeleteOptions` or without (`Value::Null`).
    ///
    /// # Errors
    /// If there is no answer.
    pub fn delete(&self, path: &str, options: &Value) -> Result<Answer> {
        let body = if options.is_null() { String::new() } else { options.to_string() };
        self.send(Method::DELETE, path, "application/json", body)
    }

    /// Sends a `PATCH`.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn patch(&self, patch: Patch, path: &str, body: &Value) -> Result<Answer> {
        self.send(Method::PATCH, path, patch.content_type(), body.to_string())
    }

    /// Starts a watch. The path includes the query, with `watch=true`.
    ///
    /// # Errors
    /// If there is no answer, or its status is not 200.
    pub fn watch(&self, path: &str) -> Result<Watch> {
        let request_line = format!("GET {path}");
        let started = self.run(&request_line, async {
            // A watch lasts, so it has its own connection.
            let mut sender = self.0.connect().await?;
            let request = self.0.request(Method::GET, path, "", Bytes::new())?;
            Ok(sender.send_request(request).await?)
        })?;
        if started.status() != 200 {
            self.run(&request_line, read(request_line.clone(), started))?.ok()?;
            bail!("{request_line}: no watch");
        }
        Ok(Watch::new(self.0.background.clone(), started.into_body()))
    }

    fn send(&self, method: Method, path: &str, kind: &str, body: impl Into<Bytes>) -> Result<Answer> {
        let request_line = format!("{method} {path}");
        let request = self.0.request(method, path, kind, body.into())?;
        self.run(&request_line, async {
            let open = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
            let mut sender = match open.filter(|sender| sender.is_ready()) {
                Some(sender) => sender,
                None => self.0.connect().await?,
            };
            let answer = read(request_line.clone(), sender.send_request(request).await?).await?;
            *self.0.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
            Ok(answer)
        })
    }

    fn run<T>(&self, request_line: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        let bounded = async { tokio::time::timeout(GUARD, work).await };
        self.0
            .background
            .run(bounded)
            .unwrap_or_else(|_| Err(anyhow!("no answer within {} s", GUARD.as_secs())))
            .with_context(|| request_line.to_owned())
    }
}

impl Inner {
    fn request(&self, method: Method, path: &str, kind: &str, body: Bytes) -> Result<Request<Full<Bytes>>> {
        let mut request = Request::builder().method(method).uri(path).header(HOST, self.address.to_string());
        if !self.token.is_empty() {
            request = request.header(AUTHORIZATION, format!("Bearer {}", self.token));
        }
        if !kind.is_empty() {
            request = request.header(CONTENT_TYPE, kind);
        }
        request.body(Full::new(body)).with_context(|| format!("ask for {path}"))
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>> {
        let stream = tls::open(&self.tls, self.address).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        self.background.handle().spawn(async move {
            // A request that waits for a response reports a broken connection.
            let _ = connection.await;
        });
        Ok(sender)
    }
}

async fn read(request_line: String, answer: Response<Incoming>) -> Result<Answer> {
    let (head, body) = answer.into_parts();
    let body = body.collect().await.context("read the answer")?.to_bytes();
    let body = serde_json::from_slice(&body)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&body).into_owned()));
    Ok(Answer { request_line, status: head.status.as_u16(), headers: head.headers, body })
}
