//! The body of a response, which is passed on in parts.

use std::pin::Pin;
use std::task::{Context, Poll};

use anyhow::{Error, Result};
use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;

/// A body that is passed on. An error aborts the connection in the middle of the body.
#[derive(Debug)]
pub(super) struct ForwardedBody(mpsc::Receiver<Result<Bytes>>);

/// The sender of the parts of a body.
pub(super) type BodySender = mpsc::Sender<Result<Bytes>>;

impl ForwardedBody {
    pub(super) fn new() -> (BodySender, Self) {
        let (sender, body) = mpsc::channel(1);
        (sender, Self(body))
    }

    /// Creates a complete body.
    pub(super) fn whole(text: String) -> Self {
        let (sender, body) = Self::new();
        // The channel has room for one part, and the receiver exists.
        let _ = sender.try_send(Ok(text.into()));
        body
    }
}

impl Body for ForwardedBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>>>> {
        self.0.poll_recv(context).map(|data| data.map(|data| data.map(Frame::data)))
    }
}
