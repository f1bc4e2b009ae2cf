//! The fields of `v1.Pod` that the agent uses.

use std::collections::BTreeMap;

use eviction_core::nullable::List;
use eviction_core::pod::{
    self as core, ContainerEnd, EmptyDir, PodCondition, ResourceList, Resources, Toleration, without_runtime,
};
use eviction_core::pods::is_used_annotation;
use eviction_core::time::Timestamp;
use serde::de::IgnoredAny;

use crate::item::objects;

type Texts = BTreeMap<Box<str>, Option<Box<str>>>;

objects! {
    /// A pod as the API writes it. `core::pod::Pod::from` converts it to the core's type.
    pub struct Pod {
        metadata: Metadata,
        spec: Spec,
        status: Status,
    }

    struct Metadata {
        uid: Box<str>,
        name: Box<str>,
        namespace: Box<str>,
        generation: i64,
        labels: Texts,
        annotations: Texts,
        owner_references: List<OwnerReference>,
    }

    struct OwnerReference {
        kind: Box<str>,
        name: Box<str>,
        uid: Box<str>,
        controller: Option<bool>,
    }

    struct Spec {
        priority: Option<i32>,
        priority_class_name: Box<str>,
        termination_grace_period_seconds: Option<i64>,
        containers: List<Container>,
        init_containers: List<Container>,
        ephemeral_containers: List<Container>,
        resources: Option<Resources>,
        overhead: ResourceList,
        volumes: List<Volume>,
        tolerations: List<Toleration>,
    }

    struct Container {
        name: Box<str>,
        image: Box<str>,
        resources: Resources,
        restart_policy: Option<Box<str>>,
    }

    struct Volume {
        name: Box<str>,
        host_path: Option<IgnoredAny>,
        git_repo: Option<IgnoredAny>,
        config_map: Option<IgnoredAny>,
        empty_dir: Option<EmptyDir>,
        image: ImageVolume,
    }

    struct ImageVolume {
        reference: Box<str>,
    }

    struct Status {
        phase: Box<str>,
        qos_class: Box<str>,
        reason: Box<str>,
        start_time: Option<Timestamp>,
        conditions: List<PodCondition>,
        container_statuses: List<ContainerStatus>,
        init_container_statuses: List<ContainerStatus>,
        ephemeral_container_statuses: List<ContainerStatus>,
    }

    struct ContainerStatus {
        name: Box<str>,
        /// The id in the form `containerd://ID`; empty until the container is created.
        #[serde(rename = "containerID")]
        container_id: Box<str>,
        image: Box<str>,
        #[serde(rename = "imageID")]
        image_id: Box<str>,
        state: ContainerState,
        last_state: ContainerState,
    }

    struct ContainerState {
        terminated: Option<ContainerEnd>,
    }
}

impl From<Pod> for core::Pod {
    fn from(pod: Pod) -> Self {
        let Pod { metadata, spec, status } = pod;
        let (mut container_ids, mut ended, mut images) = (Vec::new(), Vec::new(), Vec::<Box<str>>::new());
        let mut add_image = |name: &str| {
            if !name.is_empty() && !images.iter().any(|known| **known == *name) {
                images.push(name.into());
            }
        };
        for containers in [&spec.containers, &spec.init_containers, &spec.ephemeral_containers] {
            containers.0.iter().for_each(|it| add_image(&it.image));
        }
        spec.volumes.0.iter().for_each(|it| add_image(&it.image.reference));
        let statuses = status.container_statuses.0.into_iter().chain(status.init_container_statuses.0);
        for status in statuses.chain(status.ephemeral_container_statuses.0) {
            let ContainerStatus { name, container_id, image, image_id, state, last_state } = status;
            [&image, &image_id].into_iter().for_each(|it| add_image(it));
            let terminated = [state, last_state].into_iter().filter_map(|state| state.terminated);
            ended.extend(terminated.map(|end| ContainerEnd { container: name.clone(), ..end }));
            if let Some(id) = without_runtime(&container_id) {
                container_ids.push((id.into(), name));
            }
        }
        let or_empty = |(key, text): (Box<str>, Option<Box<str>>)| (key, text.unwrap_or_default());
        let annotations = metadata.annotations.into_iter().filter(|(key, _)| is_used_annotation(key));
        Self {
            uid: metadata.uid,
            name: metadata.name,
            namespace: metadata.namespace,
            generation: metadata.generation,
            labels: metadata.labels.into_iter().map(or_empty).collect(),
            annotations: annotations.map(or_empty).collect(),
            owner: owner(metadata.owner_references.0),
            priority: spec.priority,
            priority_class: spec.priority_class_name,
            termination_grace_period_seconds: spec.termination_grace_period_seconds,
            containers: convert_all(spec.containers),
            init_containers: convert_all(spec.init_containers),
            resources: spec.resources,
            overhead: spec.overhead,
            volumes: convert_all(spec.volumes),
            tolerations: spec.tolerations.0,
            qos_class: status.qos_class,
            container_ids,
            images,
            finished: matches!(&*status.phase, "Succeeded" | "Failed"),
            start_time: status.start_time,
            conditions: status.conditions.0,
            reason: status.reason,
            ended,
        }
    }
}

/// Returns the controller, or the first owner if there is none.
fn owner(mut references: Vec<OwnerReference>) -> Option<core::Owner> {
    let controller = references.iter().position(|owner| owner.controller == Some(true));
    let index = controller.unwrap_or(0);
    (index < references.len()).then(|| {
        let OwnerReference { kind, name, uid, .. } = references.swap_remove(index);
        core::Owner { kind, name, uid }
    })
}

fn convert_all<T, U: From<T>>(List(list): List<T>) -> Vec<U> {
    list.into_iter().map(U::from).collect()
}

impl From<Container> for core::Container {
    fn from(container: Container) -> Self {
        let Container { name, image: _, resources, restart_policy } = container;
        Self { name, resources, restartable: restart_policy.as_deref() == Some("Always") }
    }
}

impl From<Volume> for core::Volume {
    fn from(volume: Volume) -> Self {
        let Volume { name, host_path, git_repo, config_map, empty_dir, image: _ } = volume;
        Self {
            name,
            host_path: host_path.is_some(),
            git_repo: git_repo.is_some(),
            config_map: config_map.is_some(),
            empty_dir,
        }
    }
}
