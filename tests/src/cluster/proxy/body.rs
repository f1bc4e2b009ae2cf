//! The body of an answer, passed on as it comes.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;

/// The connection is to be given up in the middle of a body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Broken;

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the proxy breaks off")
    }
}

impl std::error::Error for Broken {}

/// What is passed on.
#[derive(Debug)]
pub(super) struct Passed(mpsc::Receiver<Result<Bytes, Broken>>);

/// Where it comes from.
pub(super) type Source = mpsc::Sender<Result<Bytes, Broken>>;

impl Passed {
    pub(super) fn new() -> (Source, Self) {
        let (source, body) = mpsc::channel(1);
        (source, Self(body))
    }

    /// A body that is known.
    pub(super) fn whole(text: String) -> Self {
        let (source, body) = Self::new();
        // There is room for one, and the receiver is here.
        let _ = source.try_send(Ok(text.into()));
        body
    }
}

impl Body for Passed {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        self.0.poll_recv(context).map(|data| data.map(|data| data.map(Frame::data)))
    }
}
