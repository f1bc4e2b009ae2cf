//! Tests the attempt against a fake runtime.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tonic::Code;

use crate::api::{Container, ContainerMetadata, ContainerState, Image, PodSandbox, PodSandboxState};
use crate::client::{Client, CriError, Endpoint, RuntimeInfo, read_runtime};
use crate::fake_runtime::{FakeRuntime, Fault, State, new_reclaimer};
use crate::reclaim::{
    NodePods, NodeView, ReclaimConfig, ReclaimEnd, ReclaimOrder, ReclaimReport, Reclaimer, Space,
};
use crate::removable::POD_UID;

const MIB: u64 = 1 << 20;
const GOAL: Space = Space { bytes: 1000 * MIB, inodes: None };
const ALL: ReclaimOrder = ReclaimOrder { containers: true, images: true, goal: GOAL };

/// A view of the node that reads the space of the runtime, and returns these pods.
struct Node<'a> {
    runtime: &'a FakeRuntime,
    pods: Result<NodePods, String>,
    /// The pods from the n-th call on.
    later_pods: Option<(usize, NodePods)>,
    pod_reads: std::cell::Cell<usize>,
    /// Bytes that another process frees at each reading, and for how many more readings.
    rises: (u64, usize),
    unreadable: bool,
}

impl NodeView for Node<'_> {
    fn pods(&self) -> Result<Arc<NodePods>, String> {
        self.pod_reads.set(self.pod_reads.get() + 1);
        match &self.later_pods {
            Some((n, pods)) if self.pod_reads.get() >= *n => Ok(Arc::new(pods.clone())),
            _ => self.pods.clone().map(Arc::new),
        }
    }

    fn space(&mut self) -> io::Result<Space> {
        if self.unreadable {
            return Err(io::Error::other("gone"));
        }
        let mut state = self.runtime.state();
        if self.rises.1 > 0 {
            self.rises.1 -= 1;
            state.space.bytes += self.rises.0;
        }
        Ok(state.space)
    }
}

fn node(runtime: &FakeRuntime) -> Node<'_> {
    let pods = Ok(NodePods::default());
    Node { runtime, pods, later_pods: None, pod_reads: 0.into(), rises: (0, 0), unreadable: false }
}

fn config(runtime: &FakeRuntime) -> ReclaimConfig {
    ReclaimConfig {
        endpoint: runtime.endpoint(),
        keep_images: Vec::new(),
        min_image_age: Duration::ZERO,
        within: Duration::from_secs(60),
        dry_run: false,
    }
}

async fn attempt(runtime: &FakeRuntime, node: &mut Node<'_>) -> ReclaimReport {
    new_reclaimer(config(runtime)).reclaim(ALL, node).await
}

fn image(id: &str, size: u64) -> Image {
    Image { id: id.to_owned(), repo_tags: vec![format!("r/{id}:1")], size, ..Image::default() }
}

fn container(id: &str, pod: &str, state: ContainerState, image_ref: &str) -> Container {
    Container {
        id: id.to_owned(),
        pod_sandbox_id: format!("of {pod}"),
        metadata: Some(ContainerMetadata { name: "app".to_owned(), attempt: 0 }),
        image_ref: image_ref.to_owned(),
        state: state.into(),
        created_at: id.len() as i64,
        labels: [(POD_UID.to_owned(), pod.to_owned())].into(),
        ..Container::default()
    }
}

/// Five unused images, each of 200 MiB but listed with another size; 500 MiB are free.
fn unused_images() -> State {
    let ids = ["a", "b", "c", "d", "e"];
    State {
        images: ids.iter().zip([1, 5, 2, 4, 3]).map(|(id, size)| image(id, size * MIB)).collect(),
        frees: ids.map(|id| (id.to_owned(), 200 * MIB)).into(),
        space: Space { bytes: 500 * MIB, inodes: None },
        ..State::default()
    }
}

fn names(report: &ReclaimReport) -> Vec<&str> {
    report.images.iter().map(|image| image.name.as_str()).collect()
}

#[tokio::test]
async fn reclaim_stops_when_the_goal_is_reached() {
    let runtime = FakeRuntime::start(unused_images());
    let report = attempt(&runtime, &mut node(&runtime)).await;
    assert_eq!(report.end, ReclaimEnd::Enough, "{report:?}");
    assert_eq!(names(&report), ["r/b:1", "r/d:1", "r/e:1"]);
    assert_eq!(report.freed_bytes, 600 * MIB, "by the file system, whatever sizes the runtime reports");
    assert_eq!(runtime.removals(), ["RemoveImage b", "RemoveImage d", "RemoveImage e"]);
}

