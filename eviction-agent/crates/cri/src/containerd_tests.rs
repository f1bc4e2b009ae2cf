//! Reclaim attempts against a real containerd with its images on a file system of their own.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tests::cluster::node::{Image, Runtime};
use tests::containerd::Containerd;
use tests::file_system::{FileSystem, Kind};

use crate::api::{ContainerState, ImageSpec};
use crate::client::{Client, CriError, Endpoint, read_runtime};
use crate::fake_runtime::new_reclaimer;
use crate::proxy_tests::start_proxy;
use crate::reclaim::{NodePods, NodeView, ReclaimConfig, ReclaimEnd, ReclaimOrder, Space};

const MIB: u64 = 1 << 20;

/// The messages that create sandboxes and containers; the agent does not use them.
mod messages {
    use std::collections::BTreeMap;

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct PodSandboxMetadata {
        #[prost(string, tag = "1")]
        pub(super) name: String,
        #[prost(string, tag = "2")]
        pub(super) uid: String,
        #[prost(string, tag = "3")]
        pub(super) namespace: String,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct NamespaceOption {
        #[prost(int32, tag = "1")]
        pub(super) network: i32,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct LinuxSandboxSecurityContext {
        #[prost(message, optional, tag = "1")]
        pub(super) namespace_options: Option<NamespaceOption>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct LinuxPodSandboxConfig {
        #[prost(message, optional, tag = "2")]
        pub(super) security_context: Option<LinuxSandboxSecurityContext>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct PodSandboxConfig {
        #[prost(message, optional, tag = "1")]
        pub(super) metadata: Option<PodSandboxMetadata>,
        #[prost(string, tag = "3")]
        pub(super) log_directory: String,
        #[prost(message, optional, tag = "8")]
        pub(super) linux: Option<LinuxPodSandboxConfig>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct RunPodSandboxRequest {
        #[prost(message, optional, tag = "1")]
        pub(super) config: Option<PodSandboxConfig>,
    }
    /// A message whose only field is an id: `RunPodSandboxResponse`, `StopPodSandboxRequest`,
    /// `CreateContainerResponse` and `StartContainerRequest`.
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Id {
        #[prost(string, tag = "1")]
        pub(super) id: String,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ContainerConfig {
        #[prost(message, optional, tag = "1")]
        pub(super) metadata: Option<crate::api::ContainerMetadata>,
        #[prost(message, optional, tag = "2")]
        pub(super) image: Option<crate::api::ImageSpec>,
        #[prost(btree_map = "string, string", tag = "9")]
        pub(super) labels: BTreeMap<String, String>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct CreateContainerRequest {
        #[prost(string, tag = "1")]
        pub(super) pod_sandbox_id: String,
        #[prost(message, optional, tag = "2")]
        pub(super) config: Option<ContainerConfig>,
        #[prost(message, optional, tag = "3")]
        pub(super) sandbox_config: Option<PodSandboxConfig>,
    }
}

/// A view of the node that reads the file system of the images.
struct Node<'a> {
    root: &'a Path,
    pods: NodePods,
}

impl NodeView for Node<'_> {
    fn pods(&self) -> Result<Arc<NodePods>, String> {
        Ok(Arc::new(self.pods.clone()))
    }

    fn space(&mut self) -> io::Result<Space> {
        let stats = rustix::fs::statvfs(self.root)?;
        Ok(Space { bytes: stats.f_bavail * stats.f_frsize, inodes: Some(stats.f_ffree) })
    }
}

/// A sandbox on the host's network.
struct Sandbox {
    id: String,
    uid: String,
    config: messages::PodSandboxConfig,
}

async fn run_sandbox(client: &Client, folder: &Path, uid: &str) -> Sandbox {
    let metadata = messages::PodSandboxMetadata {
        name: uid.to_owned(),
        uid: uid.to_owned(),
        namespace: "shop".to_owned(),
    };
    let host_network = messages::NamespaceOption { network: 2 };
    let security_context =
        Some(messages::LinuxSandboxSecurityContext { namespace_options: Some(host_network) });
    let config = messages::PodSandboxConfig {
        metadata: Some(metadata),
        log_directory: folder.join("logs").display().to_string(),
        linux: Some(messages::LinuxPodSandboxConfig { security_context }),
    };
    let request = messages::RunPodSandboxRequest { config: Some(config.clone()) };
    let path = "/runtime.v1.RuntimeService/RunPodSandbox";
    let messages::Id { id } = client.call("RunPodSandbox", path, request).await.unwrap();
    Sandbox { id, uid: uid.to_owned(), config }
}

/// Creates a container with the name of its image, and returns its id.
async fn create_container(client: &Client, sandbox: &Sandbox, image: &str, attempt: u32) -> String {
    let spec = ImageSpec { image: format!("docker.io/local/{image}:1"), ..ImageSpec::default() };
    let container = messages::ContainerConfig {
        metadata: Some(crate::api::ContainerMetadata { name: image.to_owned(), attempt }),
        image: Some(spec),
        labels: [(crate::removable::POD_UID.to_owned(), sandbox.uid.clone())].into(),
    };
    let request = messages::CreateContainerRequest {
        pod_sandbox_id: sandbox.id.clone(),
        config: Some(container),
        sandbox_config: Some(sandbox.config.clone()),
    };
    let path = "/runtime.v1.RuntimeService/CreateContainer";
    let messages::Id { id } = client.call("CreateContainer", path, request).await.unwrap();
    id
}

/// Creates and starts a container.
async fn start_container(client: &Client, sandbox: &Sandbox, image: &str, attempt: u32) -> String {
    let id = create_container(client, sandbox, image, attempt).await;
    let path = "/runtime.v1.RuntimeService/StartContainer";
    client.call::<_, ()>("StartContainer", path, messages::Id { id: id.clone() }).await.unwrap();
    id
}

async fn wait_until_dead(client: &Client, id: &str) {
    let wait = async {
        while !crate::reclaim::is_dead(client, id).await.unwrap() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(tests::process::HANG, wait).await.unwrap();
}

fn names(containerd: &Containerd) -> Vec<String> {
    let mut names = containerd.images().unwrap();
    names.iter_mut().for_each(|name| *name = name.replace("docker.io/local/", "").replace(":1", ""));
    names.sort();
    names
}

/// Returns an order to free this much above the space that is available now.
fn order(node: &mut Node<'_>, mib: u64) -> ReclaimOrder {
    let goal = Space { bytes: node.space().unwrap().bytes + mib * MIB, inodes: None };
    ReclaimOrder { containers: true, images: true, goal }
}

/// Containerds share the folder of the shims' sockets, which the first one removes at its end.
static ONE_CONTAINERD: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Starts a containerd with the image `pause` on a disk of its own.
fn start_containerd() -> Result<(Runtime, FileSystem, Containerd), String> {
    let runtime = Runtime::find()?;
    let disk = FileSystem::new(Kind::Ext4, 800 * MIB, "eviction-cri-test")
        .map_err(|error| format!("no ext4 can be mounted here: {error:#}"))?;
    let containerd = Containerd::start(&disk.path().join("containerd")).unwrap();
    containerd.import(&Image::pause(runtime.busybox())).unwrap();
    Ok((runtime, disk, containerd))
}

fn endpoint(containerd: &Containerd) -> Endpoint {
    Endpoint::parse(containerd.socket().to_str().unwrap()).unwrap()
}

/// Returns a configuration that lets images of any age be removed.
fn config(endpoint: &Endpoint) -> ReclaimConfig {
    ReclaimConfig {
        endpoint: endpoint.clone(),
        keep_images: Vec::new(),
        min_image_age: Duration::ZERO,
        within: Duration::from_secs(60),
        dry_run: false,
    }
}

#[tokio::test]
async fn a_real_containerd_keeps_what_is_in_use() {
    let _lock = ONE_CONTAINERD.lock().await;
    let (_runtime, disk, containerd) = tests::or_skip!(start_containerd());
    for (name, mib) in [("used", 8), ("named", 8), ("small", 20), ("large", 60), ("middle", 40)] {
        containerd.import(&Image::random(name, mib, disk.outside()).unwrap()).unwrap();
    }
    let all = ["large", "middle", "named", "pause", "small", "used"];
    assert_eq!(names(&containerd), all);

    let endpoint = endpoint(&containerd);
    let info = read_runtime(&endpoint, Duration::from_secs(60)).await.unwrap();
    assert_eq!(info.name, "containerd");
    let root = disk.path().join("containerd");
    assert!(info.image_file_systems.iter().all(|path| path.starts_with(&root)), "{info:?}");
    let client = Client::connect(&endpoint).await.unwrap();
    let sandbox = run_sandbox(&client, disk.outside(), "u-1").await;
    create_container(&client, &sandbox, "used", 0).await;

    let config = config(&endpoint);
    let mut node = Node {
        root: disk.path(),
        pods: NodePods { uids: ["u-1".to_owned()].into(), images: ["local/named:1".to_owned()].into() },
    };
    // Images are kept by their age, then listed, then removed: largest first, and only as many as are needed.
    let young = ReclaimConfig { min_image_age: Duration::from_secs(3600), ..config.clone() };
    let report = new_reclaimer(young).reclaim(order(&mut node, 1), &mut node).await;
    assert_eq!((report.end, report.images.len()), (ReclaimEnd::NothingLeft, 0));
    let dry = ReclaimConfig { dry_run: true, ..config.clone() };
    let report = new_reclaimer(dry).reclaim(order(&mut node, 1), &mut node).await;
    let listed: Vec<_> = report.images.iter().map(|image| image.name.clone()).collect();
    let expected = ["large", "middle", "small"].map(|name| format!("docker.io/local/{name}:1"));
    assert_eq!((report.end, listed), (ReclaimEnd::Listed, expected.to_vec()));
    assert_eq!(names(&containerd), all);
    let mut reclaimer = new_reclaimer(config.clone());
    let report = reclaimer.reclaim(order(&mut node, 70), &mut node).await;
    assert_eq!(report.end, ReclaimEnd::Enough, "{report:?}");
    assert!(report.images[0].freed_bytes > report.images[0].size_bytes, "the layer is unpacked as well");
    assert_eq!(names(&containerd), ["middle", "named", "pause", "small", "used"], "{report:?}");
    let report = reclaimer.reclaim(order(&mut node, 10_000), &mut node).await;
    assert_eq!(report.end, ReclaimEnd::NothingLeft, "{report:?}");
    assert_eq!(names(&containerd), ["named", "pause", "used"]);

    remove_missing_objects(&client, &containerd, disk.outside()).await;
    let report = reclaimer.reclaim(order(&mut node, 10_000), &mut node).await;
    assert_eq!((report.end, report.errors), (ReclaimEnd::NothingLeft, Vec::new()));
    stop_and_kill_runtime(&containerd, &config, &mut node).await;
}

/// An image that was removed already, and a container that does not exist, are no errors of containerd.
async fn remove_missing_objects(client: &Client, containerd: &Containerd, folder: &Path) {
    containerd.import(&Image::random("gone", 1, folder).unwrap()).unwrap();
    let image = ImageSpec { image: "docker.io/local/gone:1".to_owned(), ..ImageSpec::default() };
    for _ in 0..2 {
        let request = crate::api::RemoveImageRequest { image: Some(image.clone()) };
        let removed = client.remove_image(request).await;
        assert!(removed.is_ok() || removed.is_err_and(|error| error.is_not_found()));
    }
    assert!(!crate::reclaim::is_dead(client, "none").await.unwrap());
}

/// A runtime that hangs uses up the time of the attempt; one that was killed takes no time.
async fn stop_and_kill_runtime(containerd: &Containerd, config: &ReclaimConfig, node: &mut Node<'_>) {
    containerd.signal(Signal::STOP).unwrap();
    let short_timeout = ReclaimConfig { within: Duration::from_millis(300), ..config.clone() };
    let order = order(node, 10_000);
    let report = new_reclaimer(short_timeout).reclaim(order, node).await;
    assert_eq!(report.end, ReclaimEnd::TimedOut);
    containerd.signal(Signal::CONT).unwrap();
    containerd.signal(Signal::KILL).unwrap();
    let report = new_reclaimer(config.clone()).reclaim(order, node).await;
    let ReclaimEnd::Failed(why) = report.end else { panic!("{report:?}") };
    assert!(why.contains("CRI"), "{why}");
    assert!(matches!(
        read_runtime(&config.endpoint, Duration::from_secs(60)).await,
        Err(CriError::Endpoint(_) | CriError::Call { .. })
    ));
}

/// Pod `live` has a container that runs and two that have exited. Pod `gone` was deleted: its sandbox is stopped. The
/// attempt uses the CRI proxy, which must not remove anything in use, whatever the agent asks for.
#[tokio::test]
async fn a_real_containerd_loses_only_containers_that_the_kubelet_would_remove() {
    let _lock = ONE_CONTAINERD.lock().await;
    let (runtime, disk, containerd) = tests::or_skip!(start_containerd());
    let job = "dd if=/dev/zero of=/file bs=1M count=8";
    for (name, line) in [("job", job), ("server", "sleep 3600")] {
        containerd.import(&Image::shell(name, runtime.busybox(), line)).unwrap();
    }
    let client = Client::connect(&endpoint(&containerd)).await.unwrap();
    let gone = run_sandbox(&client, disk.outside(), "gone").await;
    let live = run_sandbox(&client, disk.outside(), "live").await;
    let mut dead = Vec::new();
    for (sandbox, attempt) in [(&gone, 0), (&live, 0), (&live, 1)] {
        let id = start_container(&client, sandbox, "job", attempt).await;
        wait_until_dead(&client, &id).await;
        dead.push(id);
    }
    let runs = start_container(&client, &live, "server", 0).await;
    let path = "/runtime.v1.RuntimeService/StopPodSandbox";
    client.call::<_, ()>("StopPodSandbox", path, messages::Id { id: gone.id }).await.unwrap();

    let (_folder, endpoint) = start_proxy(endpoint(&containerd));
    let proxied = Client::connect(&endpoint).await.unwrap();
    let request = crate::api::RemoveContainerRequest { container_id: runs.clone() };
    assert!(is_denied(proxied.remove_container(request).await));
    for name in ["job", "server", "pause"] {
        let image = ImageSpec { image: format!("docker.io/local/{name}:1"), ..ImageSpec::default() };
        let request = crate::api::RemoveImageRequest { image: Some(image) };
        assert!(is_denied(proxied.remove_image(request).await), "{name}");
    }
    let pods = NodePods { uids: ["live".to_owned()].into(), ..NodePods::default() };
    let mut node = Node { root: disk.path(), pods };
    let before = node.space().unwrap().bytes;
    let report = new_reclaimer(config(&endpoint)).reclaim(order(&mut node, 10_000), &mut node).await;
    assert_eq!((&report.end, report.containers), (&ReclaimEnd::NothingLeft, 2), "{report:?}");
    assert!(report.images.is_empty(), "{report:?}");
    // The report may not have all of it: the space of a container that has only just exited appears up to seconds after
    // its removal.
    let is_freed = || node.space().is_ok_and(|space| space.bytes >= before + 16 * MIB);
    tests::process::wait_until("the space of the containers", is_freed).unwrap();
    let mut left: Vec<_> = crate::reclaim::read_containers(&client).await.unwrap();
    left.sort_by_key(|container| container.created_at);
    let states: Vec<_> = left.iter().map(|container| (container.id.as_str(), container.state())).collect();
    let expected = [
        (dead[2].as_str(), ContainerState::ContainerExited),
        (runs.as_str(), ContainerState::ContainerRunning),
    ];
    assert_eq!(states, expected);
}

fn is_denied<T>(result: Result<T, CriError>) -> bool {
    matches!(result, Err(CriError::Call { code: tonic::Code::PermissionDenied, .. }))
}
