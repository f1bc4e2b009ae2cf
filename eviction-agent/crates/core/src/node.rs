//! The parts of a Node object (`v1.Node`) that the agent depends on.

use super::time::Timestamp;

/// A node, as the API server returns it. The values are not validated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// `metadata.name`.
    pub name: Box<str>,
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `metadata.resourceVersion`: a patch of the taints tests it.
    pub resource_version: Box<str>,
    /// `spec.taints`, in order.
    pub taints: Vec<Taint>,
    /// `status.conditions`, in order.
    pub conditions: Vec<Condition>,
    /// `status.nodeInfo.bootID`, empty if absent.
    pub boot_id: Box<str>,
    /// `status.images`: at most 50, unless `nodeStatusMaxImages` of the kubelet sets another number.
    pub images: Vec<ContainerImage>,
}

/// `v1.ContainerImage`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerImage {
    /// `names`: tags and digests.
    pub names: Vec<Box<str>>,
    /// `sizeBytes`, as the runtime reports it: the size of the compressed content. Not negative.
    pub size_bytes: u64,
}

/// `v1.Taint`, empty where absent or null.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taint {
    /// `key`.
    pub key: Box<str>,
    /// `value`.
    pub value: Box<str>,
    /// `effect`.
    pub effect: Box<str>,
}

/// `v1.NodeCondition`, empty where absent or null.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// `type`.
    pub kind: Box<str>,
    /// `status`.
    pub status: Box<str>,
    /// `reason`.
    pub reason: Box<str>,
    /// `message`.
    pub message: Box<str>,
    /// `lastHeartbeatTime`.
    pub last_heartbeat_time: Option<Timestamp>,
    /// `lastTransitionTime`.
    pub last_transition_time: Option<Timestamp>,
}
