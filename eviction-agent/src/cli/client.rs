//! Questions to the local API of a running agent.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::de::DeserializeOwned;

use crate::daemon::Failure;

/// Longer than the agent takes for the longest answer to as many clients as it serves at a time.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longer than any answer of an agent.
const LONGEST: u64 = 16 << 20;

/// Where the agent listens.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct SocketArgs {
    /// Unix socket of the running agent
    #[arg(long, value_name = "PATH", default_value = DEFAULT)]
    socket: PathBuf,
}

/// Where an agent listens that runs as the manifests have it.
const DEFAULT: &str = "/run/eviction-agent/agent.sock";

impl SocketArgs {
    /// Of an agent that listens there.
    pub(super) fn at(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// Whether it is the default one.
    pub(super) fn is_default(&self) -> bool {
        self.socket == Path::new(DEFAULT)
    }

    /// Whether something listens there, as far as this user can see.
    pub(super) fn has_agent(&self) -> bool {
        let absent = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
        };
        !UnixStream::connect(&self.socket).is_err_and(|error| absent(&error))
    }

    /// The body of the answer.
    ///
    /// # Errors
    /// If no agent answers, or with what it says is wrong.
    pub(super) fn get(&self, target: &str) -> Result<String, Failure> {
        let path = self.socket.display();
        let failed = |error: io::Error| {
            let failure = Failure::because(format!("ask the agent at {path}"), &error);
            failure.help("is the agent running, with --socket or --state-dir? its socket is for root alone")
        };
        let (status, body) = ask(&self.socket, target).map_err(failed)?;
        if status == 200 {
            return Ok(body);
        }
        let answer = serde_json::from_str::<serde_json::Value>(&body).unwrap_or_default();
        let error = answer.get("error").and_then(|error| error.as_str()).unwrap_or("an invalid answer");
        Err(Failure::failed(format!("ask the agent: {error}")))
    }

    /// The same, decoded.
    ///
    /// # Errors
    /// Also if the answer has another form: the agent is of another version.
    pub(super) fn get_json<T: DeserializeOwned>(&self, target: &str) -> Result<T, Failure> {
        let body = self.get(target)?;
        serde_json::from_str(&body).map_err(|error| Failure::because("read the agent's answer", &error))
    }
}

/// The status and the body of the answer to a GET.
fn ask(path: &Path, target: &str) -> io::Result<(u16, String)> {
    // What is in a request line must not end it.
    if target.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a name has no white space"));
    }
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // The agent closes the connection at the end of the answer.
    stream.write_all(format!("GET {target} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.take(LONGEST).read_to_string(&mut answer)?;
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "this is no answer of an agent");
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(invalid)?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(invalid)?;
    Ok((status, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn answered(answer: &'static str) -> Result<String, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("agent.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 64];
            let length = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
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
    fn the_body_is_returned_or_the_error_that_it_has() {
        assert_eq!(answered("HTTP/1.0 200 OK\r\na: b\r\n\r\n{}").unwrap(), "{}");
        let refused = error(answered("HTTP/1.0 404 Not Found\r\n\r\n{\"error\":\"no such pod\"}"));
        assert_eq!(refused, "error: ask the agent: no such pod\n");
        for answer in ["", "what?", "HTTP/1.0\r\n\r\n", "HTTP/1.0 x\r\n\r\n"] {
            assert!(error(answered(answer)).contains("this is no answer of an agent"), "{answer}");
        }
    }

    #[test]
    fn a_name_cannot_end_the_request() {
        let socket = SocketArgs { socket: "/nowhere".into() };
        assert!(error(socket.get("/v1/explain?pod=a HTTP/1.0\r\n\r\nGET /")).contains("no white space"));
        assert!(error(socket.get("/v1/state")).contains("help: is the agent running"));
    }
}
