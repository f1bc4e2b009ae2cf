//! One attempt to bring a file system above its threshold without evicting a pod.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::time::{sleep, timeout};

use crate::api::{
    Container, ContainerState, ContainerStatusRequest, Image, ImageSpec, ImageStatusRequest,
    RemoveContainerRequest, RemoveImageRequest,
};
use crate::client::{Client, CriError, Endpoint, answer_within, read_images_of_sandboxes};
use crate::removable::{
    ImageHistory, ImageNames, POD_UID, display_name, full_name, has_name_of, names_of_containers,
    removable_containers,
};

/// Space that appears between two of our removals, and is more than this, was freed by another process; in
/// bytes.
const FOREIGN_BYTES: u64 = 1 << 20;
/// The pause before the next reading while another process frees space.
const BACK_OFF: Duration = Duration::from_millis(250);

/// The free space on the file system that is short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes that are available.
    pub bytes: u64,
    /// Inodes that are free. `None` in a reading: not known. `None` in a goal: not short.
    pub inodes: Option<u64>,
}

/// The pods of the node that have not finished.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePods {
    /// Their uids, and for static pods also the uids in the runtime.
    pub uids: BTreeSet<String>,
    /// Every name and id of an image in their specification and status.
    pub images: ImageNames,
}

/// The state of the node that reclaim depends on. Both values are read again before each removal.
pub trait NodeView {
    /// Returns the current pods.
    ///
    /// # Errors
    /// Why the pods are not known: then no image is removed.
    fn pods(&self) -> Result<Arc<NodePods>, String>;

    /// Reads the free space of the file system that is short.
    ///
    /// # Errors
    /// If it cannot be read: then nothing more is removed.
    fn space(&mut self) -> io::Result<Space>;
}

/// The configuration of reclaim.
#[derive(Clone, Debug)]
pub struct ReclaimConfig {
    /// The socket on which the runtime listens.
    pub endpoint: Endpoint,
    /// Patterns of images that stay, with `*` for any text.
    pub keep_images: Vec<String>,
    /// The kubelet's `imageMinimumGCAge`: a younger image stays.
    pub min_image_age: Duration,
    /// The longest that an attempt may take.
    pub within: Duration,
    /// Whether to report what would be removed, and to remove nothing.
    pub dry_run: bool,
}

/// What to remove, and when to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReclaimOrder {
    /// Whether to remove dead containers.
    pub containers: bool,
    /// Whether to remove unused images.
    pub images: bool,
    /// The free space at which to stop. It resolves all thresholds that must be resolved, with their minimum
    /// reclaim; 0 for a resource without one.
    pub goal: Space,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReclaimEnd {
    /// The goal is reached.
    Enough,
    /// Nothing is left that may be removed.
    NothingLeft,
    /// A dry run has listed everything.
    Listed,
    /// The time was up.
    TimedOut,
    /// An error ended the attempt.
    Failed(String),
}

/// An image that was removed, or would be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RemovedImage {
    /// Its name, or its id without one.
    pub name: String,
    /// Its size as the runtime reports it: of compressed content.
    pub size_bytes: u64,
    /// By how much the available bytes rose; 0 in a dry run.
    pub freed_bytes: u64,
}

/// The result of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReclaimReport {
    /// How it ended.
    pub end: ReclaimEnd,
    /// The images removed, in order; in a dry run those that would be.
    pub images: Vec<RemovedImage>,
    /// How many containers were removed, or would be.
    pub containers: u32,
    /// By how much the available bytes rose with all removals.
    pub freed_bytes: u64,
    /// Errors of removals that the runtime refused.
    pub errors: Vec<String>,
    /// Whether this was a dry run.
    pub dry_run: bool,
    /// How long the attempt took.
    pub took: Duration,
}

/// Reclaims, and records when images were in use.
#[derive(Debug)]
pub struct Reclaimer {
    config: ReclaimConfig,
    history: ImageHistory,
    /// When it was created, and that moment in the history.
    started: Instant,
    started_at: Duration,
}

