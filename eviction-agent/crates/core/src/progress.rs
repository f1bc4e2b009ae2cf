//! The reports of executors: how far an eviction has come, the answers of the API server, and the result.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One step of carrying out a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillUpdate {
    /// The number of the decision.
    pub decision: u64,
    /// The time of the step: CLOCK_MONOTONIC in nanoseconds.
    pub at_ns: u64,
    /// The step.
    pub progress: KillProgress,
}

/// The progress of carrying out a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KillProgress {
    /// Dry run: these processes would have been signalled. Nothing follows.
    WouldSignal {
        /// Their process ids, sorted.
        pids: Vec<u32>,
        /// The number of processes of the pod that are not visible in this PID namespace.
        unreachable: u32,
    },
    /// SIGTERM was sent.
    TermSent(Signalled),
    /// SIGKILL was sent.
    KillSent {
        /// The processes that it was sent to.
        signalled: Signalled,
        /// By how many bytes the pod had grown since SIGTERM, if that ended the grace period early.
        grown: Option<u64>,
    },
    /// A step failed. The work continues without it.
    Error {
        /// Operation, subject and cause.
        what: String,
    },
    /// No process is left in the pod's cgroup. Nothing follows.
    Terminated {
        /// The number of processes that SIGKILL was sent to. The others ended by themselves or with the group.
        killed: u32,
        /// The number of tasks that ended but were not reaped by their parents, if the pids controller shows
        /// it. They hold process ids, but no memory.
        unreaped: Option<u64>,
    },
    /// The executor gave up: these processes survive. Nothing follows.
    ProcessesRemaining {
        /// Why each process still exists, by process id.
        processes: BTreeMap<u32, UnkillableReason>,
        /// The number of processes of the pod that are not visible in this PID namespace.
        unreachable: u32,
        /// The number of cgroups below the pod's that cannot be read.
        unreadable_groups: u32,
    },
    /// The API server answered, or it is known why it did not.
    Answered {
        /// The requested operation.
        operation: ApiOperation,
        /// The meaning of the answer.
        answered: ApiResult,
        /// Whether the request was a dry run, which writes nothing.
        is_dry: bool,
    },
    /// The agent ends before the work does. Stopped or frozen processes continue.
    Abandoned,
}

impl KillProgress {
    /// Returns whether no further update follows.
    pub fn is_last(&self) -> bool {
        matches!(
            self,
            Self::WouldSignal { .. }
                | Self::Terminated { .. }
                | Self::ProcessesRemaining { .. }
                | Self::Abandoned
        )
    }
}

/// The number of processes by result, for one iteration over the pod's cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signalled {
    /// Processes that the signal was sent to.
    pub sent: u32,
    /// Processes that ended by themselves before they could be signalled.
    pub ended: u32,
    /// Processes that had moved to another cgroup and were left alone.
    pub moved: u32,
    /// Processes that could not be signalled: CAP_KILL or a free descriptor is missing.
    pub denied: u32,
    /// Processes in the cgroup, but outside this PID namespace.
    pub unreachable: u32,
    /// Cgroups below the pod's that could not be read.
    pub unreadable_groups: u32,
    /// Whether the kernel killed all processes of the cgroup at once.
    pub whole_group: bool,
}

/// Why a process still exists after SIGKILL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnkillableReason {
    /// The process is in uninterruptible sleep, most often because of a device or a file server.
    Uninterruptible,
    /// The main thread has ended, but other threads have not.
    Zombie,
    /// The process is frozen by a cgroup above the pod's.
    Frozen,
    /// The process is a kernel thread, which signals do not end.
    KernelThread,
    /// The process could not be signalled: CAP_KILL or a free descriptor is missing.
    Denied,
    /// The process is running. It may have been created at the last moment.
    Running,
}

/// Why a decision is not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KillRejection {
    /// The pod was killed a moment ago, and something restarts it.
    #[error("the pod was killed a moment ago")]
    CoolDown {
        /// When the pod may be killed again, in nanoseconds.
        until_ns: u64,
    },
    /// The pod was killed too often lately.
    #[error("the pod was killed {kills} times lately")]
    PodLimit {
        /// The number of kills.
        kills: u32,
        /// When the pod may be killed again, in nanoseconds.
        until_ns: u64,
    },
    /// Too many pods of this node were killed lately.
    #[error("{kills} pods of this node were killed lately")]
    NodeLimit {
        /// The number of kills.
        kills: u32,
        /// When the next pod may be killed, in nanoseconds.
        until_ns: u64,
    },
    /// Too many pods are being killed.
    #[error("{in_flight} pods are being killed")]
    Busy {
        /// The number of those pods.
        in_flight: u32,
    },
    /// The pod is already terminating by an earlier decision.
    #[error("the pod goes by decision {decision} already")]
    AlreadyTerminating {
        /// That decision.
        decision: u64,
    },
    /// The kernel has just killed a process of another pod for the same threshold crossing. That pod is the victim.
    #[error("the kernel has just killed a process of another pod for the same crossing")]
    KilledInKernel,
    /// The decision is so old that the values it is based on may no longer be true.
    #[error("the decision is {} ms old", .age_ns / 1_000_000)]
    Stale {
        /// The age of the decision, in nanoseconds.
        age_ns: u64,
    },
    /// The pod's cgroup has no processes, or was removed.
    #[error("no process is in the pod's cgroup")]
    Empty,
    /// All of the pod's processes are outside this PID namespace.
    #[error("none of the pod's {processes} processes is in the agent's PID namespace")]
    Unreachable {
        /// The number of processes.
        processes: u32,
    },
    /// The cgroup is not the one that the decision is about, or must not be killed.
    #[error("{what}")]
    NotAPod {
        /// Operation, subject and cause.
        what: String,
    },
    /// The executor has stopped working.
    #[error("{what}")]
    Broken {
        /// Operation, subject and cause.
        what: String,
    },
}

