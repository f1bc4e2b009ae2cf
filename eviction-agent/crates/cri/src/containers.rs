//! Determines which containers may be removed, by the kubelet's rule: `kuberuntime_gc.go: evictContainers`.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::{Container, ContainerState, PodSandbox, PodSandboxState};

/// The label that names the pod of a container.
pub const POD_UID: &str = "io.kubernetes.pod.uid";

/// Returns the containers that may be removed, oldest first. Of a pod that was deleted or has finished these
/// are all that have exited. Of other pods, for each container name, all but the newest that does not run.
///
/// `pods` are the uids of the pods of the node that have not finished; without them no pod counts as deleted.
/// Unlike the kubelet it keeps containers in an unknown state, which need to be stopped first, and those of a
/// sandbox that is ready, since their pod may be too new to be known.
pub fn removable_containers<'a>(
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