#[tokio::test]
async fn unknown_inodes_are_not_zero_when_inodes_are_short() {
    let runtime = FakeRuntime::start(unused_images());
    let order = ReclaimOrder { goal: Space { bytes: 0, inodes: Some(1) }, ..ALL };
    let mut reclaimer = new_reclaimer(config(&runtime));
    reclaimer.observe_images().await.unwrap();
    let report = reclaimer.reclaim(order, &mut node(&runtime)).await;
    assert_eq!(report.end, ReclaimEnd::Failed("read the file system: no free inodes".to_owned()));
    assert!(runtime.removals().is_empty());
}

#[tokio::test]
async fn a_dry_run_lists_the_same_in_the_same_order_and_removes_nothing() {
    let runtime = FakeRuntime::start(State {
        containers: vec![container("1", "gone", ContainerState::ContainerExited, "")],
        ..unused_images()
    });
    let dry = ReclaimConfig { dry_run: true, ..config(&runtime) };
    let report = new_reclaimer(dry).reclaim(ALL, &mut node(&runtime)).await;
    assert_eq!((report.end.clone(), report.containers), (ReclaimEnd::Listed, 1));
    assert_eq!(names(&report), ["r/b:1", "r/d:1", "r/e:1", "r/c:1", "r/a:1"]);
    assert!(runtime.removals().is_empty());
    runtime.state().space.bytes = 0;
    let actual = attempt(&runtime, &mut node(&runtime)).await;
    assert_eq!(names(&actual), ["r/b:1", "r/d:1", "r/e:1", "r/c:1", "r/a:1"]);
}

#[tokio::test]
async fn a_dry_run_lists_the_images_of_containers_that_would_be_removed() {
    let exited = container("1", "gone", ContainerState::ContainerExited, "e");
    let runtime = FakeRuntime::start(State { containers: vec![exited], ..unused_images() });
    let order = ReclaimOrder { goal: Space { bytes: u64::MAX, inodes: None }, ..ALL };
    for dry_run in [true, false] {
        let mut reclaimer = new_reclaimer(ReclaimConfig { dry_run, ..config(&runtime) });
        reclaimer.observe_images().await.unwrap();
        let report = reclaimer.reclaim(order, &mut node(&runtime)).await;
        assert_eq!(names(&report), ["r/b:1", "r/d:1", "r/c:1", "r/a:1", "r/e:1"], "{report:?}");
        assert_eq!(report.containers, 1);
    }
}

/// containerd refuses a short name that is the start of several ids.
#[tokio::test]
async fn a_name_that_the_runtime_refuses_does_not_end_the_attempt() {
    let nginx = Image { repo_tags: vec!["docker.io/library/nginx:latest".to_owned()], ..image("n", 1) };
    let runtime = FakeRuntime::start(State { images: vec![nginx, image("free", 1)], ..State::default() });
    runtime.state().faults.insert("ImageStatus", Fault::Code(Code::Unknown));
    let mut node = node(&runtime);
    let images = ["a", "nginx"].map(str::to_owned).into();
    node.pods = Ok(NodePods { uids: ["p".to_owned()].into(), images });
    let report = attempt(&runtime, &mut node).await;
    assert_eq!(report.end, ReclaimEnd::NothingLeft, "{report:?}");
    assert_eq!(runtime.removals(), ["RemoveImage free"]);
}