impl KillRejection {
    /// Returns what can be done about the rejection.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            Self::Unreachable { .. } => Some(HOST_PID),
            _ => None,
        }
    }
}

/// The help for processes outside the PID namespace.
pub const HOST_PID: &str = "run the agent in the host's PID namespace (hostPID: true)";

crate::named_enum! {
    /// An operation of the API.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum ApiOperation {
        /// An eviction, which PodDisruptionBudgets may deny.
        Eviction = "eviction",
        /// A deletion, which PodDisruptionBudgets do not affect.
        Deletion = "deletion",
        /// A patch of a condition of the pod.
        Condition = "condition",
        /// A read of the pod.
        GetPod = "get_pod",
        /// A patch of the node's taints.
        Taints = "taints",
        /// A patch of the node's conditions.
        NodeConditions = "conditions",
        /// A read of the node.
        Node = "node",
        /// The creation of an Event.
        CreateEvent = "event",
        /// A patch of the count of an Event.
        PatchEvent = "event_count",
    }
}

impl ApiOperation {
    /// Returns the verb and the resource of the RBAC permission that the operation needs.
    pub fn right(self) -> (&'static str, &'static str) {
        match self {
            Self::Eviction => ("create", "pods/eviction"),
            Self::Deletion => ("delete", "pods"),
            Self::Condition => ("patch", "pods/status"),
            Self::GetPod => ("get", "pods"),
            Self::Taints => ("patch", "nodes"),
            Self::NodeConditions => ("patch", "nodes/status"),
            Self::Node => ("get", "nodes"),
            Self::CreateEvent => ("create", "events.events.k8s.io"),
            Self::PatchEvent => ("patch", "events.events.k8s.io"),
        }
    }
}

/// The meaning of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiResult {
    /// The pod is terminating, or the object was written.
    Accepted,
    /// A PodDisruptionBudget denied the eviction.
    PdbDenied {
        /// The message of the server.
        why: Box<str>,
    },
    /// The server has too many requests: nothing was done.
    Throttled {
        /// How long the server asks to wait.
        pause: Duration,
    },
    /// The agent has no permission for the operation.
    Forbidden {
        /// The message of the server.
        why: Box<str>,
    },
    /// The server did not accept the agent's credentials: nothing was done.
    Unauthorized {
        /// The message of the server.
        why: Box<str>,
    },
    /// The pod, or the node, no longer exists.
    Terminated,
    /// The pod, or the node, no longer exists, and another one has its name.
    Replaced,
    /// The request was rejected, for example by an admission webhook.
    Rejected {
        /// The HTTP status.
        status: u16,
        /// The message of the server.
        why: Box<str>,
    },
    /// The request may have been carried out or not: there was no answer, or none that shows it.
    Unknown {
        /// The known reason.
        why: Box<str>,
    },
    /// The request was not sent, so nothing was done.
    NotSent {
        /// The known reason.
        why: Box<str>,
    },
}

impl ApiResult {
    /// Returns the name of the result.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::PdbDenied { .. } => "pdb_denied",
            Self::Throttled { .. } => "throttled",
            Self::Forbidden { .. } => "forbidden",
            Self::Unauthorized { .. } => "unauthorized",
            Self::Terminated => "terminated",
            Self::Replaced => "replaced",
            Self::Rejected { .. } => "rejected",
            Self::Unknown { .. } => "unknown",
            Self::NotSent { .. } => "not_sent",
        }
    }

    /// Returns the reason of the result, if there is one.
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Accepted | Self::Throttled { .. } | Self::Terminated | Self::Replaced => None,
            Self::PdbDenied { why }
            | Self::Forbidden { why }
            | Self::Unauthorized { why }
            | Self::Rejected { why, .. }
            | Self::Unknown { why }
            | Self::NotSent { why } => Some(why),
        }
    }
}

/// Why a pod was not evicted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotEvicted {
    /// The eviction was tried and failed for this reason.
    Failed(Box<str>),
    /// A PodDisruptionBudget does not allow it for now.
    PdbDenied,
    /// No executor accepted the request. The decision counts as not made.
    NotAsked,
}

impl From<&str> for NotEvicted {
    fn from(why: &str) -> Self {
        Self::Failed(why.into())
    }
}

impl From<String> for NotEvicted {
    fn from(why: String) -> Self {
        Self::Failed(why.into())
    }
}
