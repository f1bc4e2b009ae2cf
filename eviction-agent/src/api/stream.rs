//! An answer that is read as it comes.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::Response;
use hyper::body::Incoming;

use super::answer::{Answer, retry_after};
use super::connection::Sender;
use super::error::RequestError;

/// An answer whose head is there. Its connection ends with it.
#[derive(Debug)]
pub struct Stream {
    status: u16,
    retry_after: Option<Duration>,
    body: Incoming,
    /// The connection ends when nothing can be sent into it any more.
    _sender: Sender,
}

impl Stream {
    pub(super) fn new(response: Response<Incoming>, sender: Sender) -> Self {
        let (head, body) = response.into_parts();
        Self { status: head.status.as_u16(), retry_after: retry_after(&head.headers), body, _sender: sender }
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The next bytes; nothing at the end.
    ///
    /// # Errors
    /// If the connection broke before the end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, RequestError> {
        chunk(&mut self.body).await
    }

    /// All that is left, as for an error, which is small.
    ///
    /// # Errors
    /// If the connection broke before the end, or it is more than `largest`.
    pub async fn rest(mut self, largest: usize) -> Result<Answer, RequestError> {
        let body = collect(&mut self.body, largest).await?;
        Ok(Answer { status: self.status, retry_after: self.retry_after, body })
    }
}

async fn chunk(body: &mut Incoming) -> Result<Option<Bytes>, RequestError> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| RequestError::Broken(error.into()))?;
        // Trailers say nothing here.
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

pub(super) async fn collect(body: &mut Incoming, largest: usize) -> Result<Bytes, RequestError> {
    let Some(first) = chunk(body).await? else { return Ok(Bytes::new()) };
    if first.len() > largest {
        return Err(RequestError::TooLarge { limit: largest });
    }
    let Some(second) = chunk(body).await? else { return Ok(first) };
    let mut all = BytesMut::from(first);
    let mut next = Some(second);
    while let Some(chunk_) = next {
        if all.len().saturating_add(chunk_.len()) > largest {
            return Err(RequestError::TooLarge { limit: largest });
        }
        all.extend_from_slice(&chunk_);
        next = chunk(body).await?;
    }
    Ok(all.freeze())
}