impl From<CriError> for ReclaimEnd {
    fn from(error: CriError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl Reclaimer {
    /// Continues with the history of an earlier reclaimer; `now` is the current time in that history. With an
    /// empty one each image is too young at first, as after a start of the kubelet.
    pub fn new(config: ReclaimConfig, history: ImageHistory, now: Duration) -> Self {
        Self { config, history, started: Instant::now(), started_at: now }
    }

    /// Returns the history of the images.
    pub fn history(&self) -> &ImageHistory {
        &self.history
    }

    fn now(&self) -> Duration {
        self.started_at.saturating_add(self.started.elapsed())
    }

    /// Records the images that exist and those in use. Must be called every half minute.
    ///
    /// # Errors
    /// If the runtime does not answer, or not in time.
    pub async fn observe_images(&mut self) -> Result<(), CriError> {
        let ReclaimConfig { endpoint, within, .. } = &self.config;
        let read = async {
            let client = Client::connect(endpoint).await?;
            let images = read_images(&client).await?;
            Ok((images, names_of_containers(&read_containers(&client).await?)))
        };
        let (images, in_use) = answer_within(endpoint, *within, read).await?;
        self.history.observe(self.now(), &images, &in_use);
        Ok(())
    }

    /// Makes one attempt. It ends when the goal is reached, when nothing is left, or when the time is up.
    pub async fn reclaim(&mut self, order: ReclaimOrder, node: &mut impl NodeView) -> ReclaimReport {
        let start = Instant::now();
        let within = self.config.within;
        let report = ReclaimReport {
            end: ReclaimEnd::NothingLeft,
            images: Vec::new(),
            containers: 0,
            freed_bytes: 0,
            errors: Vec::new(),
            dry_run: self.config.dry_run,
            took: Duration::ZERO,
        };
        let listed = BTreeSet::new();
        let mut attempt = Attempt { reclaimer: self, order, node, report, last: None, listed };
        let end = match timeout(within, attempt.run()).await {
            Ok(Ok(())) if attempt.report.dry_run => ReclaimEnd::Listed,
            Ok(Ok(())) => ReclaimEnd::NothingLeft,
            Ok(Err(end)) => end,
            Err(_) => ReclaimEnd::TimedOut,
        };
        ReclaimReport { end, took: start.elapsed(), ..attempt.report }
    }
}

struct Attempt<'a, N> {
    reclaimer: &'a mut Reclaimer,
    order: ReclaimOrder,
    node: &'a mut N,
    report: ReclaimReport,
    /// The space at the last reading.
    last: Option<Space>,
    /// The ids of the containers that a dry run has listed. Their images would not be in use any more.
    listed: BTreeSet<String>,
}

impl<N: NodeView> Attempt<'_, N> {
    /// Removes all that may be removed. Fails with the reason to end earlier.
    async fn run(&mut self) -> Result<(), ReclaimEnd> {
        self.wait_for_others().await?;
        let client = Client::connect(&self.reclaimer.config.endpoint).await?;
        if self.order.containers {
            self.remove_containers(&client).await?;
        }
        if self.report.containers > 0 && !self.report.dry_run {
            // containerd deletes the layers of a container after it has answered.
            sleep(BACK_OFF).await;
        }
        if self.order.images {
            self.remove_images(&client).await?;
        }
        // The last removal may have been enough.
        self.wait_for_others().await
    }

    async fn remove_containers(&mut self, client: &Client) -> Result<(), ReclaimEnd> {
        let containers = read_containers(client).await?;
        let sandboxes = client.list_pod_sandbox(()).await?.items;
        let pods = self.node.pods().ok();
        let uids = pods.as_deref().map(|pods| &pods.uids);
        for container in removable_containers(&containers, &sandboxes, uids) {
            if self.report.dry_run {
                self.report.containers += 1;
                self.listed.insert(container.id.clone());
                continue;
            }
            self.wait_for_others().await?;
            if self.has_pod_appeared(uids, container) || !is_dead(client, &container.id).await? {
                continue;
            }
            let request = RemoveContainerRequest { container_id: container.id.clone() };
            let removed = client.remove_container(request).await.map(drop);
            if self.record_removal(removed)?.is_some() {
                self.report.containers += 1;
            }
        }
        Ok(())
    }

    /// Returns whether the pod of a container is known now and was not when the list was made.
    fn has_pod_appeared(&self, then: Option<&BTreeSet<String>>, container: &Container) -> bool {
        let uid = container.labels.get(POD_UID).map(String::as_str).unwrap_or_default();
        let was_known = then.is_none_or(|uids| uids.contains(uid));
        !was_known && self.node.pods().map_or(true, |pods| pods.uids.contains(uid))
    }

    async fn remove_images(&mut self, client: &Client) -> Result<(), ReclaimEnd> {
        let mut pods = self.pods()?;
        let mut used_by_pods = read_images_of_sandboxes(client).await?;
        used_by_pods.extend(pods.images.iter().cloned());
        used_by_pods = resolve_images(client, &used_by_pods).await?;
        let images = read_images(client).await?;
        let mut containers = read_containers(client).await?;
        let now = self.reclaimer.now();
        self.reclaimer.history.observe(now, &images, &names_of_containers(&containers));
        containers.retain(|container| !self.listed.contains(&container.id));
        let all = used_by_pods.union(&names_of_containers(&containers)).cloned().collect();
        let Reclaimer { config, history, .. } = &*self.reclaimer;
        let (keep, min_age) = (&config.keep_images, config.min_image_age);
        for image in history.removable(now, &images, &all, keep, min_age) {
            if self.report.dry_run {
                self.report.images.push(removed_image(image, 0));
                continue;
            }
            self.wait_for_others().await?;
            // The runtime does not check this: containerd removes an image in use without an error.
            let in_use = names_of_containers(&read_containers(client).await?);
            let now = self.pods()?;
            if now != pods {
                pods = now;
                used_by_pods.extend(resolve_images(client, &pods.images).await?);
            }
            if has_name_of(image, &in_use) || has_name_of(image, &used_by_pods) {
                continue;
            }
            let spec = ImageSpec { image: image.id.clone(), ..ImageSpec::default() };
            let removed = client.remove_image(RemoveImageRequest { image: Some(spec) }).await.map(drop);
            if let Some(freed) = self.record_removal(removed)? {
                self.report.images.push(removed_image(image, freed));
            }
        }
        Ok(())
    }

