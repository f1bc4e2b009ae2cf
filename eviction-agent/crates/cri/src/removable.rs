//! Determines which unused images and dead containers may be removed, and in what order. Does no IO.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::api::{Container, ContainerState, Image, PodSandbox, PodSandboxState};

/// Names and ids of images that must stay: a name as in a pod or a container, or an image id.
pub type ImageNames = BTreeSet<String>;

/// When each image was seen first, and when it was last in use. Times are relative to any fixed moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageHistory {
    images: BTreeMap<String, ImageUse>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ImageUse {
    first: Duration,
    #[serde(skip_serializing_if = "Option::is_none")]
    used: Option<Duration>,
}

impl ImageHistory {
    /// Records the images that exist now and those in use. Discards images that do not exist any more.
    pub(crate) fn observe(&mut self, now: Duration, images: &[Image], in_use: &ImageNames) {
        let before = std::mem::take(&mut self.images);
        for image in images {
            let mut image_use = before.get(&image.id).copied().unwrap_or(ImageUse { first: now, used: None });
            if has_name_of(image, in_use) {
                image_use.used = Some(now);
            }
            self.images.insert(image.id.clone(), image_use);
        }
    }

    /// Returns how long ago an image was seen first; `None` if it was never seen.
    fn age(&self, id: &str, now: Duration) -> Option<Duration> {
        self.images.get(id).map(|image_use| now.saturating_sub(image_use.first))
    }

    fn used(&self, id: &str) -> Option<Duration> {
        self.images.get(id).and_then(|image_use| image_use.used)
    }

    /// Returns the images that may be removed: least recently used first, those never seen in use before all others,
    /// and the largest first among equals. An image that is not in the history is too young.
    ///
    /// `in_use` are the images of containers in any state, of sandboxes and of pods. `keep` are patterns of images
    /// that stay, with `*` for any text. `min_age` is the kubelet's `imageMinimumGCAge`.
    pub(crate) fn removable<'a>(
        &self,
        now: Duration,
        images: &'a [Image],
        in_use: &ImageNames,
        keep: &[String],
        min_age: Duration,
    ) -> Vec<&'a Image> {
        let is_old = |image: &Image| self.age(&image.id, now).is_some_and(|age| age >= min_age);
        let must_stay = |image: &Image| {
            image.pinned || !is_old(image) || has_name_of(image, in_use) || is_kept(image, keep)
        };
        // A runtime may list an image twice, with different names.
        let mut by_id: BTreeMap<&str, Option<&Image>> = BTreeMap::new();
        for image in images.iter().filter(|image| !image.id.is_empty()) {
            let listed = by_id.entry(&image.id).or_insert(Some(image));
            if must_stay(image) {
                *listed = None;
            }
        }
        let mut removable: Vec<_> = by_id.into_values().flatten().collect();
        removable.sort_by_key(|image| (self.used(&image.id), Reverse(image.size), &image.id));
        removable
    }
}

/// Returns whether one of the names is that of this image.
pub(crate) fn has_name_of(image: &Image, names: &ImageNames) -> bool {
    names_of(image).any(|name| names.contains(name))
}

/// Returns the names and ids by which containers refer to their images.
pub(crate) fn names_of_containers(containers: &[Container]) -> ImageNames {
    let mut names = ImageNames::new();
    for container in containers {
        names.extend([container.image_ref.clone(), container.image_id.clone()]);
        if let Some(image) = &container.image {
            let references = [&image.image, &image.user_specified_image, &image.image_ref];
            names.extend(references.map(String::clone));
        }
    }
    names.remove("");
    names
}

/// Estimates the bytes of images that no pod uses, from names and sizes in the Node object.
pub fn unused_bytes<'a>(
    images: impl IntoIterator<Item = (&'a [Box<str>], u64)>,
    in_use: impl IntoIterator<Item = &'a str>,
) -> u64 {
    let in_use: BTreeSet<_> = in_use.into_iter().map(full_name).collect();
    let is_unused = |names: &[Box<str>]| !names.iter().any(|name| in_use.contains(&full_name(name)));
    images
        .into_iter()
        .filter(|(names, _)| is_unused(names))
        .fold(0, |sum, (_, size)| sum.saturating_add(size))
}

