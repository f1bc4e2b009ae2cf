//! One request after the other of a connection, and their answers.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::sync::Mutex;

use super::body::{Broken, Passed, Source};
use super::fault::{Fault, Rewrite, is_watch};
use super::{Seen, Shared, locked};
use crate::cluster::tls;

/// A client's connection.
pub(super) struct Exchange<'a> {
    shared: &'a Arc<Shared>,
    /// The connection to the server that goes with it.
    server: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>) -> Self {
        Self { shared, server: Mutex::new(None) }
    }

    /// An error closes the connection.
    pub(super) async fn answer(&self, request: Request<Incoming>) -> Result<Response<Passed>, Broken> {
        let path = request.uri().path_and_query().map_or("/", |it| it.as_str()).to_owned();
        let fault = locked(&self.shared.faults).take(request.method(), &path);
        let place = {
            let mut seen = locked(&self.shared.seen);
            let request = format!("{} {path}", request.method());
            seen.push(Seen { at: Instant::now(), request, status: None });
            seen.len() - 1
        };
        self.shared.passable().await;
        let answer = self.pass(request, is_watch(&path), fault).await?;
        self.shared.passable().await;
        if let Some(seen) = locked(&self.shared.seen).get_mut(place) {
            seen.status = Some(answer.status().as_u16());
        }
        Ok(answer)
    }

    async fn pass(
        &self,
        request: Request<Incoming>,
        watch: bool,
        fault: Option<Fault>,
    ) -> Result<Response<Passed>, Broken> {
        match &fault {
            Some(Fault::Answer(status, headers, body)) => {
                return made_up(*status, headers, body).map_err(|_| Broken);
            }
            Some(Fault::Lost) => return Err(Broken),
            Some(Fault::Slow(time)) => tokio::time::sleep(*time).await,
            _ => {}
        }
        // A server that cannot be reached is one that closes the connection.
        let answer = self.send(request).await.map_err(|_| Broken)?;
        match &fault {
            Some(Fault::Late(time)) => tokio::time::sleep(*time).await,
            Some(Fault::Reset(0)) => return Err(Broken),
            _ => {}
        }
        let (mut head, incoming) = answer.into_parts();
        if matches!(fault, Some(Fault::Truncate(_) | Fault::Close(_) | Fault::Rewrite(_))) {
            head.headers.remove(CONTENT_LENGTH);
        }
        let (source, body) = Passed::new();
        tokio::spawn(pump(Arc::clone(self.shared), incoming, source, watch, fault));
        Ok(Response::from_parts(head, body))
    }

    async fn send(&self, request: Request<Incoming>) -> Result<Response<Incoming>> {
        let (mut head, body) = request.into_parts();
        // What is to be rewritten has to be read.
        head.headers.remove(ACCEPT_ENCODING);
        let body = body.collect().await.context("read a request")?.to_bytes();
        let mut server = self.server.lock().await;
        if server.as_ref().is_none_or(SendRequest::is_closed) {
            let stream = tls::open(&self.shared.to_server, self.shared.server).await?;
            let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(async move {
                // Whoever waits for an answer hears of it.
                let _ = connection.await;
            });
            *server = Some(sender);
        }
        let sender = server.as_mut().context("no connection")?;
        sender.ready().await?;
        Ok(sender.send_request(Request::from_parts(head, Full::new(body))).await?)
    }
}

fn made_up(status: u16, headers: &[(&'static str, String)], body: &Value) -> Result<Response<Passed>> {
    let mut answer = Response::builder().status(status).header(CONTENT_TYPE, "application/json");
    for (name, value) in headers {
        answer = answer.header(*name, value);
    }
    answer.body(Passed::whole(body.to_string())).context("make an answer up")
}

/// Passes a body on, with what goes wrong on the way.
async fn pump(shared: Arc<Shared>, body: Incoming, source: Source, watch: bool, fault: Option<Fault>) {
    let result = match fault {
        Some(Fault::Reset(bytes)) => match pass_some(&shared, body, &source, bytes).await {
            Ok(()) => Err(Broken),
            broken => broken,
        },
        Some(Fault::Truncate(bytes)) => pass_some(&shared, body, &source, bytes).await,
        Some(Fault::Close(time)) => {
            tokio::time::timeout(time, pass_some(&shared, body, &source, usize::MAX)).await.unwrap_or(Ok(()))
        }
        Some(Fault::Rewrite(rewrite)) => rewritten(&shared, body, &source, watch, &rewrite).await,
        _ => pass_some(&shared, body, &source, usize::MAX).await,
    };
    if result.is_err() {
        // The client may have gone.
        let _ = source.send(Err(Broken)).await;
    }
}

/// Passes so many bytes on. An error: the server broke off, or the client has gone.
async fn pass_some(shared: &Shared, mut body: Incoming, source: &Source, bytes: usize) -> Result<(), Broken> {
    let mut left = bytes;
    while left > 0
        && let Some(mut data) = next(&mut body).await?
    {
        data.truncate(left);
        left -= data.len();
        shared.passable().await;
        source.send(Ok(data)).await.map_err(|_| Broken)?;
    }
    Ok(())
}

async fn next(body: &mut Incoming) -> Result<Option<Bytes>, Broken> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(|_| Broken)?.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// Each event of a watch, or else the whole body, is handed to the function.
async fn rewritten(
    shared: &Shared,
    mut body: Incoming,
    source: &Source,
    watch: bool,
    rewrite: &Rewrite,
) -> Result<(), Broken> {
    let mut unread = BytesMut::new();
    loop {
        let data = next(&mut body).await?;
        let ended = data.is_none();
        unread.extend_from_slice(&data.unwrap_or_default());
        while let Some(end) = match unread.iter().position(|&byte| byte == b'\n') {
            Some(line) if watch => Some(line + 1),
            _ if ended && !unread.is_empty() => Some(unread.len()),
            _ => None,
        } {
            let piece = unread.split_to(end);
            let value = serde_json::from_slice(&piece).map_err(|_| Broken)?;
            let ending = if watch { "\n" } else { "" };
            let text: String = (rewrite.0)(value).iter().map(|value| format!("{value}{ending}")).collect();
            if !text.is_empty() {
                shared.passable().await;
                source.send(Ok(text.into())).await.map_err(|_| Broken)?;
            }
        }
        if ended {
            return Ok(());
        }
    }
}