    fn pods(&self) -> Result<Arc<NodePods>, ReclaimEnd> {
        let failed = |why| ReclaimEnd::Failed(format!("the pods of the node are not known: {why}"));
        self.node.pods().map_err(failed)
    }

    /// Waits while another process frees space: the kubelet, or containerd, which deletes the layers of removed
    /// containers late. The report counts these layers. Stops at the goal.
    async fn wait_for_others(&mut self) -> Result<(), ReclaimEnd> {
        if self.report.dry_run {
            return Ok(());
        }
        loop {
            let (now, goal) = (self.read_space()?, self.order.goal);
            let last = self.last.replace(now).unwrap_or(now);
            let risen = now.bytes.saturating_sub(last.bytes);
            if self.report.containers > 0 && self.report.images.is_empty() {
                self.report.freed_bytes = self.report.freed_bytes.saturating_add(risen);
            }
            if now.bytes >= goal.bytes && now.inodes >= goal.inodes {
                return Err(ReclaimEnd::Enough);
            }
            if risen <= FOREIGN_BYTES {
                return Ok(());
            }
            sleep(BACK_OFF).await;
        }
    }

    /// Measures what a removal freed. Returns `None` if nothing was removed.
    fn record_removal(&mut self, removed: Result<(), CriError>) -> Result<Option<u64>, ReclaimEnd> {
        match removed {
            Ok(()) => {}
            // Another process has removed it.
            Err(error) if error.is_not_found() => {}
            // The connection cannot be used any more.
            Err(error @ CriError::Call { code: tonic::Code::Unavailable, .. }) => return Err(error.into()),
            Err(error) => {
                self.report.errors.push(error.to_string());
                return Ok(None);
            }
        }
        let now = self.read_space()?;
        let freed = now.bytes.saturating_sub(self.last.map_or(now.bytes, |last| last.bytes));
        self.last = Some(now);
        self.report.freed_bytes = self.report.freed_bytes.saturating_add(freed);
        Ok(Some(freed))
    }

    fn read_space(&mut self) -> Result<Space, ReclaimEnd> {
        let failed = |why: &dyn Display| ReclaimEnd::Failed(format!("read the file system: {why}"));
        let now = self.node.space().map_err(|error| failed(&error))?;
        if self.order.goal.inodes.is_some() && now.inodes.is_none() {
            return Err(failed(&"no free inodes"));
        }
        Ok(now)
    }
}

fn removed_image(image: &Image, freed_bytes: u64) -> RemovedImage {
    RemovedImage { name: display_name(image).to_owned(), size_bytes: image.size, freed_bytes }
}

async fn read_images(client: &Client) -> Result<Vec<Image>, CriError> {
    Ok(client.list_images(()).await?.images)
}

pub(crate) async fn read_containers(client: &Client) -> Result<Vec<Container>, CriError> {
    Ok(client.list_containers(()).await?.containers)
}

/// Returns these names, their full names, and the ids of the images that the runtime finds by them.
pub(crate) async fn resolve_images(client: &Client, names: &ImageNames) -> Result<ImageNames, CriError> {
    let mut resolved = names.clone();
    for name in names {
        resolved.insert(full_name(name));
        match find_image(client, name).await {
            Ok(image) => resolved.extend(image.map(|image| image.id)),
            // containerd looks up a name that it does not find, such as `a`, as the start of an id, and fails
            // if several ids match. Only the names are kept.
            Err(CriError::Call { code: tonic::Code::Unknown, .. }) => {}
            Err(error) => return Err(error),
        }
    }
    resolved.remove("");
    Ok(resolved)
}

/// Returns the image that the runtime finds by a name or an id.
pub(crate) async fn find_image(client: &Client, name: &str) -> Result<Option<Image>, CriError> {
    let spec = ImageSpec { image: name.to_owned(), ..ImageSpec::default() };
    let request = ImageStatusRequest { image: Some(spec), verbose: false };
    match client.image_status(request).await {
        Ok(status) => Ok(status.image),
        // A pod may have an image name that is not valid.
        Err(CriError::Call { code: tonic::Code::InvalidArgument | tonic::Code::NotFound, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns whether a container has exited. One that does not exist is not dead: there is nothing to remove.
pub(crate) async fn is_dead(client: &Client, id: &str) -> Result<bool, CriError> {
    let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
    match client.container_status(request).await {
        Ok(response) => Ok(response.status.is_some_and(|it| it.state() == ContainerState::ContainerExited)),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}
