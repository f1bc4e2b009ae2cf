//! Reclaim attempts against a real containerd with its images on a file system of their own.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tests::cluster::node::{Image, Runtime};
use tests::containerd::Containerd;
use tests::file_system::{FileSystem, Kind};

use crate::api::ImageSpec;
use crate::client::{Client, CriError, Endpoint};
use crate::reclaim::{NodePods, NodeView, ReclaimConfig, ReclaimEnd, ReclaimOrder, Reclaimer, Space};
use crate::runtime::read_runtime;

const MIB: u64 = 1 << 20;

/// The messages that create sandboxes and containers; the agent does not use them.
mod messages {
    use std::collections::BTreeMap;

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
        pub(super) metadata: Option<crate::api::PodSandboxMetadata>,
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
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct RunPodSandboxResponse {
        #[prost(string, tag = "1")]
        pub(super) pod_sandbox_id: String,
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
        Ok(Space { bytes: stats.f_bavail * stats.f_frsize, inodes: stats.f_ffree })
    }
}

/// Creates a pod on the host's network with one container, which is never started.
async fn create_pod(client: &Client, folder: &Path, uid: &str, image: &str) {
    let metadata = crate::api::PodSandboxMetadata {
        name: "web".to_owned(),
        uid: uid.to_owned(),
        namespace: "shop".to_owned(),
        attempt: 0,
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
    let pod: messages::RunPodSandboxResponse = client.call("RunPodSandbox", path, request).await.unwrap();
    let container = messages::ContainerConfig {
        metadata: Some(crate::api::ContainerMetadata { name: "app".to_owned(), attempt: 0 }),
        image: Some(ImageSpec { image: image.to_owned(), ..ImageSpec::default() }),
        labels: [(crate::containers::POD_UID.to_owned(), uid.to_owned())].into(),
    };
    let request = messages::CreateContainerRequest {
        pod_sandbox_id: pod.pod_sandbox_id,
        config: Some(container),
        sandbox_config: Some(config),
    };
    let path = "/runtime.v1.RuntimeService/CreateContainer";
    client.call::<_, ()>("CreateContainer", path, request).await.unwrap();
}

fn names(containerd: &Containerd) -> Vec<String> {
    let mut names = containerd.images().unwrap();
    names.iter_mut().for_each(|name| *name = name.replace("docker.io/local/", "").replace(":1", ""));
    names.sort();
    names
}

/// Returns an order to free this much above the space that is available now.
fn order(node: &mut Node<'_>, mib: u64) -> ReclaimOrder {
    let goal = Space { bytes: node.space().unwrap().bytes + mib * MIB, inodes: 0 };
    ReclaimOrder { containers: true, images: true, goal }
}

#[tokio::test]
async fn a_real_containerd_keeps_what_is_in_use() {
    let runtime = match Runtime::find() {
        Ok(runtime) => runtime,
        Err(why) => tests::skip!("{why}"),
    };
    let disk = match FileSystem::new(Kind::Ext4, 800 * MIB, "eviction-cri-test") {
        Ok(disk) => disk,
        Err(error) => tests::skip!("no ext4 can be mounted here: {error:#}"),
    };
    let root = disk.path().join("containerd");
    let containerd = Containerd::start(&root).unwrap();
    containerd.import(&Image::pause(runtime.busybox())).unwrap();
    for (name, mib) in [("used", 8), ("named", 8), ("small", 20), ("large", 60), ("middle", 40)] {
        containerd.import_random(name, mib, disk.outside()).unwrap();
    }
    let all = ["large", "middle", "named", "pause", "small", "used"];
    assert_eq!(names(&containerd), all);

    let endpoint = Endpoint::parse(&format!("unix://{}", containerd.socket().display())).unwrap();
    let info = read_runtime(&endpoint, Duration::from_secs(60)).await.unwrap();
    assert_eq!(info.name, "containerd");
    assert!(info.image_file_systems.iter().all(|path| path.starts_with(&root)), "{info:?}");
    let client = Client::connect(&endpoint).await.unwrap();
    create_pod(&client, disk.outside(), "u-1", "docker.io/local/used:1").await;

    let config = ReclaimConfig {
        endpoint: endpoint.clone(),
        keep_images: Vec::new(),
        min_image_age: Duration::ZERO,
        within: Duration::from_secs(60),
        dry_run: false,
    };
    let mut node = Node {
        root: disk.path(),
        pods: NodePods { uids: ["u-1".to_owned()].into(), images: ["local/named:1".to_owned()].into() },
    };
    // Images are kept by their age, then listed, then removed: largest first, and only as many as are needed.
    let young = ReclaimConfig { min_image_age: Duration::from_secs(3600), ..config.clone() };
    let report = Reclaimer::new(young).reclaim(order(&mut node, 1), &mut node).await;
    assert_eq!((report.end, report.images.len()), (ReclaimEnd::NothingLeft, 0));
    let dry = ReclaimConfig { dry_run: true, ..config.clone() };
    let report = Reclaimer::new(dry).reclaim(order(&mut node, 1), &mut node).await;
    let listed: Vec<_> = report.images.iter().map(|image| image.name.clone()).collect();
    let expected = ["large", "middle", "small"].map(|name| format!("docker.io/local/{name}:1"));
    assert_eq!((report.end, listed), (ReclaimEnd::Listed, expected.to_vec()));
    assert_eq!(names(&containerd), all);
    let mut reclaimer = Reclaimer::new(config.clone());
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
    containerd.import_random("gone", 1, folder).unwrap();
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
    let report = Reclaimer::new(short_timeout).reclaim(order, node).await;
    assert_eq!(report.end, ReclaimEnd::TimedOut);
    containerd.signal(Signal::CONT).unwrap();
    containerd.signal(Signal::KILL).unwrap();
    let report = Reclaimer::new(config.clone()).reclaim(order, node).await;
    let ReclaimEnd::Failed(why) = report.end else { panic!("{report:?}") };
    assert!(why.contains("CRI"), "{why}");
    assert!(matches!(
        read_runtime(&config.endpoint, Duration::from_secs(60)).await,
        Err(CriError::Connect { .. } | CriError::Call { .. })
    ));
}
