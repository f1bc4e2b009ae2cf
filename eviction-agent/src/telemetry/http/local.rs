//! The local API: `/v1/state`, `/v1/events` and `/v1/explain` on a Unix socket, for root or the agent's own user.
//!
//! It is served on the main thread, so the cost of clients is limited: one request per connection, few
//! connections at a time, a limited rate, and a deadline for each. Further connections wait in the kernel's
//! queue.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use eviction_core::signal::Signal;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use tokio::net::{UnixListener, UnixStream};

use super::{response, serve_connections};
use crate::telemetry::live::{Live, lock};
use crate::telemetry::metrics::Metrics;

/// The maximum number of connections at a time.
const CONNECTIONS: usize = 8;
/// The pause between two connections: at most 200 per second.
const PAUSE: Duration = Duration::from_millis(5);
/// The maximum duration of a connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);

const JSON: &str = "application/json";

/// A listening socket. Dropping it removes its file.
#[derive(Debug)]
pub(crate) struct LocalSocket {
    listener: UnixListener,
    path: PathBuf,
    /// The inode of the socket file, which another agent may have replaced.
    inode: u64,
}

impl LocalSocket {
    /// Listens at this path, and replaces the socket of a process that has ended. Only the user of the agent can
    /// connect (mode 0600).
    ///
    /// # Errors
    /// If another process listens there, or the socket cannot be created.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there"));
        }
        // An existing file is replaced only if it is a socket, which is then the one of an ended agent.
        if std::fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket()) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it exists and is no socket"));
        }
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        // The socket has another name until its mode is set, so that no client can connect in between.
        let new = path.with_extension("new");
        drop(std::fs::remove_file(&new));
        let listener = UnixListener::bind(&new)?;
        std::fs::set_permissions(&new, Permissions::from_mode(0o600))?;
        std::fs::rename(&new, path)?;
        let inode = std::fs::symlink_metadata(path)?.ino();
        Ok(Self { listener, path: path.to_owned(), inode })
    }

    /// Returns the listener of the connections.
    pub(crate) fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Serves until dropped.
    pub(crate) async fn serve(self, live: Arc<Mutex<Live>>, metrics: Arc<Metrics>) {
        let listener = &self.listener;
        let accept = || async move {
            tokio::time::sleep(PAUSE).await;
            let (stream, _) = listener.accept().await?;
            Ok(is_allowed_peer(&stream).then_some((stream, ())))
        };
        let respond = move |request: &Request<Incoming>| respond(request, &live, &metrics);
        serve_connections(CONNECTIONS, CONNECTION_TIMEOUT, accept, respond).await;
    }
}

impl Drop for LocalSocket {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// Allows root and the agent's user, even if the mode of the file was changed.
fn is_allowed_peer(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    stream.peer_cred().is_ok_and(|peer| peer.uid() == 0 || peer.uid() == own)
}

fn respond(request: &Request<Incoming>, live: &Mutex<Live>, metrics: &Metrics) -> Response<Full<Bytes>> {
    if request.method() != Method::GET {
        return error_response(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered here");
    }
    let query = request.uri().query().unwrap_or_default();
    let value = |name: &str| {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next()
    };
    match request.uri().path() {
        "/v1/state" => response(StatusCode::OK, JSON, lock(live).state(metrics)),
        "/v1/events" => match lock(live).events(value("since").unwrap_or("0"), value("agent_start")) {
            Some(lines) => response(StatusCode::OK, "application/jsonl", lines),
            None => error_response(
                StatusCode::BAD_REQUEST,
                "since: must be a number or a time such as 2026-01-02T03:04:05Z",
            ),
        },
        "/v1/explain" => {
            let Some(signal) = value("signal").map_or(Some(Signal::MemoryAvailable), Signal::from_name)
            else {
                return error_response(StatusCode::BAD_REQUEST, "signal: no such eviction signal");
            };
            match lock(live).explain(value("pod"), signal) {
                Ok(explanation) => {
                    response(StatusCode::OK, JSON, serde_json::to_vec(&explanation).unwrap_or_default())
                }
                Err((status, error)) => error_response(status, &error),
            }
        }
        _ => error_response(StatusCode::NOT_FOUND, "/v1/state, /v1/events and /v1/explain are here"),
    }
}

fn error_response(status: StatusCode, error: &str) -> Response<Full<Bytes>> {
    response(status, JSON, format!("{}\n", serde_json::json!({"error": error})))
}

#[cfg(test)]
mod tests;
