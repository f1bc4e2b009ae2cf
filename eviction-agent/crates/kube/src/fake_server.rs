//! A server for tests that responds with raw bytes.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::access::Access;

/// What a connection does after its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterResponse {
    Close,
    Hang,
}

/// The heads of the requests so far.
pub(crate) type RequestHeads = Arc<Mutex<Vec<String>>>;

/// Starts a server that handles one request per connection. `respond` returns the response to the request's
/// head.
pub(crate) async fn serve(
    respond: impl Fn(&str) -> (Vec<u8>, AfterResponse) + Send + Sync + 'static,
) -> (Access, RequestHeads) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = RequestHeads::default();
    let (log, respond) = (Arc::clone(&seen), Arc::new(respond));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(handle_connection(stream, Arc::clone(&respond), Arc::clone(&log)));
        }
    });
    (access(&url), seen)
}

async fn handle_connection(
    mut stream: TcpStream,
    respond: Arc<impl Fn(&str) -> (Vec<u8>, AfterResponse) + Send + Sync + 'static>,
    log: RequestHeads,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return };
        head.push(byte);
    }
    let head = String::from_utf8(head).unwrap();
    log.lock().unwrap().push(head.clone());
    let (bytes, then) = respond(&head);
    // The client may have closed the connection.
    let _sent = stream.write_all(&bytes).await;
    if then == AfterResponse::Hang {
        std::future::pending::<()>().await;
    }
}

/// Returns an access without credentials.
pub(crate) fn access(url: &str) -> Access {
    let config = kube::Config::new(url.parse().unwrap());
    Access { config, token: None, origin: "a test".to_owned() }
}

/// Returns a response with this status and body.
pub(crate) fn json(status: u16, body: &str) -> (Vec<u8>, AfterResponse) {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    ([head.as_bytes(), body.as_bytes()].concat(), AfterResponse::Close)
}

/// Returns the start of a watch with these lines; it stays open.
pub(crate) fn open_watch(lines: &[&str]) -> (Vec<u8>, AfterResponse) {
    let mut bytes = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for line in lines {
        bytes.extend_from_slice(format!("{:x}\r\n{line}\n\r\n", line.len() + 1).as_bytes());
    }
    (bytes, AfterResponse::Hang)
}

/// Returns a watch with these lines that the server ends.
pub(crate) fn ended_watch(lines: &[&str]) -> (Vec<u8>, AfterResponse) {
    let (mut bytes, _) = open_watch(lines);
    bytes.extend_from_slice(b"0\r\n\r\n");
    (bytes, AfterResponse::Close)
}
