//! Node reclaim through the container runtime: the thread that carries it out for the control loop.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::configuration::Reclaim;
use super::state::StateFile;
use crate::error::Failure;
use crate::telemetry::event_log::{Backend, NO_BACKEND};
use eviction_core::pods::mirrored_uid;
use eviction_core::reading::Reading;
use eviction_core::units::GoDuration;
use eviction_cri::{
    Endpoint, ImageHistory, NodePods, NodeView, ReclaimConfig, ReclaimOrder, ReclaimReport, Reclaimer,
    RuntimeInfo, Space, read_runtime,
};
use eviction_node::clock::mono_ns;
use eviction_node::file::InWords;
use eviction_node::fs::NodeFileSystems;
use eviction_node::pod_index::PodIndex;

/// The longest that an attempt may take.
pub(crate) const WITHIN: Duration = Duration::from_secs(10);
/// How often the images in use are observed.
const OBSERVE: Duration = Duration::from_secs(30);
/// Nothing it does is deep.
const STACK: usize = 512 << 10;

/// The pods, or why they are not known.
pub(crate) type PodsOfNode = Result<Arc<NodePods>, String>;

/// The file system that is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShortFs {
    /// Nodefs.
    Node,
    /// Imagefs, and containerfs, which is the same with containerd.
    Image,
}

/// What the executor is made of.
#[derive(Debug)]
pub(crate) struct ReclaimParts {
    /// How images and containers are removed, if the agent does so.
    pub(crate) config: Option<ReclaimConfig>,
    /// Where the history of images is kept, if it is.
    pub(crate) history: Option<ImageHistoryFile>,
    /// The pods, once they are watched.
    pub(crate) pods: Option<watch::Receiver<PodsOfNode>>,
}

impl ReclaimParts {
    /// Starts the executor, if the agent removes images and containers.
    ///
    /// # Errors
    /// If there can be no thread.
    pub(crate) fn open(
        self,
        find_file_systems: impl FnOnce() -> NodeFileSystems,
    ) -> Result<Option<ReclaimExecutor>, Failure> {
        let Some((config, pods)) = self.config.zip(self.pods) else { return Ok(None) };
        ReclaimExecutor::start(config, self.history, pods, find_file_systems()).map(Some)
    }
}

/// The file in a state directory.
pub(crate) const IMAGES_FILE: &str = "images.json";

/// What node reclaim knows of the images of the node, kept over a restart of the agent: without it all of them were too
/// young to be removed, and none was used before another.
///
/// Times are those of `CLOCK_MONOTONIC`, so the file is of use in the same boot only.
#[derive(Clone, Debug)]
pub(crate) struct ImageHistoryFile {
    file: StateFile,
    boot_id: String,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct ImageHistoryDocument {
    boot_id: String,
    history: ImageHistory,
}

impl ImageHistoryFile {
    /// The file in that directory.
    pub(crate) fn new(state_dir: &Path, boot_id: String) -> Self {
        Self { file: StateFile::at(state_dir.join(IMAGES_FILE)), boot_id }
    }

    /// What the former agent knew; nothing, with a warning, if the file cannot be used.
    fn read(&self) -> ImageHistory {
        let read = self.file.read_json::<ImageHistoryDocument>().unwrap_or_else(|error| {
            tracing::warn!(error, "when images were used is not known any more");
            None
        });
        read.filter(|read| read.boot_id == self.boot_id).map(|read| read.history).unwrap_or_default()
    }

