//! Decodes pods of the API, reduced to the fields that decisions depend on.
//!
//! Decoding is as lenient as Kubernetes: unknown fields are ignored, null is the same as absent, and
//! quantities may be numbers. Values of the wrong type, out-of-range values and invalid quantities are errors
//! that name the field.

use std::collections::BTreeMap;

use eviction_core::pod::{
    self as core, ContainerStateTerminated, EmptyDir, PodCondition, ResourceList, Resources, Toleration,
    without_runtime,
};
use eviction_core::pods::is_used_annotation;
use eviction_core::time::Timestamp;
use k8s_openapi::api::core::v1::ImageVolumeSource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::Deserializer;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::item::objects;

/// Reads a pod from JSON. It must have a name and a uid.
///
/// # Errors
/// If the pod is invalid: the first error, after the path of its field.
pub fn parse_pod(json: &[u8]) -> Result<core::Pod, String> {
    pod(&mut serde_json::Deserializer::from_slice(json))
}

/// Reads a pod from a value that was parsed from JSON or YAML. It must have a name and a uid.
///
/// # Errors
/// If the pod is invalid: the first error, after the path of its field.
pub fn pod_of(value: &Value) -> Result<core::Pod, String> {
    pod(value)
}

/// Decodes one pod and checks that it has a name and a uid.
fn pod<'de, D: Deserializer<'de>>(deserializer: D) -> Result<core::Pod, String> {
    let pod: Pod = serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let cause = error.inner().to_string();
        // The line and column refer to the single pod, so they are removed.
        let cause = cause.rsplit_once(" at line ").map_or(cause.as_str(), |(cause, _)| cause);
        match error.path().to_string().as_str() {
            "." => cause.to_owned(),
            path => format!("{path}: {cause}"),
        }
    })?;
    let pod = core::Pod::from(pod);
    for (path, text) in [("metadata.name", &pod.name), ("metadata.uid", &pod.uid)] {
        if text.is_empty() {
            return Err(format!("{path}: is missing"));
        }
    }
    Ok(pod)
}

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
        owner_references: Vec<Option<OwnerReference>>,
    }

    struct Spec {
        priority: Option<i32>,
        priority_class_name: Box<str>,
        termination_grace_period_seconds: Option<i64>,
        containers: Vec<Option<Container>>,
        init_containers: Vec<Option<Container>>,
        ephemeral_containers: Vec<Option<Container>>,
        resources: Option<Resources>,
        overhead: ResourceList,
        volumes: Vec<Option<Volume>>,
        tolerations: Vec<Option<Toleration>>,
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
        image: Option<ImageVolumeSource>,
    }

    struct Status {
        phase: Box<str>,
        qos_class: Box<str>,
        reason: Box<str>,
        start_time: Option<Timestamp>,
        conditions: Vec<Option<PodCondition>>,
        container_statuses: Vec<Option<ContainerStatus>>,
        init_container_statuses: Vec<Option<ContainerStatus>>,
        ephemeral_container_statuses: Vec<Option<ContainerStatus>>,
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
        terminated: Option<ContainerStateTerminated>,
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
            containers.iter().flatten().for_each(|it| add_image(&it.image));
        }
        let in_volumes =
            spec.volumes.iter().flatten().filter_map(|it| it.image.as_ref()?.reference.as_deref());
        in_volumes.for_each(&mut add_image);
        let statuses = status.container_statuses.into_iter().chain(status.init_container_statuses);
        for status in statuses.chain(status.ephemeral_container_statuses).flatten() {
            let ContainerStatus { name, container_id, image, image_id, state, last_state } = status;
            [&image, &image_id].into_iter().for_each(|it| add_image(it));
            let terminated = [state, last_state].into_iter().filter_map(|state| state.terminated);
            ended.extend(terminated.map(|end| ContainerStateTerminated { container: name.clone(), ..end }));
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
            owner: owner(or_default(metadata.owner_references)),
            priority: spec.priority,
            priority_class: spec.priority_class_name,
            termination_grace_period_seconds: spec.termination_grace_period_seconds,
            containers: convert_all(spec.containers),
            init_containers: convert_all(spec.init_containers),
            resources: spec.resources,
            overhead: spec.overhead,
            volumes: convert_all(spec.volumes),
            tolerations: or_default(spec.tolerations),
            qos_class: status.qos_class,
            container_ids,
            images,
            finished: matches!(&*status.phase, "Succeeded" | "Failed"),
            start_time: status.start_time,
            conditions: or_default(status.conditions),
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
        core::Owner { kind: kind.into(), name: name.into(), uid: uid.into() }
    })
}

