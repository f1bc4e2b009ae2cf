//! Node reclaim through the container runtime: the thread that carries it out for the control loop.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::state::StateFile;
use crate::error::Failure;
use crate::telemetry::event_log::{Backend, NO_BACKEND};
use eviction_config::ReclaimSettings;
use eviction_core::pods::mirrored_uid;
use eviction_core::reading::Reading;
use eviction_core::units::GoDuration;
use eviction_cri::{
    Endpoint, ImageHistory, NodePods, NodeView, ReclaimConfig, ReclaimOrder, ReclaimReport, Reclaimer,
    RuntimeInfo, Space, read_runtime,
};
use eviction_node::clock::mono_ns;
use eviction_node::file::reason_text;
use eviction_node::fs::NodeFileSystems;
use eviction_node::pod_index::PodIndex;

/// The maximum duration of an attempt.
pub(crate) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the images in use are observed.
const OBSERVE_INTERVAL: Duration = Duration::from_secs(30);
/// The stack size of the thread, which makes no deep calls.
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

/// The name of the file in the state directory.
pub(crate) const IMAGES_FILE: &str = "images.json";

/// The history of the node's images, persisted across restarts of the agent. Without it all images would be too
/// young to be removed, and there would be no order of their last use.
///
/// Times are those of `CLOCK_MONOTONIC`, so the file can be used in the same boot only.
#[derive(Clone, Debug)]
pub(crate) struct ImageHistoryFile {
    file: StateFile,
    boot_id: String,
}

/// The content of the file.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct ImageHistoryDocument {
    boot_id: String,
    history: ImageHistory,
}

impl ImageHistoryFile {
    /// Returns the file in this directory.
    pub(crate) fn new(state_dir: &Path, boot_id: String) -> Self {
        Self { file: StateFile::at(state_dir.join(IMAGES_FILE)), boot_id }
    }

    /// Returns the history of the previous agent; an empty one, with a warning, if the file cannot be used.
    fn read(&self) -> ImageHistory {
        let read = self.file.read_json::<ImageHistoryDocument>().unwrap_or_else(|error| {
            tracing::warn!(error, "the last use of each image is no longer known");
            None
        });
        read.filter(|read| read.boot_id == self.boot_id).map(|read| read.history).unwrap_or_default()
    }

    /// Persists the history for the next agent.
    ///
    /// # Errors
    /// If the file cannot be written.
    fn write(&self, history: &ImageHistory) -> io::Result<()> {
        let (boot_id, history) = (self.boot_id.clone(), history.clone());
        self.file.write_json(&ImageHistoryDocument { boot_id, history })
    }
}

/// The control loop's handle of the executor thread: one attempt at a time.
#[derive(Debug)]
pub(crate) struct ReclaimExecutor {
    orders: mpsc::Sender<(ReclaimOrder, ShortFs)>,
    reports: mpsc::Receiver<ReclaimReport>,
}

/// Returns the configuration of reclaim. `min_image_age` is the kubelet's `imageMinimumGCAge`.
///
/// # Errors
/// If the socket of the runtime is not known or not valid.
pub(crate) fn config(
    reclaim: &ReclaimSettings,
    min_image_age: GoDuration,
    dry_run: bool,
) -> Result<ReclaimConfig, Failure> {
    let ReclaimSettings { cri_socket, keep_images } = reclaim;
    let socket = cri_socket.as_deref().ok_or_else(|| {
        Failure::failed(
            "read agent configuration: reclaim.criSocket: is missing: eviction.nodeReclaim CRI needs it",
        )
        .help("name it, or let the kubelet be asked: thresholds.source Configz")
    })?;
    let endpoint =
        Endpoint::parse(socket).map_err(|error| Failure::because("find the container runtime", &error))?;
    Ok(ReclaimConfig {
        endpoint,
        keep_images: keep_images.clone(),
        min_image_age: Duration::from_nanos(u64::try_from(min_image_age.as_nanos()).unwrap_or_default()),
        within: ATTEMPT_TIMEOUT,
        dry_run,
    })
}

