//! The agent removes images through a real containerd before it evicts a pod.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;

use rustix::process::Signal;
use serde_json::{Value, json};
use tests::agent::{self, Agent, Event, GUARD, Options};
use tests::cluster::node::{Image, Runtime};
use tests::containerd::Containerd;
use tests::file_system::{FileSystem, Kind};
use tests::node::Node;
use tests::process::{signal, wait_until};
use tests::workload::Workload;

use crate::MIB;
use crate::agent::{pod, wait_for_syncs, writer, writing};

/// A file system with the images of a containerd and the volumes of two pods.
struct Testbed {
    // Dropped in this order: the writers, containerd, the disk.
    stays: Workload,
    node: Node,
    containerd: Containerd,
    disk: FileSystem,
    /// The available bytes with all images and without the writers.
    free: u64,
}

/// Creates a testbed with the images `pause`, `small` and `large`, and a pod `stays` that has written one MiB.
fn testbed() -> Result<Testbed, String> {
    let runtime = Runtime::find()?;
    let disk = FileSystem::new(Kind::Ext4, 800 * MIB, "eviction-reclaim-test")
        .map_err(|error| format!("no ext4 can be mounted here: {error:#}"))?;
    let mut node =
        Node::new("reclaim", 512 * MIB, 200).map_err(|error| format!("no cgroups can be made: {error:#}"))?;
    let containerd = Containerd::start(&disk.path().join("containerd")).unwrap();
    containerd.import(&Image::pause(runtime.busybox())).unwrap();
    containerd.import(&Image::random("small", 20, disk.outside()).unwrap()).unwrap();
    containerd.import(&Image::random("large", 60, disk.outside()).unwrap()).unwrap();
    node.add(pod("hog", None)).unwrap();
    node.add(pod("stays", None)).unwrap();
    let stays = writer(&disk, &node, 1, 1);
    let free = disk.available().unwrap();
    Ok(Testbed { stays, node, containerd, disk, free })
}

impl Testbed {
    /// Returns the options of an agent that reclaims through this socket. Its threshold is 30 MiB below the available
    /// space, with this minimum reclaim.
    fn options(&self, socket: &Path, min_reclaim_mib: u64) -> Options {
        let kubelet = json!({
            "evictionHard": {"nodefs.available": (self.free - 30 * MIB).to_string()},
            "evictionMinimumReclaim": {"nodefs.available": format!("{min_reclaim_mib}Mi")},
            "imageMinimumGCAge": "1ms",
        });
        let config = self.node.write_agent_config(&json!({"eviction": {"nodeReclaim": "CRI"}})).unwrap();
        let options = Options::new(&self.node, &kubelet).unwrap().with_path("--cri-socket", socket);
        Options { config: Some(config), ..options }.on_disk(&self.disk)
    }

    /// Starts an agent that uses containerd's own socket.
    fn start(&self, action: &'static str) -> Agent {
        Options { action, ..self.options(&self.containerd.socket(), 0) }.start().unwrap()
    }

    fn images(&self) -> Vec<String> {
        let mut names = self.containerd.images().unwrap();
        names.iter_mut().for_each(|name| *name = name.replace("docker.io/local/", "").replace(":1", ""));
        names.sort();
        names
    }
}

/// Changes the pods in the agent's pods file.
fn edit_pods(options: &Options, edit: impl FnOnce(&mut Vec<Value>)) {
    let file = options.pods.as_ref().unwrap();
    let mut pods: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    edit(pods["items"].as_array_mut().unwrap());
    let new = file.with_extension("new");
    fs::write(&new, pods.to_string()).unwrap();
    fs::rename(&new, file).unwrap();
}

fn is_reclaim(event: &Event) -> bool {
    event.kind() == "node_reclaim"
}

/// Returns result and images of the nth event line about reclaim, counted from 1.
fn wait_for_reclaim(agent: &mut Agent, nth: usize) -> (String, Vec<String>) {
    let event = agent.wait_for_nth(nth, "node reclaim", GUARD, is_reclaim).unwrap();
    assert_eq!(event.text("signal"), "nodefs.available");
    let images = event.value.get("images").and_then(Value::as_array).cloned().unwrap_or_default();
    let name = |image: &Value| image["name"].as_str().unwrap().replace("docker.io/local/", "");
    (event.text("result").to_owned(), images.iter().map(name).collect())
}

