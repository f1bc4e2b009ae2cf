//! The requests of a connection, one after the other, and their responses.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::sync::Mutex;

use super::body::{BodySender, ForwardedBody};
use super::fault::{self, Fault, Rewrite, is_watch};
use super::{ReceivedRequest, Shared, lock};
use crate::cluster::tls;

/// The error that aborts a connection.
const ABORTED: &str = "the proxy breaks off";

/// A client's connection.
pub(super) struct Exchange<'a> {
    shared: &'a Arc<Shared>,
    /// The connection to the server that belongs to it.
    server: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>) -> Self {
        Self { shared, server: Mutex::new(None) }
    }

    /// Returns the response to a request. An error closes the connection.
    pub(super) async fn answer(&self, request: Request<Incoming>) -> Result<Response<ForwardedBody>> {
        let path = request.uri().path_and_query().map_or("/", |it| it.as_str()).to_owned();
        let fault = fault::take(&mut lock(&self.shared.faults), request.method(), &path);
        let index = {
            let mut requests = lock(&self.shared.requests);
            let request = format!("{} {path}", request.method());
            requests.push(ReceivedRequest { at: Instant::now(), request, status: None });
            requests.len() - 1
        };
        self.shared.wait_while_silent().await;
        let answer = self.forward_request(request, is_watch(&path), fault).await?;
        self.shared.wait_while_silent().await;
        if let Some(received) = lock(&self.shared.requests).get_mut(index) {
            received.status = Some(answer.status().as_u16());
        }
        Ok(answer)
    }

    async fn forward_request(
        &self,
        request: Request<Incoming>,
        watch: bool,
        fault: Option<Fault>,
    ) -> Result<Response<ForwardedBody>> {
        match &fault {
            Some(Fault::Answer(status, headers, body)) => return build_response(*status, headers, body),
            Some(Fault::DropRequest) => bail!(ABORTED),
            Some(Fault::DelayRequest(time)) => tokio::time::sleep(*time).await,
            _ => {}
        }
        // A server that cannot be reached looks like one that closes the connection.
        let answer = self.send(request).await?;
        match &fault {
            Some(Fault::DelayResponse(time)) => tokio::time::sleep(*time).await,
            Some(Fault::Reset(0)) => bail!(ABORTED),
            _ => {}
        }
        let (mut head, incoming) = answer.into_parts();
        if matches!(fault, Some(Fault::Truncate(_) | Fault::Close(_) | Fault::Rewrite(_))) {
            head.headers.remove(CONTENT_LENGTH);
        }
        let (to_client, body) = ForwardedBody::new();
        tokio::spawn(forward_body(Arc::clone(self.shared), incoming, to_client, watch, fault));
        Ok(Response::from_parts(head, body))
    }

    async fn send(&self, request: Request<Incoming>) -> Result<Response<Incoming>> {
        let (mut head, body) = request.into_parts();
        // A body that is rewritten must not be compressed.
        head.headers.remove(ACCEPT_ENCODING);
        let body = body.collect().await.context("read a request")?.to_bytes();
        let mut server = self.server.lock().await;
        if server.as_ref().is_none_or(SendRequest::is_closed) {
            let stream = tls::open(&self.shared.to_server, self.shared.server).await?;
            let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(async move {
                // A request that waits for a response reports the error.
                let _ = connection.await;
            });
            *server = Some(sender);
        }
        let sender = server.as_mut().context("no connection")?;
        sender.ready().await?;
        Ok(sender.send_request(Request::from_parts(head, Full::new(body))).await?)
    }
}

fn build_response(
    status: u16,
    headers: &[(&'static str, String)],
    body: &Value,
) -> Result<Response<ForwardedBody>> {
    let mut answer = Response::builder().status(status).header(CONTENT_TYPE, "application/json");
    for (name, value) in headers {
        answer = answer.header(*name, value);
    }
    answer.body(ForwardedBody::whole(body.to_string())).context("make an answer up")
}

/// Passes a body on, with the fault.
async fn forward_body(
    shared: Arc<Shared>,
    body: Incoming,
    to_client: BodySender,
    watch: bool,
    fault: Option<Fault>,
) {
    let result = match fault {
        Some(Fault::Reset(bytes)) => {
            forward_bytes(&shared, body, &to_client, bytes).await.and_then(|()| Err(anyhow!(ABORTED)))
        }
        Some(Fault::Truncate(bytes)) => forward_bytes(&shared, body, &to_client, bytes).await,
        Some(Fault::Close(time)) => {
            tokio::time::timeout(time, forward_bytes(&shared, body, &to_client, usize::MAX))
                .await
                .unwrap_or(Ok(()))
        }
        Some(Fault::Rewrite(rewrite)) => forward_rewritten(&shared, body, &to_client, watch, &rewrite).await,
        _ => forward_bytes(&shared, body, &to_client, usize::MAX).await,
    };
    if let Err(error) = result {
        // The client may have closed the connection.
        let _ = to_client.send(Err(error)).await;
    }
}

/// Passes on up to `bytes` bytes. An error means that the server or the client has closed the connection.
async fn forward_bytes(
    shared: &Shared,
    mut body: Incoming,
    to_client: &BodySender,
    bytes: usize,
) -> Result<()> {
    let mut left = bytes;
    while left > 0
        && let Some(mut data) = next_data(&mut body).await?
    {
        data.truncate(left);
        left -= data.len();
        shared.wait_while_silent().await;
        to_client.send(Ok(data)).await?;
    }
    Ok(())
}

async fn next_data(body: &mut Incoming) -> Result<Option<Bytes>> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// Passes each event of a watch, or else the whole body, through the function.
async fn forward_rewritten(
    shared: &Shared,
    mut body: Incoming,
    to_client: &BodySender,
    watch: bool,
    rewrite: &Rewrite,
) -> Result<()> {
    let mut unread = BytesMut::new();
    loop {
        let data = next_data(&mut body).await?;
        let ended = data.is_none();
        unread.extend_from_slice(&data.unwrap_or_default());
        while let Some(end) = match unread.iter().position(|&byte| byte == b'\n') {
            Some(line) if watch => Some(line + 1),
            _ if ended && !unread.is_empty() => Some(unread.len()),
            _ => None,
        } {
            let piece = unread.split_to(end);
            let value = serde_json::from_slice(&piece)?;
            let ending = if watch { "\n" } else { "" };
            let text: String = (rewrite.0)(value).iter().map(|value| format!("{value}{ending}")).collect();
            if !text.is_empty() {
                shared.wait_while_silent().await;
                to_client.send(Ok(text.into())).await?;
            }
        }
        if ended {
            return Ok(());
        }
    }
}
