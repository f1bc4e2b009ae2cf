use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use eviction_core::time::Timestamp;
use tempfile::TempDir;

use super::*;
use crate::telemetry::live::tests::sample_of;

/// An API that is served until dropped.
struct TestServer {
    folder: TempDir,
    live: Arc<Mutex<Live>>,
    handle: tokio::runtime::Handle,
    end: Option<tokio::sync::oneshot::Sender<()>>,
}

impl TestServer {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (live, handle) = (Live::new(None), runtime.handle().clone());
        let socket = {
            let _within = runtime.enter();
            LocalSocket::bind(&folder.path().join("agent.sock")).unwrap()
        };
        let serve = socket.serve(live.clone(), Arc::new(Metrics::new("0", "0")));
        let (end, ended) = tokio::sync::oneshot::channel();
        thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! { () = serve => {}, _ = ended => {} }
            });
        });
        Self { folder, live, handle, end: Some(end) }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("agent.sock")
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(self.path()).unwrap()
    }

    /// Returns the status and the body of the response.
    fn get(&self, target: &str) -> (u16, String) {
        let mut stream = self.connect();
        write!(stream, "GET {target} HTTP/1.0\r\n\r\n").unwrap();
        read_response(stream)
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        drop(self.end.take());
    }
}

fn read_response(mut stream: UnixStream) -> (u16, String) {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn with_pods() -> TestServer {
    let server = TestServer::start();
    lock(&server.live).pods.push(sample_of(0, &[("a", 100, "10Mi"), ("b", 200, "10Mi")]));
    lock(&server.live).events.push(Timestamp::from_second(10).unwrap(), "{\"event\":\"started\"}");
    lock(&server.live).events.push(Timestamp::from_second(20).unwrap(), "{\"event\":\"pods\"}");
    server
}

#[test]
fn api_paths_return_their_responses_or_errors() {
    let server = with_pods();
    let (status, body) = server.get("/v1/state");
    let state: crate::telemetry::live::state::NodeState = serde_json::from_str(&body).unwrap();
    assert_eq!((status, state.pods.len(), state.last_event), (200, 2, 2));
    let lines = server.get("/v1/events").1;
    let second = format!("{}\n", lines.lines().nth(1).unwrap());
    let event: serde_json::Value = serde_json::from_str(&second).unwrap();
    assert_eq!((&event["seq"], &event["event"]), (&2.into(), &"pods".into()));
    let agent_start = event["agent_start"].as_i64().unwrap();
    assert_eq!(server.get(&format!("/v1/events?since=1&agent_start={agent_start}")), (200, second.clone()));
    assert_eq!(server.get("/v1/events?since=2&agent_start=1"), (200, lines), "of another agent");
    assert_eq!(server.get("/v1/events?since=1"), (200, second.clone()));
    assert_eq!(server.get("/v1/events?since=1970-01-01T00:00:15Z"), (200, second));
    assert_eq!(server.get("/v1/events").1.lines().count(), 2);
    let (status, body) = server.get("/v1/explain?pod=default/pod-a&signal=memory.available");
    let explanation: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (status, &explanation["rank"], &explanation["candidate"]["pod"]["name"]),
        (200, &2.into(), &"pod-a".into())
    );
    for (target, expected) in [
        ("/v1/explain?pod=nobody", 404),
        ("/v1/explain?signal=cpu.available", 400),
        ("/v1/events?since=yesterday", 400),
        ("/metrics", 404),
    ] {
        let (status, body) = server.get(target);
        assert!(status == expected && body.contains("error"), "{target}: {status} {body}");
    }
}

#[test]
fn socket_has_mode_0600_and_is_removed_when_dropped() {
    let server = TestServer::start();
    let path = server.path();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    {
        let _within = server.handle.enter();
        let error = LocalSocket::bind(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "another agent serves there");
        let socket = LocalSocket::bind(&path.with_file_name("other.sock")).unwrap();
        let other = socket.path.clone();
        assert!(other.exists());
        drop(socket);
        assert!(!other.exists());
        drop(std::os::unix::net::UnixListener::bind(&other).unwrap());
        drop(LocalSocket::bind(&other).expect("the socket of an agent that is gone is replaced"));
        std::fs::write(&other, "a file").unwrap();
        let error = LocalSocket::bind(&other).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "what is no socket stays");
    }
}

#[test]
fn client_that_sends_too_much_is_disconnected() {
    let server = with_pods();
    let mut stream = server.connect();
    let more = vec![b'x'; 1 << 20];
    stream.write_all(b"GET /v1/state HTTP/1.1\r\nhost: a\r\na: ").unwrap();
    let sent = (0..1024).take_while(|_| stream.write_all(&more).is_ok()).count();
    assert!(sent < 1024, "it took a header of {sent} MiB");
    let mut stream = server.connect();
    stream.write_all(b"GET /v1/state HTTP/1.1\r\nhost: a\r\ncontent-length: 1073741824\r\n\r\n").unwrap();
    let sent = (0..1024).take_while(|_| stream.write_all(&more).is_ok()).count();
    assert!(sent < 1024, "it took a body of {sent} MiB");
    assert_eq!(server.get("/v1/state").0, 200);
}

#[test]
fn idle_and_non_reading_clients_do_not_block_other_clients() {
    let server = with_pods();
    let names: Vec<String> = (0..1000).map(|number| format!("{number:04}-{}", "x".repeat(200))).collect();
    let pods: Vec<_> = names.iter().map(|name| (&**name, 1, "1Mi")).collect();
    lock(&server.live).pods.push(sample_of(1, &pods));
    let silent: Vec<_> = (0..2 * CONNECTIONS)
        .map(|number| {
            let mut stream = server.connect();
            if number % 2 == 0 {
                stream.write_all(b"GET /v1/state HTTP/1.0\r\n\r\n").unwrap();
            }
            stream
        })
        .collect();
    // All connections are taken twice, and each is closed by its deadline.
    assert_eq!(server.get("/v1/state").0, 200);
    drop(silent);
}

#[test]
fn request_rate_is_limited_and_other_clients_are_still_served() {
    let server = with_pods();
    let (has_ended, requested, answered) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let begin = std::time::Instant::now();
    thread::scope(|scope| {
        for number in 0..4 {
            let (server, has_ended, requested, answered) = (&server, &has_ended, &requested, &answered);
            scope.spawn(move || {
                while !has_ended.load(Ordering::Relaxed) {
                    // A full queue in the kernel makes the client wait, but costs the agent
                    // nothing.
                    let Ok(mut stream) = UnixStream::connect(server.path()) else { continue };
                    drop(stream.write_all(b"GET /v1/explain HTTP/1.0\r\n\r\n"));
                    requested.fetch_add(1, Ordering::Relaxed);
                    if number < 2 && stream.read_to_end(&mut Vec::new()).is_ok() {
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        while requested.load(Ordering::Relaxed) < 1500 {
            thread::yield_now();
        }
        assert_eq!(server.get("/v1/state").0, 200);
        has_ended.store(true, Ordering::Relaxed);
    });
    let most = begin.elapsed().as_millis() / PAUSE.as_millis() + 1;
    let answered = answered.into_inner();
    assert!(answered > 0 && answered as u128 <= most, "{answered} answers, {most} may be");
}