/// Returns the name as runtimes write it: with registry, repository, and digest or tag. An id stays as it is.
pub(crate) fn full_name(name: &str) -> String {
    if name.starts_with("sha256:") {
        return name.to_owned();
    }
    let (tagged, digest) = name.find('@').map_or((name, ""), |at| name.split_at(at));
    let last = tagged.rfind('/').map_or(0, |at| at + 1);
    let (repository, tag) =
        tagged[last..].find(':').map_or((tagged, ":latest"), |at| tagged.split_at(last + at));
    let on_docker_hub = repository.strip_prefix("docker.io/");
    let is_registry = |first: &str| first.contains(['.', ':']) || first == "localhost";
    let has_registry = repository.split_once('/').is_some_and(|(first, _)| is_registry(first));
    let repository = on_docker_hub.unwrap_or(repository);
    let registry = match (has_registry && on_docker_hub.is_none(), repository.contains('/')) {
        (true, _) => "",
        (false, true) => "docker.io/",
        (false, false) => "docker.io/library/",
    };
    // A digest takes precedence over the tag.
    let version = if digest.is_empty() { tag } else { digest };
    format!("{registry}{repository}{version}")
}

/// Returns the name for output: the first tag, else the first digest, else the id.
pub(crate) fn display_name(image: &Image) -> &str {
    image.repo_tags.first().or(image.repo_digests.first()).unwrap_or(&image.id)
}

/// Returns the id with and without its algorithm, each tag and each digest: a container may refer to any of
/// them.
fn names_of(image: &Image) -> impl Iterator<Item = &str> {
    let listed = image.repo_tags.iter().chain(&image.repo_digests).map(String::as_str);
    let bare = image.id.strip_prefix("sha256:");
    std::iter::once(image.id.as_str()).chain(bare).chain(listed)
}

/// Returns whether a name or the id matches a pattern. A pattern may omit `docker.io/library/` and `:latest`, as
/// names in a pod do.
fn is_kept(image: &Image, patterns: &[String]) -> bool {
    patterns.iter().any(|pattern| {
        let full = full_name(pattern);
        names_of(image).any(|name| matches(pattern, name) || matches(&full, name))
    })
}

/// Returns whether a text matches a pattern, in which `*` stands for any text, also an empty one.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let (Some(first), rest) = (parts.next(), parts.collect::<Vec<_>>()) else { return false };
    let Some(mut text) = text.strip_prefix(first) else { return false };
    let Some((last, middle)) = rest.split_last() else { return text.is_empty() };
    for part in middle {
        match text.find(part) {
            Some(at) => text = &text[at + part.len()..],
            None => return false,
        }
    }
    text.ends_with(last)
}

/// The label that names the pod of a container.
pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";

