//! The format of frames: `kind u8, length u32, crc32 u32, payload`, little endian. The checksum covers kind,
//! length and payload. Pods are JSON in the form of the API.

use serde_json::{Value, json};

use eviction_core::pod::{Container, Owner, Pod, Volume};

use super::VERSION;

/// The first bytes of each segment. The version follows as a `u16`.
pub(super) const MAGIC: [u8; 6] = *b"EVREC\0";

/// The maximum length of a payload in bytes: more than the pods of a node with ten thousand pods.
pub(super) const MAX_PAYLOAD: u32 = 64 << 20;

/// The length of a frame without its payload, in bytes.
pub(super) const HEAD: usize = 9;

/// The content of a frame: JSON, except for the pods of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// [`SegmentHeader`](super::SegmentHeader), the first frame of a segment.
    Header = 1,
    /// [`Key`](super::Key).
    Key = 2,
    /// A time and the active pods from then on, as changes since the previous frame.
    Pods = 3,
    /// The pods, containers and volumes to which the numbers of samples belong.
    Names = 4,
    /// A sample that was passed to the engine.
    Sample = 5,
    /// An input other than a sample or the active pods.
    Event = 6,
    /// Conditions from before the start.
    Seed = 7,
    /// The record of a decision.
    Decision = 8,
    /// The offset in nanoseconds from the times in the recording to the system clock, valid from here on.
    Clock = 9,
    /// A sample that was passed to the engine after node reclaim.
    Reclaimed = 10,
    /// A sample that was not passed to the engine.
    Usage = 11,
}

impl FrameKind {
    pub(super) const ALL: [Self; 11] = [
        Self::Header,
        Self::Key,
        Self::Pods,
        Self::Names,
        Self::Sample,
        Self::Event,
        Self::Seed,
        Self::Decision,
        Self::Clock,
        Self::Reclaimed,
        Self::Usage,
    ];
}

/// Returns the first bytes of a segment.
pub fn begin() -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes()].concat()
}

/// Appends a frame with this kind, which may be an unknown one. `write` appends its payload.
pub(super) fn frame(kind: u8, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend([0; HEAD]);
    write(out);
    let length = u32::try_from(out.len() - start - HEAD).unwrap_or(u32::MAX);
    out[start] = kind;
    out[start + 1..start + 5].copy_from_slice(&length.to_le_bytes());
    let sum = checksum(&out[start..start + 5], &out[start + HEAD..]);
    out[start + 5..start + HEAD].copy_from_slice(&sum.to_le_bytes());
}

/// Returns a frame with this kind, which may be an unknown one.
pub fn frame_of(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame(kind, &mut out, |out| out.extend(payload));
    out
}

/// Returns the checksum of a frame. `head`: its kind and length.
pub(super) fn checksum(head: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(payload);
    hasher.finalize()
}

/// Returns a pod as JSON in the form of the API, with the fields that decide whether and when it is evicted:
/// without tolerations, conditions and ended containers.
pub(crate) fn pod_json(pod: &Pod) -> Value {
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