/// Returns a list in which null elements are the zero value.
fn or_default<T: Default>(list: Vec<Option<T>>) -> Vec<T> {
    list.into_iter().map(Option::unwrap_or_default).collect()
}

fn convert_all<T: Default, U: From<T>>(list: Vec<Option<T>>) -> Vec<U> {
    or_default(list).into_iter().map(U::from).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_and_image_volumes_need_no_fields_and_may_have_null_and_unknown_ones() {
        let owner = |kind: &str| Some(core::Owner { kind: kind.into(), name: "".into(), uid: "".into() });
        let nulls = serde_json::json!({
            "apiVersion": null, "kind": null, "name": null, "uid": null, "controller": null,
            "blockOwnerDeletion": null, "unknown": {"a": [1]},
        });
        for (references, expected) in [
            (serde_json::json!([]), None),
            (serde_json::json!([{}]), owner("")),
            (serde_json::json!([nulls]), owner("")),
            (serde_json::json!([{"kind": "Job"}, null]), owner("Job")),
            (serde_json::json!([null, {"kind": "Job", "controller": true}]), owner("Job")),
            (serde_json::json!([{"kind": "Job", "controller": false}, nulls]), owner("Job")),
        ] {
            let volumes = serde_json::json!([
                {"image": null}, {"image": {}}, {"image": {"reference": null, "pullPolicy": null, "unknown": 1}},
                {"image": {"reference": "data:1"}},
            ]);
            let pod = serde_json::json!({
                "metadata": {"name": "p", "uid": "u", "ownerReferences": references}, "spec": {"volumes": volumes},
            });
            for pod in [pod_of(&pod).unwrap(), parse_pod(pod.to_string().as_bytes()).unwrap()] {
                assert_eq!((&pod.owner, &*pod.images), (&expected, &["data:1".into()][..]), "{references}");
            }
        }
        let wrong = br#"{"metadata": {"name": "p", "uid": "u", "ownerReferences": [{"kind": 5}]}}"#;
        let error = parse_pod(wrong).unwrap_err();
        assert!(error.starts_with("metadata.ownerReferences[0].kind: invalid type: "), "{error}");
    }

    #[test]
    fn error_of_a_pod_that_is_no_object_has_no_path() {
        assert_eq!(parse_pod(b"5").unwrap_err(), "invalid type: integer `5`, expected struct Pod");
    }

    #[test]
    fn containers_of_every_kind_have_their_names_and_ends() {
        let status = |name: &str, id: &str| {
            serde_json::json!([{
                "name": name, "containerID": format!("containerd://{id}"),
                "lastState": {"terminated": {"exitCode": 137, "containerID": format!("containerd://{id}0")}},
            }])
        };
        let pod = serde_json::json!({
            "metadata": {"name": "p", "uid": "u"},
            "status": {
                "containerStatuses": status("main", "a"),
                "initContainerStatuses": status("setup", "b"),
                "ephemeralContainerStatuses": status("debugger", "c"),
            },
        });
        let pod = pod_of(&pod).unwrap();
        let ids: Vec<_> = pod.container_ids.iter().map(|(id, name)| (&**id, &**name)).collect();
        assert_eq!(ids, [("a", "main"), ("b", "setup"), ("c", "debugger")]);
        let ended: Vec<_> = pod.ended.iter().map(|end| (&*end.instance, &*end.container)).collect();
        assert_eq!(ended, [("a0", "main"), ("b0", "setup"), ("c0", "debugger")]);
    }
}
