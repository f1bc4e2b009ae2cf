//! Client of the local API of a running agent.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::de::DeserializeOwned;

use crate::daemon::Failure;

/// The timeout of a request: longer than the agent takes for its longest response to its maximum
/// number of clients.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum length of a response in bytes.
const MAX_RESPONSE_BYTES: u64 = 16 << 20;

/// Where the agent listens.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct SocketArgs {
    /// Unix socket of the running agent
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub(super) socket: PathBuf,
}

/// The socket of an agent that runs with the manifests.
const DEFAULT_SOCKET: &str = "/run/eviction-agent/agent.sock";

impl SocketArgs {
    /// Returns whether the socket is the default one.
    pub(super) fn is_default(&self) -> bool {
        self.socket == Path::new(DEFAULT_SOCKET)
    }

    /// Returns whether a process listens at the socket, as far as this user can see.
    pub(super) fn has_agent(&self) -> bool {
        let absent = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
        };
        !UnixStream::connect(&self.socket).is_err_and(|error| absent(&error))
    }

    /// Sends a GET request and returns the body of the response.
    ///
    /// # Errors
    /// If no agent answers, or the error that the agent returns.
    pub(super) fn get(&self, target: &str) -> Result<String, Failure> {
        let path = self.socket.display();
        let failed = |error: io::Error| {
            let failure = Failure::because(format!("ask the agent at {path}"), &error);
            failure.help("is the agent running, with --socket or --state-dir? its socket is for root alone")
        };
        let (status, body) = send_request(&self.socket, target).map_err(failed)?;
        if status == 200 {
            return Ok(body);
        }
        let response = serde_json::from_str::<serde_json::Value>(&body).unwrap_or_default();
        let error = response.get("error").and_then(|error| error.as_str()).unwrap_or("an invalid answer");
        Err(Failure::failed(format!("ask the agent: {error}")))
    }

    /// Sends a GET request and returns the decoded response.
    ///
    /// # Errors
    /// As for [`get`](Self::get), or if the response has another format, because the agent has
    /// another version.
    pub(super) fn get_json<T: DeserializeOwned>(&self, target: &str) -> Result<T, Failure> {
        let body = self.get(target)?;
        serde_json::from_str(&body).map_err(|error| Failure::because("read the agent's answer", &error))
    }
}

/// Sends a GET request. Returns the status and the body of the response.
fn send_request(path: &Path, target: &str) -> io::Result<(u16, String)> {
    // The target must not end the request line.
    if target.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a name has no white space"));
    }
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    // The agent closes the connection at the end of the response.
    stream.write_all(format!("GET {target} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut response = String::new();
    stream.take(MAX_RESPONSE_BYTES).read_to_string(&mut response)?;
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "this is not a response of an agent");
    let (head, body) = response.split_once("\r\n\r\n").ok_or_else(invalid)?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(invalid)?;
    Ok((status, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn get_with_response(response: &'static str) -> Result<String, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("agent.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 64];
            let length = stream.read(&mut request).unwrap();
            stream.write_all(response.as_bytes()).unwrap();
            String::from_utf8(request[..length].to_vec()).unwrap()
        });
        let got = SocketArgs { socket }.get("/v1/explain?pod=a/b");
        assert_eq!(server.join().unwrap(), "GET /v1/explain?pod=a/b HTTP/1.0\r\n\r\n");
        got
    }

    fn error(got: Result<String, Failure>) -> String {
        got.unwrap_err().report().0
    }

    #[test]
    fn get_returns_the_body_or_the_error_in_it() {
        assert_eq!(get_with_response("HTTP/1.0 200 OK\r\na: b\r\n\r\n{}").unwrap(), "{}");
        let refused = error(get_with_response("HTTP/1.0 404 Not Found\r\n\r\n{\"error\":\"no such pod\"}"));
        assert_eq!(refused, "error: ask the agent: no such pod\n");
        for response in ["", "what?", "HTTP/1.0\r\n\r\n", "HTTP/1.0 x\r\n\r\n"] {
            assert!(
                error(get_with_response(response)).contains("this is not a response of an agent"),
                "{response}"
            );
        }
    }

    #[test]
    fn white_space_in_a_target_is_rejected() {
        let socket = SocketArgs { socket: "/nowhere".into() };
        assert!(error(socket.get("/v1/explain?pod=a HTTP/1.0\r\n\r\nGET /")).contains("no white space"));
        assert!(error(socket.get("/v1/state")).contains("help: is the agent running"));
    }
}