#[tokio::test]
async fn used_pinned_and_configured_images_are_not_removed() {
    let pinned = Image { pinned: true, ..image("pinned", 9 * MIB) };
    let pause = Image { repo_tags: vec!["registry.k8s.io/pause:3.8".to_owned()], ..image("pause", 1) };
    let old_pause = Image { repo_tags: vec!["old/pause:1".to_owned()], ..image("old", 1) };
    let named = Image { repo_tags: vec!["docker.io/library/nginx:latest".to_owned()], ..image("nginx", 1) };
    let runtime = FakeRuntime::start(State {
        images: vec![pinned, pause, old_pause, named, image("used", 1), image("free", 1), image("keep", 1)],
        containers: vec![container("1", "p", ContainerState::ContainerExited, "used")],
        sandboxes: vec![PodSandbox { id: "of p".to_owned(), ..PodSandbox::default() }],
        sandbox_info: r#"{"pid": 1, "image": "old/pause:1"}"#.to_owned(),
        config: r#"{"sandboxImage": "registry.k8s.io/pause:3.8"}"#.to_owned(),
        ..State::default()
    });
    let mut node = node(&runtime);
    let images = ["nginx", "not a name!"].map(str::to_owned).into();
    node.pods = Ok(NodePods { uids: ["p".to_owned()].into(), images });
    let with_keep_images = ReclaimConfig { keep_images: vec!["r/keep:*".to_owned()], ..config(&runtime) };
    let report = new_reclaimer(with_keep_images).reclaim(ALL, &mut node).await;
    assert_eq!(report.end, ReclaimEnd::NothingLeft, "{report:?}");
    assert_eq!(runtime.removals(), ["RemoveImage free"]);
}

#[tokio::test]
async fn missing_or_invalid_runtime_configuration_is_ignored() {
    for config in ["", "{}", "no JSON", r#"{"sandboxImage": 5}"#] {
        let runtime = FakeRuntime::start(State {
            config: config.to_owned(),
            sandbox_info: config.to_owned(),
            sandboxes: vec![PodSandbox::default()],
            ..unused_images()
        });
        assert_eq!(attempt(&runtime, &mut node(&runtime)).await.end, ReclaimEnd::Enough, "{config}");
    }
}

#[tokio::test]
async fn an_image_that_comes_into_use_meanwhile_stays() {
    // The list for the candidates is the second one, after that for containers.
    let runtime = FakeRuntime::start(State {
        late: vec![(3, container("1", "new", ContainerState::ContainerCreated, "b"))],
        ..unused_images()
    });
    attempt(&runtime, &mut node(&runtime)).await;
    assert_eq!(runtime.removals(), ["RemoveImage d", "RemoveImage e", "RemoveImage c"]);

    let runtime = FakeRuntime::start(unused_images());
    let mut node = node(&runtime);
    // Pods are read for containers, for the candidates, and before each removal.
    node.later_pods =
        Some((4, NodePods { uids: ["n".to_owned()].into(), images: ["r/d:1".to_owned()].into() }));
    attempt(&runtime, &mut node).await;
    assert_eq!(runtime.removals(), ["RemoveImage b", "RemoveImage e", "RemoveImage c"]);
}

#[tokio::test]
async fn a_young_image_stays_until_it_is_old() {
    let runtime = FakeRuntime::start(unused_images());
    let mut reclaimer =
        new_reclaimer(ReclaimConfig { min_image_age: Duration::from_millis(300), ..config(&runtime) });
    reclaimer.observe_images().await.unwrap();
    let report = reclaimer.reclaim(ALL, &mut node(&runtime)).await;
    assert_eq!((report.end, report.images.len()), (ReclaimEnd::NothingLeft, 0));
    tokio::time::sleep(Duration::from_millis(300)).await;
    runtime.state().images.push(image("new", 9 * MIB));
    reclaimer.reclaim(ALL, &mut node(&runtime)).await;
    assert_eq!(runtime.removals(), ["RemoveImage b", "RemoveImage d", "RemoveImage e"]);
}

#[tokio::test]
async fn image_ages_are_kept_across_a_restart() {
    let runtime = FakeRuntime::start(unused_images());
    let hour = ReclaimConfig { min_image_age: Duration::from_secs(3600), ..config(&runtime) };
    let mut former = new_reclaimer(hour.clone());
    former.observe_images().await.unwrap();
    let history = former.history().clone();
    let report = Reclaimer::new(hour.clone(), history.clone(), Duration::from_secs(3500))
        .reclaim(ALL, &mut node(&runtime))
        .await;
    assert_eq!((report.end, report.images.len()), (ReclaimEnd::NothingLeft, 0));
    runtime.state().images.push(image("new", 9 * MIB));
    let report =
        Reclaimer::new(hour, history, Duration::from_secs(3700)).reclaim(ALL, &mut node(&runtime)).await;
    assert_eq!(report.end, ReclaimEnd::Enough);
    assert_eq!(runtime.removals(), ["RemoveImage b", "RemoveImage d", "RemoveImage e"]);
}

