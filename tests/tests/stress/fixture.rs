//! An agent with output streams that belong to the test.

use std::fs::File;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tests::agent::{Options, describe};
use tests::interrupt::Interrupt;
use tests::metrics::{self, Metrics};
use tests::node::{MIB, Node, PodSpec};
use tests::process::{self, Process};

/// A guard against an agent that hangs.
pub(crate) const GUARD: Duration = Duration::from_secs(60);

/// A node with one pod, and an agent on it that kills.
pub(crate) struct Fixture {
    process: Process,
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
    pub(crate) fn start(node: Node) -> Self {
        Self::start_with(node, Stdio::null(), Stdio::null(), "info")
    }

    pub(crate) fn start_with(node: Node, out: Stdio, log: Stdio, level: &str) -> Self {
        let kubelet = json!({"evictionHard": {"memory.available": "64Mi"}});
        let options = Options::new(&node, &kubelet).unwrap();
        // The test does not read the agent's output, so it could not learn which port the system chose.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = options.command(&address.to_string());
        let process = Process::spawn(command.env("RUST_LOG", level).stdout(out).stderr(log)).unwrap();
        let fixture = Self { process, address, node };
        fixture
            .until("the agent answers", || fixture.get("/readyz").is_some_and(|(status, _)| status == 200));
        fixture
    }

    pub(crate) fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        Interrupt::default().until(what, GUARD, || Ok(holds().then_some(()))).unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns status and text of a response.
    pub(crate) fn get(&self, path: &str) -> Option<(u16, String)> {
        metrics::request(self.address, path, "").ok()
    }

    pub(crate) fn metric(&self, name: &str) -> f64 {
        self.metric_of(name, &[])
    }

    /// Returns the sum of the series with these labels.
    pub(crate) fn metric_of(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        Metrics::read(self.address).unwrap().sum(name, labels)
    }

    /// Returns how much a queue has dropped.
    pub(crate) fn dropped(&self, queue: &str) -> f64 {
        self.metric_of("eviction_agent_telemetry_dropped_total", &[("queue", queue)])
    }

    /// Returns whether this backend is used for that source.
    pub(crate) fn has_backend(&self, source: &str, backend: &str) -> bool {
        self.metric_of("eviction_agent_backend_info", &[("source", source), ("backend", backend)]) == 1.0
    }

    /// Asserts that a pod that grows over the threshold is evicted, and no other one.
    pub(crate) fn assert_hog_is_evicted(&self, size: &str, rate: &str) {
        let mut hog = self.node.run(0, &["grow", "--size", size, "--rate", rate]).unwrap();
        self.until("the hog is killed", || !hog.process().is_running().unwrap());
        assert_eq!(self.node.oom_kills().unwrap(), 0, "by the agent, not by the kernel");
        self.until("the eviction is reported", || self.metric("eviction_agent_evictions_total") == 1.0);
    }

    /// Stops the agent as an operator does.
    pub(crate) fn stop(mut self) {
        process::signal(self.pid(), Signal::TERM).unwrap();
        let status = self.process.wait().unwrap();
        assert!(status.success(), "SIGTERM ended the agent with {}", describe(status));
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
