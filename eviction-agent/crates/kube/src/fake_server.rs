//! A server for tests, whose responses are bytes.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::access::{Access, Origin};

/// What a connection does after its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Close,
    Hang,
}

/// Heads of the requests so far.
pub(crate) type Seen = Arc<Mutex<Vec<String>>>;

/// Responds to each connection's one request by what `respond` makes of its head.
pub(crate) async fn serve(
    respond: impl Fn(&str) -> (Vec<u8>, Then) + Send + Sync + 'static,
) -> (Access, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = Seen::default();
    let (log, respond) = (Arc::clone(&seen), Arc::new(respond));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, Arc::clone(&respond), Arc::clone(&log)));
        }
    });
    (access(&url), seen)
}

async fn answer(
    mut stream: TcpStream,
    respond: Arc<impl Fn(&str) -> (Vec<u8>, Then) + Send + Sync + 'static>,
    log: Seen,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return };
        head.push(byte);
    }
    let head = String::from_utf8(head).unwrap();
    log.lock().unwrap().push(head.clone());
    let (bytes, then) = respond(&head);
    // The client may have had enough.
    let _sent = stream.write_all(&bytes).await;
    if then == Then::Hang {
        std::future::pending::<()>().await;
    }
}

/// Access without credentials.
pub(crate) fn access(url: &str) -> Access {
    let config = kube::Config::new(url.parse().unwrap());
    Access { config, token_file: None, origin: Origin::ServiceAccount }
}

/// A response of that status with that body.
pub(crate) fn json(status: u16, body: &str) -> (Vec<u8>, Then) {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    ([head.as_bytes(), body.as_bytes()].concat(), Then::Close)
}

/// The begin of a watch with those lines; it stays open.
pub(crate) fn open_watch(lines: &[&str]) -> (Vec<u8>, Then) {
    let mut bytes = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for line in lines {
        bytes.extend_from_slice(format!("{:x}\r\n{line}\n\r\n", line.len() + 1).as_bytes());
    }
    (bytes, Then::Hang)
}

/// The same, ended by the server.
pub(crate) fn ended_watch(lines: &[&str]) -> (Vec<u8>, Then) {
    let (mut bytes, _) = open_watch(lines);
    bytes.extend_from_slice(b"0\r\n\r\n");
    (bytes, Then::Close)
}
