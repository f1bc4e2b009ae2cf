//! An agent with output streams that belong to the test.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tests::agent;
use tests::interrupt::Interrupt;
use tests::metrics::Metrics;
use tests::node::{MIB, Node, PodSpec};
use tests::workload::Workload;

/// A guard against an agent that hangs.
pub(crate) const GUARD: Duration = Duration::from_secs(60);

/// A node with one pod, and an agent on it that kills.
pub(crate) struct Fixture {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) node: Node,
}

/// Creates a node with a pod; `None` where no cgroups can be made.
pub(crate) fn node(label: &str) -> Option<Node> {
    node_of(label, 256 * MIB)
}

/// Creates a node with a pod and `memory` bytes.
pub(crate) fn node_of(label: &str, memory: u64) -> Option<Node> {
    let mut node = Node::new(label, memory, 100).ok()?;
    node.add(PodSpec::new("shop", "web", &["main"], 8)).unwrap();
    Some(node)
}

impl Fixture {
    pub(crate) fn start(node: Node, out: Stdio, log: Stdio, level: &str, more: &[&str]) -> Self {
        let config = node.write_config(&json!({"evictionHard": {"memory.available": "64Mi"}})).unwrap();
        let pods = node.write_pods().unwrap();
        // The test does not read the agent's output, so it could not learn which port the system chose.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let child = Command::new(agent::binary().unwrap())
            .arg("run")
            .arg("--kubelet-config")
            .arg(config)
            .arg("--pods-file")
            .arg(pods)
            .args(["--cgroup-root", &node.cgroup_root()])
            .args(["--memory-capacity", &node.memory_capacity().to_string()])
            .args(["--pid-capacity", &node.pid_capacity().to_string()])
            .args(["--action", "kill", "--output", "json", "--listen-address", &address.to_string()])
            .args(more)
            .env("RUST_LOG", level)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(log)
            .spawn()
            .unwrap();
        let fixture = Self { child, address, node };
        fixture
            .until("the agent answers", || fixture.get("/readyz").is_some_and(|(status, _)| status == 200));
        fixture
    }

    pub(crate) fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        Interrupt::default().until(what, GUARD, || Ok(holds().then_some(()))).unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns status and text of a response.
    pub(crate) fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        stream.set_read_timeout(Some(GUARD)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, text) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, text.to_owned()))
    }

    pub(crate) fn metric(&self, name: &str) -> f64 {
        Metrics::read(self.address).unwrap().sum(name, &[])
    }

    /// Returns how much a queue has dropped.
    pub(crate) fn dropped(&self, queue: &str) -> f64 {
        Metrics::read(self.address)
            .unwrap()
            .sum("eviction_agent_telemetry_dropped_total", &[("queue", queue)])
    }

    /// Returns whether a backend is used for that source.
    pub(crate) fn has_backend(&self, source: &str) -> bool {
        let of = |labels: &[(&str, &str)]| {
            Metrics::read(self.address).unwrap().sum("eviction_agent_backend_info", labels)
        };
        of(&[("source", source)]) > of(&[("source", source), ("backend", "none")])
    }

    pub(crate) fn workload(&self, arguments: &[&str]) -> Workload {
        self.node.run(0, arguments).unwrap()
    }

    /// Asserts that a pod that grows over the threshold is evicted, and no other one.
    pub(crate) fn assert_hog_is_evicted(&self, size: &str, rate: &str) {
        let mut hog = self.workload(&["grow", "--size", size, "--rate", rate]);
        self.until("the hog is killed", || !hog.process().is_running().unwrap());
        assert_eq!(self.node.oom_kills().unwrap(), 0, "by the agent, not by the kernel");
        self.until("the eviction is reported", || self.metric("eviction_agent_evictions_total") == 1.0);
    }

    /// Stops the agent as an operator does.
    pub(crate) fn stop(mut self) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let child = &mut self.child;
        Interrupt::default().until("the agent ends", GUARD, || Ok(child.try_wait()?)).unwrap()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // Both fail only for a process that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a full pipe without a reader: the end to keep, and the one to write to.
pub(crate) fn full_pipe() -> (OwnedFd, Stdio) {
    let (reader, writer) = std::io::pipe().unwrap();
    let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
    rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    let mut file = File::from(OwnedFd::from(writer));
    for chunk in [4096, 1] {
        while file.write(&vec![b'.'; chunk]).is_ok() {}
    }
    // A started program gets a blocking pipe, as always.
    rustix::fs::fcntl_setfl(&file, flags).unwrap();
    (reader.into(), file.into())
}
