//! A watch, read one event after the other.

use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::BytesMut;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::Value;

use super::background::Background;

/// An open watch.
#[derive(Debug)]
pub struct Watch {
    background: Background,
    body: Incoming,
    unread: BytesMut,
}

impl Watch {
    pub(super) fn new(background: Background, body: Incoming) -> Self {
        Self { background, body, unread: BytesMut::new() }
    }

    /// Returns the next event; `None` if none comes within `patience`, or the server has ended the watch.
    ///
    /// # Errors
    /// If the connection breaks, or an event is not JSON.
    pub fn next(&mut self, patience: Duration) -> Result<Option<Value>> {
        let Self { background, body, unread } = self;
        let line = background.run(async {
            tokio::time::timeout(patience, async {
                loop {
                    if let Some(end) = unread.iter().position(|&byte| byte == b'\n') {
                        return Ok(Some(unread.split_to(end + 1)));
                    }
                    match body.frame().await {
                        None => return Ok(None),
                        Some(frame) => {
                            if let Ok(data) = frame?.into_data() {
                                unread.extend_from_slice(&data);
                            }
                        }
                    }
                }
            })
            .await
        });
        match line {
            Err(_) => Ok(None),
            Ok(Err(error)) => {
                let error: hyper::Error = error;
                Err(error).context("read a watch")
            }
            Ok(Ok(None)) => Ok(None),
            Ok(Ok(Some(line))) => serde_json::from_slice(&line).map(Some).context("an event of a watch"),
        }
    }
}