/// Returns the runtime that answers at the socket, as a source of `check`.
pub(crate) async fn probe(config: &ReclaimConfig) -> Backend {
    match read_runtime(&config.endpoint, ATTEMPT_TIMEOUT).await {
        Ok(info) => {
            let (runtime, socket) =
                (format!("{} {}", info.name, info.version), config.endpoint.path().display());
            Backend::new("cri", &runtime, format!("at {socket}, {}", file_systems(&info)))
        }
        Err(error) => Backend::new("cri", NO_BACKEND, error.to_string()),
    }
}

/// Describes where a runtime keeps images and, if that is elsewhere, writable layers.
fn file_systems(info: &RuntimeInfo) -> String {
    let join = |paths: Vec<&PathBuf>| {
        paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    };
    let images = join(info.image_file_systems.iter().collect());
    let is_elsewhere = |path: &&PathBuf| !info.image_file_systems.contains(path);
    let layers = join(info.container_file_systems.iter().filter(is_elsewhere).collect());
    match layers.is_empty() {
        true => format!("images in {images}"),
        false => format!("images in {images}, writable layers in {layers}"),
    }
}

/// Returns the pods of an index in the form that reclaim needs.
pub(crate) fn pods_of(index: &PodIndex) -> PodsOfNode {
    if let Some(unreadable) = index.unreadable().first() {
        return Err(format!("a pod is not understood: {unreadable}"));
    }
    let mut pods = NodePods::default();
    for known in index.known().iter().filter(|known| !known.pod.finished) {
        pods.uids.insert(known.pod.uid.to_string());
        // The runtime identifies a static pod by the UID that the kubelet gave it.
        pods.uids.extend(mirrored_uid(&known.pod).map(str::to_owned));
        pods.images.extend(known.pod.images.iter().map(ToString::to_string));
    }
    Ok(Arc::new(pods))
}

impl ReclaimExecutor {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the thread cannot be created.
    pub(crate) fn start(
        config: ReclaimConfig,
        history: Option<ImageHistoryFile>,
        pods: watch::Receiver<PodsOfNode>,
        file_systems: NodeFileSystems,
    ) -> Result<Self, Failure> {
        let (executor, orders, reports) = Self::with_channels();
        let node = NodeReader { pods, file_systems, short: ShortFs::Image };
        let work = move || match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => {
                let known = history.as_ref().map(ImageHistoryFile::read).unwrap_or_default();
                let reclaimer = Reclaimer::new(config, known, Duration::from_nanos(mono_ns()));
                runtime.block_on(run(reclaimer, history, node, orders, reports));
            }
            Err(error) => tracing::error!(%error, "cannot start node reclaim"),
        };
        std::thread::Builder::new()
            .name("reclaim".to_owned())
            .stack_size(STACK)
            .spawn(work)
            .map_err(|error| Failure::because("start node reclaim", &error))?;
        Ok(executor)
    }

    /// Returns an executor without a thread, and the ends of its channels for the thread.
    pub(crate) fn with_channels()
    -> (Self, mpsc::Receiver<(ReclaimOrder, ShortFs)>, mpsc::Sender<ReclaimReport>) {
        let (orders, receiver) = mpsc::channel(1);
        let (sender, reports) = mpsc::channel(1);
        (Self { orders, reports }, receiver, sender)
    }

    /// Begins an attempt. Returns false if that is not possible. Never waits.
    pub(crate) fn begin(&self, order: ReclaimOrder, short: ShortFs) -> bool {
        self.orders.try_send((order, short)).is_ok()
    }

    /// Waits for the report of an attempt; `None` if the thread has ended. May be cancelled.
    pub(crate) async fn report(&mut self) -> Option<ReclaimReport> {
        self.reports.recv().await
    }
}