#[tokio::test]
async fn missing_image_counts_as_removed_and_refusal_is_an_error() {
    for (code, errors) in [(Code::NotFound, 0), (Code::Internal, 5), (Code::Unknown, 5)] {
        let runtime = FakeRuntime::start(unused_images());
        runtime.state().faults.insert("RemoveImage", Fault::Code(code));
        let report = attempt(&runtime, &mut node(&runtime)).await;
        assert_eq!(
            (report.end, report.errors.len(), report.freed_bytes),
            (ReclaimEnd::NothingLeft, errors, 0)
        );
        assert_eq!(report.images.len(), 5 - errors);
    }
}

#[tokio::test]
async fn a_runtime_that_hangs_or_dies_ends_the_attempt() {
    for method in ["ListContainers", "ListPodSandbox", "Status", "ListImages", "RemoveImage"] {
        let runtime = FakeRuntime::start(unused_images());
        runtime.state().faults.insert(method, Fault::Hang);
        let begun = Instant::now();
        let short_timeout = ReclaimConfig { within: Duration::from_millis(200), ..config(&runtime) };
        let report = new_reclaimer(short_timeout).reclaim(ALL, &mut node(&runtime)).await;
        assert_eq!(report.end, ReclaimEnd::TimedOut, "{method}");
        assert!(begun.elapsed() < Duration::from_secs(30));

        runtime.state().faults.insert(method, Fault::CloseConnection);
        let report = attempt(&runtime, &mut node(&runtime)).await;
        let ReclaimEnd::Failed(why) = report.end else { panic!("{method}: {report:?}") };
        assert!(why.contains(method), "{why}");
        assert!(runtime.removals().is_empty());
    }
}

#[tokio::test]
async fn removals_before_a_timeout_are_reported() {
    let runtime = FakeRuntime::start(State {
        containers: vec![container("1", "gone", ContainerState::ContainerExited, "")],
        frees: [("1".to_owned(), 7 * MIB)].into(),
        ..unused_images()
    });
    runtime.state().faults.insert("ListImages", Fault::Hang);
    let short_timeout = ReclaimConfig { within: Duration::from_millis(500), ..config(&runtime) };
    let report = new_reclaimer(short_timeout).reclaim(ALL, &mut node(&runtime)).await;
    assert_eq!(
        (report.end, report.containers, report.freed_bytes),
        (ReclaimEnd::TimedOut, 1, 7 * MIB),
        "the pod's last container"
    );
}

#[tokio::test]
async fn without_a_runtime_the_attempt_fails_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::start(unused_images());
    let missing = folder.path().join("none.sock");
    let no_server = folder.path().join("odd.sock");
    let listener = tokio::net::UnixListener::bind(&no_server).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            drop(stream.try_write(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
        }
    });
    for (socket, expected) in [(missing, "No such file"), (no_server, "")] {
        let endpoint = Endpoint::parse(socket.to_str().unwrap()).unwrap();
        let elsewhere = ReclaimConfig { endpoint: endpoint.clone(), ..config(&runtime) };
        let report = new_reclaimer(elsewhere).reclaim(ALL, &mut node(&runtime)).await;
        let ReclaimEnd::Failed(why) = report.end else { panic!("{report:?}") };
        assert!(why.contains(expected), "{why}");
        read_runtime(&endpoint, Duration::from_secs(60)).await.unwrap_err();
    }
}

#[tokio::test]
async fn no_image_is_removed_while_the_pods_are_unknown() {
    let runtime = FakeRuntime::start(unused_images());
    let mut node = node(&runtime);
    node.pods = Err("the watch has not synced".to_owned());
    let report = attempt(&runtime, &mut node).await;
    let why = "the pods of the node are not known: the watch has not synced";
    assert_eq!(report.end, ReclaimEnd::Failed(why.to_owned()));
    assert!(runtime.removals().is_empty());
}

#[tokio::test]
async fn nothing_is_removed_if_the_free_space_cannot_be_read() {
    let runtime = FakeRuntime::start(unused_images());
    let mut node = node(&runtime);
    node.unreadable = true;
    let report = attempt(&runtime, &mut node).await;
    assert_eq!(report.end, ReclaimEnd::Failed("read the file system: gone".to_owned()));
    assert!(runtime.state().calls.is_empty());
}

#[tokio::test]
async fn nothing_is_removed_while_another_process_frees_space() {
    let runtime = FakeRuntime::start(unused_images());
    let mut node = node(&runtime);
    node.rises = (125 * MIB, 4);
    let report = attempt(&runtime, &mut node).await;
    assert_eq!((report.end, report.images.len()), (ReclaimEnd::Enough, 0));
    assert!(runtime.removals().is_empty());
}