    /// Keeps it for the next agent.
    ///
    /// # Errors
    /// If it cannot be written.
    fn write(&self, history: &ImageHistory) -> io::Result<()> {
        let (boot_id, history) = (self.boot_id.clone(), history.clone());
        self.file.write_json(&ImageHistoryDocument { boot_id, history })
    }
}

/// The control loop's end: one attempt at a time.
#[derive(Debug)]
pub(crate) struct ReclaimExecutor {
    orders: mpsc::Sender<(ReclaimOrder, ShortFs)>,
    reports: mpsc::Receiver<ReclaimReport>,
}

/// How to reclaim.
///
/// # Errors
/// If it is not known where the runtime listens, or that is no socket.
pub(crate) fn config(reclaim: &Reclaim, dry_run: bool) -> Result<ReclaimConfig, Failure> {
    let Reclaim { socket, keep_images, min_image_age } = reclaim;
    let socket = socket.as_deref().ok_or_else(|| {
        Failure::failed(
            "read agent configuration: reclaim.criSocket: is missing: eviction.nodeReclaim CRI needs it",
        )
        .help("name it, or let the kubelet be asked: thresholds.source Configz")
    })?;
    let endpoint =
        Endpoint::parse(socket).map_err(|error| Failure::because("find the container runtime", &error))?;
    let min_image_age = nanos(*min_image_age);
    Ok(ReclaimConfig { endpoint, keep_images: keep_images.clone(), min_image_age, within: WITHIN, dry_run })
}

fn nanos(duration: GoDuration) -> Duration {
    Duration::from_nanos(u64::try_from(duration.as_nanos()).unwrap_or_default())
}

/// Which runtime answers there, as a source of `check`.
pub(crate) async fn probe(config: &ReclaimConfig) -> Backend {
    let (backend, reason) = match read_runtime(&config.endpoint, WITHIN).await {
        Ok(RuntimeInfo { name, version, image_file_systems, container_file_systems: _ }) => {
            let images = image_file_systems.iter().map(|path| path.display().to_string());
            let images = images.collect::<Vec<_>>().join(", ");
            let socket = config.endpoint.path().display();
            (format!("{name} {version}"), format!("at {socket}, images in {images}"))
        }
        Err(error) => (NO_BACKEND.to_owned(), error.to_string()),
    };
    Backend { source: "cri".to_owned(), backend, reason }
}

/// The pods of an index as reclaim needs them.
pub(crate) fn pods_of(index: &PodIndex) -> PodsOfNode {
    if let Some(unreadable) = index.unreadable().first() {
        return Err(format!("a pod is not understood: {unreadable}"));
    }
    let mut pods = NodePods::default();
    for known in index.known().iter().filter(|known| !known.pod.finished) {
        pods.uids.insert(known.pod.uid.to_string());
        // The runtime knows a static pod by the uid that the kubelet gave it.
        pods.uids.extend(mirrored_uid(&known.pod).map(str::to_owned));
        pods.images.extend(known.pod.images.iter().map(ToString::to_string));
    }
    Ok(Arc::new(pods))
}

impl ReclaimExecutor {
    /// Starts the thread.
    ///
    /// # Errors
    /// If there can be none.
    pub(crate) fn start(
        config: ReclaimConfig,
        history: Option<ImageHistoryFile>,
        pods: watch::Receiver<PodsOfNode>,
        file_systems: NodeFileSystems,
    ) -> Result<Self, Failure> {
        let (orders, receiver) = mpsc::channel(1);
        let (sender, reports) = mpsc::channel(1);
        let node = Node { pods, file_systems, short: ShortFs::Image };
        let work = move || match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => {
                let known = history.as_ref().map(ImageHistoryFile::read).unwrap_or_default();
                let reclaimer = Reclaimer::with_history(config, known, Duration::from_nanos(mono_ns()));
                runtime.block_on(run(reclaimer, history, node, receiver, sender));
            }
            Err(error) => tracing::error!(%error, "start node reclaim"),
        };
        std::thread::Builder::new()
            .name("reclaim".to_owned())
            .stack_size(STACK)
            .spawn(work)
            .map_err(|error| Failure::because("start node reclaim", &error))?;
        Ok(Self { orders, reports })
    }

    /// One whose thread is a test.
    #[cfg(test)]
    pub(crate) fn of_test() -> (Self, mpsc::Receiver<(ReclaimOrder, ShortFs)>, mpsc::Sender<ReclaimReport>) {
        let (orders, receiver) = mpsc::channel(1);
        let (sender, reports) = mpsc::channel(1);
        (Self { orders, reports }, receiver, sender)
    }

    /// Begins an attempt; false if there can be none. Never waits.
    pub(crate) fn begin(&self, order: ReclaimOrder, short: ShortFs) -> bool {
        self.orders.try_send((order, short)).is_ok()
    }

    /// Waits for what came of an attempt; nothing if the thread has ended. May be cancelled.
    pub(crate) async fn report(&mut self) -> Option<ReclaimReport> {
        self.reports.recv().await
    }
}

async fn run(
    mut reclaimer: Reclaimer,
    history: Option<ImageHistoryFile>,
    mut node: Node,
    mut orders: mpsc::Receiver<(ReclaimOrder, ShortFs)>,
    reports: mpsc::Sender<ReclaimReport>,
) {
    let (mut fails, mut is_kept) = (false, true);
    let mut next = Instant::now();
    loop {
        let observe = async {
            sleep_until(next).await;
            reclaimer.observe_images().await
        };
        // A runtime that hangs keeps no order waiting.
        tokio::select! {
            biased;
            order = orders.recv() => {
                let Some((order, short)) = order else { return };
                node.short = short;
                let report = reclaimer.reclaim(order, &mut node).await;
                if reports.send(report).await.is_err() {
                    return;
                }
            }
            observed = observe => {
                next = Instant::now() + OBSERVE;
                if let (Err(error), false) = (&observed, fails) {
                    tracing::warn!(%error, "the images of the node are not known: none can be removed");
                }
                fails = observed.is_err();
                if let (Some(file), Ok(())) = (&history, observed) {
                    let written = file.write(reclaimer.history());
                    if let (Err(error), true) = (&written, is_kept) {
                        tracing::warn!(%error, "write the history of images");
                    }
                    is_kept = written.is_ok();
                }
            }
        }
    }
}

