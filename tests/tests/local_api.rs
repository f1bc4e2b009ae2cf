//! The local API of a running agent: what its verbs print, and that no client delays the control loop.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::io::Write as _;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::agent::{self, Agent, GUARD, Options};
use tests::node::{MIB, Node, PodSpec};
use tests::process::Stop;
use tests::skip;

fn start(node: &Node) -> (Agent, PathBuf) {
    let kubelet = json!({"evictionHard": {"memory.available": "64Mi", "pid.available": "20"}});
    let socket = node.file("agent.sock");
    let options = Options::new(node, &kubelet).unwrap().with_path("--socket", &socket);
    (Options { action: "none", ..options }.start().unwrap(), socket)
}

fn run(verb: &[&str], socket: &Path) -> Output {
    let mut command = Command::new(agent::binary().unwrap());
    command.args(verb).arg("--socket").arg(socket).stdin(Stdio::null()).output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Returns what a verb prints once it succeeds: the pods must have been sampled.
fn successful_output(verb: &[&str], socket: &Path) -> String {
    let start = Instant::now();
    loop {
        let output = run(verb, socket);
        if output.status.success() {
            return String::from_utf8(output.stdout).unwrap();
        }
        assert!(start.elapsed() < GUARD, "{verb:?}: {}", text(&output));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn verbs_show_the_state_of_a_running_agent() {
    let Ok(mut node) = Node::new("api", 512 * MIB, 400) else { skip!("no cgroups can be made here") };
    let large = node.add(PodSpec::new("shop", "large", &["main"], 8)).unwrap();
    node.add(PodSpec::new("shop", "small", &["main"], 8)).unwrap();
    let _process = node.hold(large, "64MiB").unwrap();
    let (agent, socket) = start(&node);
    let metadata = std::fs::metadata(&socket).unwrap();
    assert!(metadata.file_type().is_socket() && metadata.permissions().mode() & 0o777 == 0o600);

    let first = successful_output(&["explain"], &socket);
    assert!(first.starts_with("shop/large is evicted first for memory.available: rank 1 of 2\n"), "{first}");
    let second: Value =
        serde_json::from_str(&successful_output(&["explain", "small", "-o", "jsonl"], &socket)).unwrap();
    assert_eq!((&second["rank"], &second["candidate"]["pod"]["name"]), (&json!(2), &json!("small")));
    let output = run(&["explain", "shop/smal"], &socket);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output), "error: ask the agent: no such pod; the nearest is shop/small\n");

    let events = successful_output(&["watch", "--once", "-o", "jsonl"], &socket);
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(events.iter().any(|event| event["event"] == "started"), "{events:?}");
    assert!(events.windows(2).all(|two| two[0]["seq"].as_u64() < two[1]["seq"].as_u64()));
    let screen = successful_output(&["top", "--once"], &socket);
    let ranks: Vec<_> = screen.lines().filter(|line| line.contains("shop/")).take(2).collect();
    assert!(ranks[0].starts_with(">   1 shop/large") && ranks[1].starts_with("    2 shop/small"), "{screen}");
    assert!(
        screen.contains("memory ") && screen.contains("hard <64Mi") && screen.contains("evicted first"),
        "{screen}"
    );
    let started = successful_output(&["watch", "--exit-on", "started", "--event", "started"], &socket);
    assert_eq!(started.lines().count(), 1, "{started}");

    agent.stop().unwrap();
    assert!(!socket.exists(), "it goes with the agent");
    let output = run(&["watch"], &socket);
    assert!(output.status.code() == Some(1) && text(&output).contains("help: is the agent running"));
}

#[test]
fn hostile_clients_do_not_delay_decisions() {
    let Ok(mut node) = Node::new("hostile", 512 * MIB, 400) else { skip!("no cgroups can be made here") };
    let large = node.add(PodSpec::new("shop", "large", &["main"], 8)).unwrap();
    let (mut agent, socket) = start(&node);
    successful_output(&["explain"], &socket);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stopper = Stop(&stop);
        for kind in 0..3 {
            let (stop, socket) = (&stop, &socket);
            scope.spawn(move || {
                let mut open_streams = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let Ok(mut stream) = UnixStream::connect(socket) else { continue };
                    drop(stream.set_write_timeout(Some(Duration::from_millis(100))));
                    let _refused = match kind {
                        // This client sends a request and never reads.
                        0 => stream.write_all(b"GET /v1/state HTTP/1.1\r\nhost: a\r\n\r\n"),
                        // This client sends data and never a request.
                        1 => stream.write_all(&vec![b'x'; 4 << 20]),
                        // This client sends requests as fast as it can.
                        _ => stream.write_all(b"GET /v1/explain HTTP/1.0\r\n\r\n"),
                    };
                    if kind == 0 {
                        open_streams.push(stream);
                        open_streams.truncate(64);
                    }
                }
            });
        }
        let _process = node.hold(large, "460MiB").unwrap();
        let decided = agent.wait_for_decision();
        drop(stopper);
        assert_eq!(decided.unwrap().pod(), "shop/large");
    });
    let stalls = agent.metric("eviction_agent_control_loop_stalls_total", &[]).unwrap();
    assert_eq!(stalls, 0.0, "the control loop was never late");
    agent.stop().unwrap();
}