/// Returns the containers that may be removed by the kubelet's rule (`kuberuntime_gc.go: evictContainers`), oldest
/// first. Of a pod that was deleted or has finished these are all that have exited. Of other pods, for each
/// container name, all but the newest that does not run.
///
/// `pods` are the uids of the pods of the node that have not finished; without them no pod counts as deleted.
/// Unlike the kubelet it keeps containers in an unknown state, which need to be stopped first, and those of a
/// sandbox that is ready, since their pod may be too new to be known.
pub(crate) fn removable_containers<'a>(
    containers: &'a [Container],
    sandboxes: &[PodSandbox],
    pods: Option<&BTreeSet<String>>,
) -> Vec<&'a Container> {
    let ready: BTreeSet<_> = sandboxes
        .iter()
        .filter(|sandbox| sandbox.state() == PodSandboxState::SandboxReady)
        .map(|sandbox| sandbox.id.as_str())
        .collect();
    let mut units: BTreeMap<(&str, &str), Vec<&Container>> = BTreeMap::new();
    for container in containers {
        // Containers that the kubelet did not create are ignored.
        let (Some(uid), Some(metadata)) = (container.labels.get(POD_UID), &container.metadata) else {
            continue;
        };
        if container.state() != ContainerState::ContainerRunning {
            units.entry((uid, &metadata.name)).or_default().push(container);
        }
    }
    let mut removable = Vec::new();
    for ((uid, _), mut unit) in units {
        unit.sort_by_key(|container| (container.created_at, &container.id));
        let is_deleted = pods.is_some_and(|pods| !pods.contains(uid))
            && !unit.iter().any(|container| ready.contains(container.pod_sandbox_id.as_str()));
        if !is_deleted {
            unit.pop();
        }
        removable.extend(unit.into_iter().filter(|it| it.state() == ContainerState::ContainerExited));
    }
    removable.sort_by_key(|container| (container.created_at, &container.id));
    removable
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::api::ContainerMetadata;

    const HOUR: Duration = Duration::from_secs(3600);

    fn image(id: &str, tag: &str, size: u64) -> Image {
        let repo_tags = vec![tag.to_owned()];
        Image { id: id.to_owned(), repo_tags, size, ..Image::default() }
    }

    fn names(names: &[&str]) -> ImageNames {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Returns the ids of the images that may be removed after an hour, if they must be two minutes old.
    fn removable(
        images: &[Image],
        in_use: &ImageNames,
        history: &ImageHistory,
        keep: &[String],
    ) -> Vec<String> {
        let removable = history.removable(HOUR, images, in_use, keep, Duration::from_secs(120));
        removable.into_iter().map(|image| image.id.clone()).collect()
    }

    fn seen_at_start(images: &[Image]) -> ImageHistory {
        let mut history = ImageHistory::default();
        history.observe(Duration::ZERO, images, &ImageNames::new());
        history
    }

    #[test]
    fn images_are_ordered_by_last_use_and_then_by_size() {
        let images = [image("a", "x:1", 5), image("b", "x:2", 9), image("c", "x:3", 1), image("d", "x:4", 7)];
        let mut history = seen_at_start(&images);
        history.observe(Duration::from_secs(60), &images, &names(&["d"]));
        history.observe(Duration::from_secs(90), &images, &names(&["x:2"]));
        assert_eq!(removable(&images, &ImageNames::new(), &history, &[]), ["a", "c", "d", "b"]);
    }

    #[test]
    fn used_pinned_young_and_kept_images_are_not_removable() {
        let pinned = Image { pinned: true, ..image("pause", "pause:3.8", 1) };
        let digest =
            Image { repo_digests: vec!["r/app@sha256:1".into()], repo_tags: vec![], ..image("e", "", 1) };
        let images = [
            pinned,
            image("sha256:aa", "used/by-id:1", 1),
            image("b", "used/by-tag:1", 1),
            image("c", "kept.example/team/tool:v2", 1),
            image("d", "free:1", 1),
            image("f", "docker.io/library/short:1", 1),
            digest,
        ];
        let mut history = seen_at_start(&images);
        let pulled = [images.as_slice(), &[image("young", "young:1", 1)]].concat();
        history.observe(HOUR - Duration::from_secs(119), &pulled, &ImageNames::new());
        let unseen = [pulled.as_slice(), &[image("unseen", "unseen:1", 1)]].concat();
        let in_use = names(&["aa", "used/by-tag:1", "r/app@sha256:1"]);
        let keep = ["kept.example/*:v*", "short:*"].map(str::to_owned);
        assert_eq!(removable(&unseen, &in_use, &history, &keep), ["d"]);
        history.observe(HOUR, &[], &in_use);
        assert_eq!(history, ImageHistory::default(), "images that are gone are forgotten");
    }

    #[test]
    fn a_clock_that_goes_back_makes_images_young() {
        let images = [image("a", "x:1", 5)];
        let mut history = ImageHistory::default();
        history.observe(HOUR * 2, &images, &ImageNames::new());
        assert!(removable(&images, &ImageNames::new(), &history, &[]).is_empty());
    }

    #[test]
    fn all_image_names_of_containers_are_collected() {
        let spec = |image: &str| crate::api::ImageSpec { image: image.to_owned(), ..Default::default() };
        let container = |image_ref: &str, image: Option<&str>, image_id: &str| Container {
            image_ref: image_ref.to_owned(),
            image: image.map(spec),
            image_id: image_id.to_owned(),
            ..Container::default()
        };
        let containers =
            [container("sha256:a", None, ""), container("", Some("b:1"), ""), container("", None, "c")];
        assert_eq!(names_of_containers(&containers), names(&["sha256:a", "b:1", "c"]));
    }

    #[test]
    fn images_that_a_pod_names_are_not_unused() {
        let images: [(&[Box<str>], u64); 4] = [
            (&["docker.io/library/nginx@sha256:1".into(), "docker.io/library/nginx:latest".into()], 1),
            (&["docker.io/team/app:v1".into()], 10),
            (&["localhost:5000/tool:latest".into()], 100),
            (&[], u64::MAX),
        ];
        let first = &images[..3];
        let unused = |in_use: &[&'static str]| unused_bytes(first.iter().copied(), in_use.iter().copied());
        assert_eq!(unused(&[]), 111);
        assert_eq!(unused(&["nginx", "team/app:v1", "localhost:5000/tool"]), 0);
        assert_eq!(unused(&["nginx@sha256:1", "team/app"]), 110);
        assert_eq!(unused(&["nginx:1.27@sha256:1", "localhost:5000/tool:latest@sha256:2"]), 110);
        assert_eq!(unused(&["docker.io/nginx", "docker.io/team/app:v1"]), 100);
        assert_eq!(unused(&["nginx:1.27", "", "/", "sha256:1"]), 111);
        assert_eq!(unused_bytes(images, []), u64::MAX);
    }

    #[test]
    fn star_in_a_pattern_matches_any_text() {
        for (pattern, text, fits) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*c", "abc", true),
            ("a*c", "abcd", false),
            ("a*c", "ac", true),
            ("aa*aa", "aaa", false),
            ("*/pause:*", "registry.k8s.io/pause:3.8", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
            ("r/*é", "r/xé", true),
        ] {
            assert_eq!(matches(pattern, text), fits, "{pattern} {text}");
        }
    }

    proptest! {
        #[test]
        fn protected_image_is_never_removable(
            images in proptest::collection::vec(("[a-d]{1,2}", "[a-c]:[12]", any::<u64>(), any::<bool>()), 0..12),
            in_use in proptest::collection::btree_set("[a-d]{1,2}|[a-c]:[12]", 0..4),
            keep in proptest::collection::vec("[a-d*]{1,3}", 0..2),
            used in proptest::collection::btree_set("[a-d]{1,2}", 0..4),
        ) {
            let images: Vec<_> = images
                .into_iter()
                .map(|(id, tag, size, pinned)| Image { pinned, ..image(&id, &tag, size) })
                .collect();
            let mut history = seen_at_start(&images);
            history.observe(Duration::from_secs(9), &images, &used);
            let found = removable(&images, &in_use, &history, &keep);
            for image in images.iter().filter(|image| found.contains(&image.id)) {
                prop_assert!(!image.pinned && !in_use.contains(&image.id));
                prop_assert!(!image.repo_tags.iter().any(|tag| in_use.contains(tag)));
                prop_assert!(!keep.contains(&image.id) && !keep.contains(&"*".to_owned()));
            }
            let order: Vec<_> = found.iter().map(|id| used.contains(id)).collect();
            prop_assert!(order.is_sorted(), "what was never used goes first");
            let unique: BTreeSet<_> = found.iter().collect();
            prop_assert_eq!(unique.len(), found.len());
        }

        #[test]
        fn pattern_without_star_matches_the_same_text(pattern in ".{0,8}", text in ".{0,8}") {
            let fits = matches(&pattern, &text);
            prop_assert!(fits || pattern != text || pattern.contains('*'));
        }
    }

    const EXITED: ContainerState = ContainerState::ContainerExited;
    const RUNNING: ContainerState = ContainerState::ContainerRunning;

    fn container(id: &str, pod: &str, name: &str, state: ContainerState, created_at: i64) -> Container {
        Container {
            id: id.to_owned(),
            pod_sandbox_id: format!("sandbox of {pod}"),
            metadata: Some(ContainerMetadata { name: name.to_owned(), attempt: 0 }),
            state: state.into(),
            created_at,
            labels: [(POD_UID.to_owned(), pod.to_owned())].into(),
            ..Container::default()
        }
    }

    fn sandbox(pod: &str, state: PodSandboxState) -> PodSandbox {
        PodSandbox { id: format!("sandbox of {pod}"), state: state.into() }
    }

    fn ids(containers: &[&Container]) -> Vec<String> {
        containers.iter().map(|container| container.id.clone()).collect()
    }

    fn uids(uids: &[&str]) -> BTreeSet<String> {
        uids.iter().map(|uid| (*uid).to_owned()).collect()
    }

    #[test]
    fn newest_dead_container_of_each_name_of_a_known_pod_is_kept() {
        let containers = [
            container("1", "p", "app", EXITED, 1),
            container("3", "p", "app", EXITED, 3),
            container("2", "p", "app", EXITED, 2),
            container("4", "p", "app", RUNNING, 4),
            container("5", "p", "init", EXITED, 0),
        ];
        assert_eq!(ids(&removable_containers(&containers, &[], Some(&uids(&["p"])))), ["1", "2"]);
    }

    #[test]
    fn all_exited_containers_of_a_deleted_pod_are_removable() {
        let containers = [
            container("1", "gone", "app", EXITED, 1),
            container("2", "gone", "app", EXITED, 2),
            container("3", "gone", "odd", ContainerState::ContainerUnknown, 3),
            container("4", "new", "app", EXITED, 4),
        ];
        let sandboxes = [
            sandbox("gone", PodSandboxState::SandboxNotready),
            sandbox("new", PodSandboxState::SandboxReady),
        ];
        let pods = uids(&["other"]);
        assert_eq!(ids(&removable_containers(&containers, &sandboxes, Some(&pods))), ["1", "2"]);
        let unknown = removable_containers(&containers, &sandboxes, None);
        assert_eq!(ids(&unknown), ["1"], "no pod counts as gone while the pods are not known");
    }

    #[test]
    fn containers_not_created_by_the_kubelet_are_kept() {
        let mut foreign = container("1", "", "app", EXITED, 1);
        foreign.labels.clear();
        let nameless = Container { metadata: None, ..container("2", "gone", "app", EXITED, 2) };
        assert!(removable_containers(&[foreign, nameless], &[], Some(&uids(&[]))).is_empty());
    }

    #[test]
    fn created_container_counts_as_the_newest() {
        let containers = [
            container("1", "p", "app", EXITED, 1),
            container("2", "p", "app", ContainerState::ContainerCreated, 2),
        ];
        assert_eq!(ids(&removable_containers(&containers, &[], Some(&uids(&["p"])))), ["1"]);
    }

    proptest! {
        #[test]
        fn only_exited_containers_are_removable_and_known_pods_keep_one(
            containers in proptest::collection::vec((0..3u8, 0..2u8, 0..5i32, -3..9i64), 0..20),
            known in proptest::collection::btree_set("[0-2]", 0..3),
        ) {
            let containers: Vec<_> = containers
                .into_iter()
                .enumerate()
                .map(|(id, (pod, name, state, created_at))| Container {
                    // An enumeration may have an unknown number.
                    state,
                    ..container(&id.to_string(), &pod.to_string(), &name.to_string(), EXITED, created_at)
                })
                .collect();
            let removable = removable_containers(&containers, &[], Some(&known));
            for container in &removable {
                prop_assert_eq!(container.state, i32::from(EXITED));
            }
            for container in containers.iter().filter(|it| known.contains(&it.labels[POD_UID])) {
                let same = |it: &&Container| {
                    it.labels == container.labels && it.metadata == container.metadata
                };
                let removed: Vec<_> = removable.iter().copied().filter(same).map(|it| &it.id).collect();
                prop_assert!(containers.iter().filter(same).any(|it| !removed.contains(&&it.id)));
            }
        }
    }
}
