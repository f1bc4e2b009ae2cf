//! A kill by the kernel, as the engine is told of it.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The kernel killed a process for want of memory. No eviction, whatever else goes on in the pod.
///
/// One record a process. Where the kernel kills all processes of a group at once
/// (`memory.oom.group`) each has a record of its own, and all carry the same [`group`](Self::group).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OomKill {
    /// When the kernel chose the victim, by the wall clock; if not known, when it was learned. A
    /// record with the same instant and the same process is the same kill.
    pub at: Option<Timestamp>,
    /// The victim's process; 0 if nobody saw which it was: such a record is never a repeated one.
    pub tgid: u32,
    /// The thread of it that the kernel named.
    pub pid: u32,
    /// Its name as the kernel has it, at most 15 bytes; may hold anything.
    pub comm: Box<str>,
    /// Uid of its pod as the API has it; `None` if it was in no pod or nobody knows.
    pub pod: Option<Box<str>>,
    /// Name of its container, else the start of its id.
    pub container: Option<Box<str>>,
    /// The runtime's id of the container: a restarted one has another.
    pub instance: Option<Box<str>>,
    /// Whose limit it was.
    pub owner: LimitScope,
    /// The owner was concluded from usage and limits, since the kernel did not say.
    pub inferred: bool,
    /// What the victim was to its container.
    pub victim: OomVictimRole,
    /// The group all of whose processes the kernel killed together, by its cgroup's id.
    pub group: Option<u64>,
    /// Usage of the limit's owner, bytes.
    pub usage: Option<u64>,
    /// The limit, bytes.
    pub limit: Option<u64>,
    /// Since when the owner had been near its limit, if that was seen.
    pub near_since: Option<Timestamp>,
    /// The victim's anonymous memory, bytes.
    pub anon: Option<u64>,
    /// Its resident file pages, bytes.
    pub file: Option<u64>,
    /// Its resident shared memory, bytes.
    pub shmem: Option<u64>,
    /// What of it was swapped out, bytes.
    pub swap: Option<u64>,
    /// What user space had asked the kernel to think of it.
    pub oom_score_adj: Option<i32>,
    /// The process in whose context the kernel killed: who asked for a page too many.
    pub trigger: Option<u32>,
    /// That one's name.
    pub trigger_comm: Box<str>,
}

/// Whose memory limit a kill was about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitScope {
    /// The container's.
    Container,
    /// The pod's.
    Pod,
    /// That of a QoS class.
    Qos,
    /// That of all pods together.
    Kubepods,
    /// The machine itself, or the group that stands for the node.
    Node,
    /// That of another group, such as a system service's.
    Other,
    /// Nobody knows.
    #[default]
    Unknown,
}

impl LimitScope {
    /// Every owner, in the order of their places.
    pub const ALL: [Self; 7] =
        [Self::Container, Self::Pod, Self::Qos, Self::Kubepods, Self::Node, Self::Other, Self::Unknown];

    /// As metrics and lines write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Pod => "pod",
            Self::Qos => "qos",
            Self::Kubepods => "kubepods",
            Self::Node => "node",
            Self::Other => "other",
            Self::Unknown => "unknown",
        }
    }
}

/// What the victim was to its container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OomVictimRole {
    /// Its first process: the container ends with it.
    Main,
    /// Another process: the container may well go on.
    Child,
    /// Nobody knows.
    #[default]
    Unknown,
}

impl OomVictimRole {
    /// Every kind, in the order of their places.
    pub const ALL: [Self; 3] = [Self::Main, Self::Child, Self::Unknown];

    /// As metrics and lines write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Main => "init",
            Self::Child => "child",
            Self::Unknown => "unknown",
        }
    }
}