#[test]
fn images_are_removed_only_as_needed_and_then_the_pod_is_evicted() {
    let mut testbed = tests::or_skip!(testbed());
    let mut agent = testbed.start("kill");
    // The hog leaves 20 MiB less than the threshold: removing `large` alone is enough.
    let mut hog = writer(&testbed.disk, &testbed.node, 0, 50);
    assert_eq!(wait_for_reclaim(&mut agent, 1), ("enough".to_owned(), vec!["large:1".to_owned()]));
    assert_eq!(testbed.images(), ["pause", "small"]);
    assert_eq!(agent.count_decisions().unwrap(), 0);
    let metrics = agent.metrics().unwrap();
    let images = metrics.sum("eviction_agent_node_reclaim_removed_total", &[("kind", "images")]);
    let freed = metrics.sum("eviction_agent_node_reclaim_freed_bytes_total", &[]);
    assert!(images == 1.0 && freed >= (60 * MIB) as f64, "{images} {freed}");
    // The second time the remaining images are not enough.
    agent.wait_for_threshold("cleared").unwrap();
    let mut more = writing(&testbed.disk, &testbed.node, 0, 170);
    // The agent may act while the pod still writes. Then `small` is enough for a moment: there is one more attempt if a
    // sample shows that, and none if the pod crosses again before.
    let (result, images) = wait_for_reclaim(&mut agent, 2);
    assert!(["enough", "nothing_left"].contains(&result.as_str()), "{result}");
    assert_eq!(images, ["small:1"]);
    let decision = agent.wait_for_decision().unwrap();
    assert_eq!(decision.pod(), "shop/hog");
    assert_eq!(testbed.images(), ["pause"]);
    agent.wait_for_result("shop/hog", "terminated").unwrap();
    assert!(!hog.process().is_running().unwrap() && !more.process().is_running().unwrap());
    assert!(testbed.stays.process().is_running().unwrap());
    agent.stop().unwrap();
}

/// As in the chart, the agent has no socket of the runtime.
#[test]
fn images_are_removed_through_the_cri_proxy() {
    let testbed = tests::or_skip!(testbed());
    let socket = testbed.disk.outside().join("proxy.sock");
    let mut command = Command::new(agent::binary().unwrap());
    command.args(["cri-proxy", "--cri-socket"]).arg(testbed.containerd.socket()).arg("--socket").arg(&socket);
    let mut proxy = command.spawn().unwrap();
    wait_until("the socket of the proxy", || socket.exists()).unwrap();
    let mut agent = testbed.options(&socket, 0).start().unwrap();
    let _hog = writer(&testbed.disk, &testbed.node, 0, 50);
    assert_eq!(wait_for_reclaim(&mut agent, 1), ("enough".to_owned(), vec!["large:1".to_owned()]));
    assert_eq!(testbed.images(), ["pause", "small"]);
    agent.stop().unwrap();
    signal(proxy.id(), Signal::TERM).unwrap();
    assert!(proxy.wait().unwrap().success(), "SIGTERM ends it in order");
}

#[test]
fn a_dry_run_lists_the_same_images_and_removes_none() {
    let testbed = tests::or_skip!(testbed());
    let mut agent = testbed.start("none");
    let mut hog = writer(&testbed.disk, &testbed.node, 0, 50);
    let all = vec!["large:1".to_owned(), "small:1".to_owned()];
    assert_eq!(wait_for_reclaim(&mut agent, 1), ("listed".to_owned(), all));
    let decision = agent.wait_for_decision().unwrap();
    assert_eq!(decision.pod(), "shop/hog");
    assert_eq!(testbed.images(), ["large", "pause", "small"]);
    assert!(hog.process().is_running().unwrap());
    assert_eq!(agent.metric("eviction_agent_node_reclaim_removed_total", &[]).unwrap(), 0.0);
    agent.stop().unwrap();
}

#[test]
fn reclaim_with_a_hanging_runtime_times_out_before_the_eviction() {
    let testbed = tests::or_skip!(testbed());
    let mut agent = testbed.start("kill");
    testbed.containerd.signal(Signal::STOP).unwrap();
    let _hog = writer(&testbed.disk, &testbed.node, 0, 50);
    let (result, images) = wait_for_reclaim(&mut agent, 1);
    testbed.containerd.signal(Signal::CONT).unwrap();
    assert_eq!((result.as_str(), images), ("timed_out", Vec::new()));
    let decision = agent.wait_for_decision().unwrap();
    assert_eq!(decision.pod(), "shop/hog");
    agent.stop().unwrap();
}