#[tokio::test]
async fn dead_containers_are_removed_after_a_second_check() {
    let exited = ContainerState::ContainerExited;
    let runtime = FakeRuntime::start(State {
        images: Vec::new(),
        containers: vec![
            container("1", "gone", exited, ""),
            container("22", "p", exited, ""),
            container("333", "p", exited, ""),
            container("4444", "new", exited, ""),
        ],
        sandboxes: vec![PodSandbox {
            id: "of gone".to_owned(),
            state: PodSandboxState::SandboxNotready.into(),
        }],
        ..unused_images()
    });
    let mut node = node(&runtime);
    let pods = |uids: &[&str]| NodePods {
        uids: uids.iter().map(|uid| (*uid).to_owned()).collect(),
        ..NodePods::default()
    };
    node.pods = Ok(pods(&["p"]));
    // The pod is known when its container is next: pods are read once for the list, and once for each unknown
    // pod.
    node.later_pods = Some((3, pods(&["p", "new"])));
    let report = attempt(&runtime, &mut node).await;
    assert_eq!(runtime.removals(), ["RemoveContainer 1", "RemoveContainer 22"]);
    assert_eq!(report.containers, 2);
}

/// containerd deletes the layers of a container some milliseconds after it has answered.
#[tokio::test]
async fn images_are_kept_if_a_container_frees_enough_after_its_removal() {
    let dead = container("1", "gone", ContainerState::ContainerExited, "");
    let runtime = FakeRuntime::start(State { containers: vec![dead], ..unused_images() });
    let free_layers = async {
        while runtime.removals().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        runtime.state().space.bytes += 600 * MIB;
    };
    let mut node = node(&runtime);
    let (report, ()) = tokio::join!(attempt(&runtime, &mut node), free_layers);
    assert_eq!((report.end, report.containers, report.freed_bytes), (ReclaimEnd::Enough, 1, 600 * MIB));
    assert_eq!(runtime.removals(), ["RemoveContainer 1"]);
}

#[tokio::test]
async fn the_last_removal_can_be_enough() {
    let only =
        State { images: vec![image("a", 1)], frees: [("a".to_owned(), 500 * MIB)].into(), ..unused_images() };
    let runtime = FakeRuntime::start(only);
    let report = attempt(&runtime, &mut node(&runtime)).await;
    assert_eq!((&report.end, names(&report)), (&ReclaimEnd::Enough, vec!["r/a:1"]));
}

#[tokio::test]
async fn running_or_missing_container_is_not_dead() {
    let mut dead = container("1", "gone", ContainerState::ContainerExited, "");
    let runtime =
        FakeRuntime::start(State { images: Vec::new(), containers: vec![dead.clone()], ..unused_images() });
    let client = Client::connect(&config(&runtime).endpoint).await.unwrap();
    assert!(crate::reclaim::is_dead(&client, "1").await.unwrap());
    dead.state = ContainerState::ContainerRunning.into();
    runtime.state().containers = vec![dead];
    assert!(!crate::reclaim::is_dead(&client, "1").await.unwrap());
    assert!(!crate::reclaim::is_dead(&client, "nobody").await.unwrap());
}

#[tokio::test]
async fn runtime_info_or_error_is_returned() {
    let runtime = FakeRuntime::start(State::default());
    let endpoint = config(&runtime).endpoint;
    let info = read_runtime(&endpoint, Duration::from_secs(60)).await.unwrap();
    let expected = RuntimeInfo {
        name: "fake".to_owned(),
        version: "2.1.9".to_owned(),
        image_file_systems: vec!["/var/lib/images".into()],
        container_file_systems: vec!["/var/lib/layers".into()],
    };
    assert_eq!(info, expected);
    runtime.state().faults.insert("Version", Fault::Hang);
    let error = read_runtime(&endpoint, Duration::from_millis(100)).await.unwrap_err();
    assert!(error.to_string().ends_with("no answer within 100ms"), "{error}");
    runtime.state().faults.insert("Version", Fault::Code(Code::Unimplemented));
    let error = read_runtime(&endpoint, Duration::from_secs(60)).await.unwrap_err();
    assert!(matches!(error, CriError::Call { method: "Version", .. }));
    assert_eq!(error.to_string(), "CRI Version: no message (Unimplemented)");
}