/// The node as the thread sees it.
struct Node {
    pods: watch::Receiver<PodsOfNode>,
    file_systems: NodeFileSystems,
    short: ShortFs,
}

impl NodeView for Node {
    fn pods(&self) -> PodsOfNode {
        self.pods.borrow().clone()
    }

    fn space(&mut self) -> io::Result<Space> {
        let [node, image] = self.file_systems.read();
        let stats = match self.short {
            ShortFs::Node => node,
            ShortFs::Image => image,
        };
        match stats {
            Reading::Known(stats) => Ok(Space {
                bytes: stats.available.ok_or_else(|| io::Error::other("no available bytes"))?,
                inodes: stats.inodes_free.unwrap_or_default(),
            }),
            Reading::Unknown(why) => Err(io::Error::other(InWords(why).to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use eviction_core::fixture::policy;
    use eviction_core::pod::Pod;
    use eviction_core::pods::KnownPod;
    use eviction_cri::api::Image;
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_that_have_finished_keep_no_image() {
        let pod = |name: &str, more: serde_json::Value| {
            let mut pod = json!({
                "metadata": {"name": name, "uid": name},
                "spec": {"containers": [{"name": "c", "image": format!("{name}:1")}]},
            });
            pod.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let pod: Pod = eviction_kube::pods::pod_of(&pod).unwrap();
            Arc::new(KnownPod::new(pod, &policy(Vec::new())))
        };
        let hash = "of-the-kubelet";
        let annotations = json!({"kubernetes.io/config.mirror": hash, "kubernetes.io/config.hash": hash});
        let mirror = json!({"metadata": {"name": "static", "uid": "of-the-api", "annotations": annotations}});
        let known = vec![
            pod("runs", json!({"status": {"phase": "Running"}})),
            pod("done", json!({"status": {"phase": "Succeeded"}})),
            pod("static", mirror),
        ];
        let pods = pods_of(&PodIndex::new(known.clone())).unwrap();
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let expected = NodePods {
            uids: set(&["runs", "of-the-api", "of-the-kubelet"]),
            images: set(&["runs:1", "static:1"]),
        };
        assert_eq!(*pods, expected);
        let unreadable = PodIndex::new(known).with_unreadable(vec!["shop/x: spec is odd".to_owned()]);
        assert_eq!(pods_of(&unreadable).unwrap_err(), "a pod is not understood: shop/x: spec is odd");
    }

    #[test]
    fn a_socket_is_needed() {
        let reclaim = |socket: Option<&str>| Reclaim {
            socket: socket.map(str::to_owned),
            keep_images: Vec::new(),
            min_image_age: GoDuration::from_secs(120),
        };
        let config = config(&reclaim(Some("unix:///run/x.sock")), true).unwrap();
        assert_eq!((config.min_image_age, config.dry_run), (Duration::from_secs(120), true));
        for socket in [None, Some("tcp://x")] {
            super::config(&reclaim(socket), false).unwrap_err();
        }
    }

    fn history() -> ImageHistory {
        let image = |id: &str| Image { id: id.to_owned(), ..Image::default() };
        let mut history = ImageHistory::default();
        let in_use = BTreeSet::from(["sha256:a".to_owned()]);
        history.observe(Duration::from_millis(1_500), &[image("sha256:a"), image("sha256:b")], &in_use);
        history
    }

    #[test]
    fn what_was_written_is_read_in_the_same_boot_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = ImageHistoryFile::new(folder.path(), "boot-1".to_owned());
        assert_eq!(file.read(), ImageHistory::default());
        file.write(&history()).unwrap();
        assert_eq!(file.read(), history());
        assert_ne!(file.read(), ImageHistory::default());
        let after = ImageHistoryFile::new(folder.path(), "boot-2".to_owned());
        assert_eq!(after.read(), ImageHistory::default());
    }

    #[test]
    fn a_spoiled_file_is_as_good_as_none_and_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = ImageHistoryFile::new(folder.path(), "boot-1".to_owned());
        for text in ["", "{", "[]", r#"{"bootId":"boot-1","history":{"images":{"a":{"first":{"secs":-1}}}}}"#]
        {
            std::fs::write(folder.path().join(IMAGES_FILE), text).unwrap();
            assert_eq!(file.read(), ImageHistory::default(), "{text}");
        }
        file.write(&history()).unwrap();
        assert_eq!(file.read(), history());
    }
}