/// The image was pulled for a pod whose container does not exist yet.
#[test]
fn the_image_of_a_pending_pod_is_kept() {
    let testbed = tests::or_skip!(testbed());
    let options = testbed.options(&testbed.containerd.socket(), 0);
    let pending = json!({
        "metadata": {"name": "pending", "namespace": "shop", "uid": "0a1b"},
        "spec": {"containers": [{"name": "main", "image": "local/large:1"}]},
        "status": {"phase": "Pending"},
    });
    edit_pods(&options, |pods| pods.push(pending));
    let mut agent = options.start().unwrap();
    let _hog = writer(&testbed.disk, &testbed.node, 0, 50);
    assert_eq!(wait_for_reclaim(&mut agent, 1), ("enough".to_owned(), vec!["small:1".to_owned()]));
    assert_eq!(testbed.images(), ["large", "pause"]);
    assert_eq!(agent.count_decisions().unwrap(), 0);
    agent.stop().unwrap();
}

/// Forwards connections to containerd until an image was removed. It then reports this, and forwards no request any
/// more. Returns its socket, and the receiver of the report.
fn forward_until_removal(testbed: &Testbed) -> (PathBuf, mpsc::Receiver<()>) {
    let socket = testbed.disk.outside().join("forward.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let (containerd, disk) = (testbed.containerd.socket(), testbed.disk.path().to_owned());
    let (sender, removed) = mpsc::channel();
    std::thread::spawn(move || {
        for agent in listener.incoming() {
            let (Ok(agent), Ok(runtime)) = (agent, UnixStream::connect(&containerd)) else { return };
            let (mut to_agent, mut from_runtime) = (agent.try_clone().unwrap(), runtime.try_clone().unwrap());
            std::thread::spawn(move || {
                drop(io::copy(&mut from_runtime, &mut to_agent));
                drop(to_agent.shutdown(Shutdown::Both));
            });
            let (disk, sender) = (disk.clone(), sender.clone());
            std::thread::spawn(move || forward_requests(agent, runtime, &disk, &sender));
        }
    });
    (socket, removed)
}

fn forward_requests(mut agent: UnixStream, mut runtime: UnixStream, disk: &Path, sender: &mpsc::Sender<()>) {
    let (mut buffer, mut lowest) = ([0; 4096], u64::MAX);
    while let Ok(size @ 1..) = agent.read(&mut buffer) {
        let stat = rustix::fs::statvfs(disk).unwrap();
        let available = stat.f_bavail * stat.f_frsize;
        lowest = lowest.min(available);
        // The image `large` has at least 60 MiB.
        if available > lowest + 50 * MIB {
            sender.send(()).unwrap();
            return;
        }
        if runtime.write_all(&buffer[..size]).is_err() {
            break;
        }
    }
    drop(runtime.shutdown(Shutdown::Both));
}

/// containerd is killed between two removals of one attempt, or its socket does not exist. The minimum reclaim is more
/// than all images together.
#[test]
fn a_failed_attempt_is_followed_by_one_eviction() {
    let testbed = tests::or_skip!(testbed());
    let missing = testbed.disk.outside().join("missing.sock");
    let (forwarding, removed) = forward_until_removal(&testbed);
    let cases = [
        (missing, None, "connect to the CRI socket", Vec::new()),
        (forwarding, Some(removed), "CRI ListContainers", vec!["large:1".to_owned()]),
    ];
    for (socket, removed, reason, images) in cases {
        let options = testbed.options(&socket, 400);
        let mut agent = options.start().unwrap();
        // It may be killed before it has written all.
        let mut hog = writing(&testbed.disk, &testbed.node, 0, 50);
        if let Some(removed) = removed {
            removed.recv_timeout(GUARD).unwrap();
            testbed.containerd.signal(Signal::KILL).unwrap();
        }
        assert_eq!(wait_for_reclaim(&mut agent, 1), ("failed".to_owned(), images));
        assert_eq!(agent.wait_for_decision().unwrap().pod(), "shop/hog");
        agent.wait_for_result("shop/hog", "terminated").unwrap();
        hog.process().wait().unwrap();
        wait_for_syncs(&agent);
        let events = agent.events().unwrap();
        let evicted: Vec<_> = events.iter().filter(|event| event.is_decision()).map(Event::pod).collect();
        assert_eq!(evicted, ["shop/hog"]);
        let attempts: Vec<_> = events.iter().filter(|event| is_reclaim(event)).collect();
        assert!(attempts.len() == 1 && attempts[0].text("reason").contains(reason), "{attempts:?}");
        agent.stop().unwrap();
        fs::remove_dir_all(testbed.node.pods[0].create_volume(&testbed.disk).unwrap()).unwrap();
    }
}
