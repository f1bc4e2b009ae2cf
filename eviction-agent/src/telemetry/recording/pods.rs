//! The JSON of a pod in the form of the API, with the fields that decide whether and when the pod
//! is evicted.

use serde_json::{Value, json};

use eviction_core::pod::{Container, Owner, Pod, Volume};

/// Returns a pod as JSON, without tolerations, conditions and ended containers, which do not
/// influence its eviction.
pub(crate) fn write(pod: &Pod) -> Value {
    let Pod {
        uid,
        name,
        namespace,
        generation,
        labels,
        annotations,
        owner,
        priority,
        priority_class,
        termination_grace_period_seconds,
        containers,
        init_containers,
        resources,
        overhead,
        volumes,
        tolerations: _,
        qos_class,
        container_ids,
        start_time,
        conditions: _,
        reason,
        ended: _,
        images: _,
        finished: _,
    } = pod;
    let owners = owner
        .iter()
        .map(|Owner { kind, name, uid }| json!({"kind": kind, "name": name, "uid": uid, "controller": true}));
    let statuses =
        container_ids.iter().map(|(id, name)| json!({"name": name, "containerID": format!("id://{id}")}));
    json!({
        "metadata": {
            "uid": uid, "name": name, "namespace": namespace, "generation": generation,
            "labels": labels, "annotations": annotations, "ownerReferences": owners.collect::<Vec<_>>(),
        },
        "spec": {
            "priority": priority, "priorityClassName": priority_class,
            "terminationGracePeriodSeconds": termination_grace_period_seconds,
            "containers": containers.iter().map(container).collect::<Vec<_>>(),
            "initContainers": init_containers.iter().map(container).collect::<Vec<_>>(),
            "resources": resources,
            "overhead": overhead,
            "volumes": volumes.iter().map(volume).collect::<Vec<_>>(),
        },
        "status": {
            "qosClass": qos_class, "reason": reason, "startTime": start_time,
            "containerStatuses": statuses.collect::<Vec<_>>(),
        },
    })
}

fn container(Container { name, resources, restartable }: &Container) -> Value {
    json!({"name": name, "resources": resources, "restartPolicy": restartable.then_some("Always")})
}

fn volume(Volume { name, host_path, git_repo, config_map, empty_dir }: &Volume) -> Value {
    let is_there = |is_there: bool| is_there.then(|| json!({}));
    json!({
        "name": name, "hostPath": is_there(*host_path), "gitRepo": is_there(*git_repo),
        "configMap": is_there(*config_map), "emptyDir": empty_dir,
    })
}