async fn run(
    mut reclaimer: Reclaimer,
    history: Option<ImageHistoryFile>,
    mut node: NodeReader,
    mut orders: mpsc::Receiver<(ReclaimOrder, ShortFs)>,
    reports: mpsc::Sender<ReclaimReport>,
) {
    let (mut fails, mut is_written) = (false, true);
    let mut next = Instant::now();
    loop {
        let observe = async {
            sleep_until(next).await;
            reclaimer.observe_images().await
        };
        // A runtime that hangs must not delay an order.
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
                next = Instant::now() + OBSERVE_INTERVAL;
                if let (Err(error), false) = (&observed, fails) {
                    tracing::warn!(%error, "the images of the node are not known: none can be removed");
                }
                fails = observed.is_err();
                if let (Some(file), Ok(())) = (&history, observed) {
                    let written = file.write(reclaimer.history());
                    if let (Err(error), true) = (&written, is_written) {
                        tracing::warn!(%error, "cannot write the history of images");
                    }
                    is_written = written.is_ok();
                }
            }
        }
    }
}

/// The view of the node for the thread.
struct NodeReader {
    pods: watch::Receiver<PodsOfNode>,
    file_systems: NodeFileSystems,
    short: ShortFs,
}

impl NodeView for NodeReader {
    fn pods(&self) -> PodsOfNode {
        self.pods.borrow().clone()
    }

    fn space(&mut self) -> io::Result<Space> {
        self.file_systems.take_late();
        let [node, image] = self.file_systems.read();
        let stats = match self.short {
            ShortFs::Node => node,
            ShortFs::Image => image,
        };
        match stats {
            Reading::Known(stats) => Ok(Space {
                bytes: stats.available.ok_or_else(|| io::Error::other("no available bytes"))?,
                inodes: stats.inodes_free,
            }),
            Reading::Unknown(why) => Err(io::Error::other(reason_text(why))),
        }
    }
}

#[cfg(test)]
mod tests {
    use eviction_core::fixture::policy;
    use eviction_core::pod::Pod;
    use eviction_core::pods::KnownPod;
    use serde_json::json;

    use super::*;

    #[test]
    fn images_of_finished_pods_are_not_in_use() {
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
    fn reclaim_needs_a_valid_cri_socket() {
        let config = |socket: Option<&str>, dry_run| {
            let cri_socket = socket.map(str::to_owned);
            let reclaim = ReclaimSettings { cri_socket, ..ReclaimSettings::default() };
            config(&reclaim, GoDuration::from_secs(120), dry_run)
        };
        let valid = config(Some("unix:///run/x.sock"), true).unwrap();
        assert_eq!((valid.min_image_age, valid.dry_run), (Duration::from_secs(120), true));
        for socket in [None, Some("tcp://x")] {
            config(socket, false).unwrap_err();
        }
    }

    #[test]
    fn a_split_layout_is_named() {
        let describe = |layers: &[&str]| {
            file_systems(&RuntimeInfo {
                name: "cri-o".to_owned(),
                version: "1.36.0".to_owned(),
                image_file_systems: vec!["/images".into()],
                container_file_systems: layers.iter().map(PathBuf::from).collect(),
            })
        };
        assert_eq!(describe(&[]), "images in /images");
        assert_eq!(describe(&["/images"]), "images in /images", "not elsewhere");
        let split = "images in /images, writable layers in /layers";
        assert_eq!(describe(&["/layers"]), split);
    }

    fn history() -> ImageHistory {
        let seen = json!({"secs": 1, "nanos": 500_000_000});
        let images = json!({"sha256:a": {"first": seen, "used": seen}, "sha256:b": {"first": seen}});
        serde_json::from_value(json!({"images": images})).unwrap()
    }

    #[test]
    fn image_history_is_read_only_in_the_same_boot() {
        let folder = tempfile::tempdir().unwrap();
        let file = ImageHistoryFile::new(folder.path(), "boot-1".to_owned());
        assert_eq!(file.read(), ImageHistory::default());
        file.write(&history()).unwrap();
        let written = std::fs::read(folder.path().join(IMAGES_FILE)).unwrap();
        let written: serde_json::Value = serde_json::from_slice(&written).unwrap();
        assert_eq!(written, json!({"bootId": "boot-1", "history": history()}));
        assert_eq!(file.read(), history());
        assert_ne!(file.read(), ImageHistory::default());
        let after = ImageHistoryFile::new(folder.path(), "boot-2".to_owned());
        assert_eq!(after.read(), ImageHistory::default());
    }

    #[test]
    fn a_corrupt_image_history_counts_as_empty_and_is_replaced() {
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
