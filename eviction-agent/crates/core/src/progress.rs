//! What executors report: how far an eviction has come, what the API server answered, and the result.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::pod::PodName;

/// One step of carrying out a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KillUpdate {
    /// Number of the decision.
    pub decision: u64,
    /// Whose processes.
    pub pod: Arc<PodName>,
    /// When: CLOCK_MONOTONIC in nanoseconds.
    pub at_ns: u64,
    /// What.
    pub progress: KillProgress,
}

/// How far it has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KillProgress {
    /// Dry run: these processes would have been signalled. Nothing follows.
    WouldSignal {
        /// Their process ids, sorted.
        pids: Vec<u32>,
        /// Processes of the pod that this PID namespace does not show.
        unreachable: u32,
    },
    /// SIGTERM was sent.
    TermSent(Signalled),
    /// SIGKILL was sent.
    KillSent {
        /// To how many.
        signalled: Signalled,
        /// By how many bytes the pod had grown since SIGTERM, if that is why the grace period was cut short.
        grown: Option<u64>,
    },
    /// A step could not be done; the work goes on without it.
    Error {
        /// Operation, subject and cause.
        what: String,
    },
    /// No process is left in the pod's cgroup. Nothing follows.
    Terminated {
        /// Processes that SIGKILL was sent to; the others ended by themselves or with the group.
        killed: u32,
        /// Tasks that ended but were not waited for by their parents, where the pids controller
        /// tells. They hold process ids, but no memory.
        unreaped: Option<u64>,
    },
    /// Given up: these survive. Nothing follows.
    ProcessesRemaining {
        /// Who and why, by process id.
        processes: Vec<UnkillableProcess>,
        /// Processes of the pod that this PID namespace does not show.
        unreachable: u32,
        /// Cgroups below the pod's that cannot be read.
        unreadable_groups: u32,
    },
    /// The API server answered, or it is known why it did not.
    Answered {
        /// What was requested.
        operation: ApiOperation,
        /// What the answer means.
        answered: ApiResult,
        /// Nothing was to be written.
        is_dry: bool,
    },
    /// The agent ends before the work does. Whatever was stopped or frozen goes on again.
    Abandoned,
}

impl KillProgress {
    /// Whether nothing follows.
    pub fn is_last(&self) -> bool {
        match self {
            Self::WouldSignal { .. }
            | Self::Terminated { .. }
            | Self::ProcessesRemaining { .. }
            | Self::Abandoned => true,
            Self::TermSent(_) | Self::KillSent { .. } | Self::Error { .. } | Self::Answered { .. } => false,
        }
    }
}

/// How many processes one pass over the pod's cgroup has met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Signalled {
    /// The signal was sent to so many.
    pub sent: u32,
    /// Ended by themselves before they could be signalled.
    pub ended: u32,
    /// Were in another cgroup by then, and were let be.
    pub moved: u32,
    /// No signal could be sent: CAP_KILL or a free descriptor is missing.
    pub denied: u32,
    /// In the cgroup, but outside this PID namespace.
    pub unreachable: u32,
    /// Cgroups below the pod's that could not be read.
    pub unreadable_groups: u32,
    /// The kernel has killed the whole group at once, whoever is in it.
    pub whole_group: bool,
}

/// A process that SIGKILL has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnkillableProcess {
    /// Its process id.
    pub pid: u32,
    /// Why it is still there.
    pub why: UnkillableReason,
}

/// Why a process outlives SIGKILL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UnkillableReason {
    /// In uninterruptible sleep, most often for a device or a file server.
    Uninterruptible,
    /// Its main thread has ended, others have not.
    Zombie,
    /// Frozen by a cgroup above the pod's.
    Frozen,
    /// Signals do not end kernel threads.
    KernelThread,
    /// No signal could be sent: CAP_KILL or a free descriptor is missing.
    Denied,
    /// It runs; it may have come at the last moment.
    Running,
}

/// Why a decision is not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "why")]
pub enum KillRejection {
    /// The last victim for the same pressure still has time to go.
    VictimPending {
        /// The decision that it goes by.
        decision: u64,
        /// When the next one may follow, at the latest.
        until_ns: u64,
    },
    /// The pod was killed a moment ago: something restarts it.
    CoolDown {
        /// When it may be killed again.
        until_ns: u64,
    },
    /// The pod was killed too often lately.
    PodLimit {
        /// How often.
        kills: u32,
        /// When it may be killed again.
        until_ns: u64,
    },
    /// Too many pods of this node were killed lately.
    NodeLimit {
        /// How many.
        kills: u32,
        /// When the next one may be killed.
        until_ns: u64,
    },
    /// Too many pods are being killed.
    Busy {
        /// How many.
        in_flight: u32,
    },
    /// The pod is terminating by this decision already.
    #[serde(rename = "already_going")]
    AlreadyTerminating {
        /// Which one.
        decision: u64,
    },
    /// The kernel has just killed a process of another pod for the same crossing: that one goes.
    #[serde(rename = "struck")]
    KilledInKernel,
    /// Made so long ago that what it was made on may no longer be true.
    Stale {
        /// How long ago.
        age_ns: u64,
    },
    /// No process is in the pod's cgroup, or the cgroup is gone.
    Empty,
    /// All of the pod's processes are outside this PID namespace.
    Unreachable {
        /// How many.
        processes: u32,
    },
    /// The cgroup is not what the decision was made about, or not one to be killed.
    NotAPod {
        /// Operation, subject and cause.
        what: String,
    },
    /// The executor has stopped working.
    Broken {
        /// Operation, subject and cause.
        what: String,
    },
}

impl std::fmt::Display for KillRejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::VictimPending { decision, .. } => {
                write!(f, "the victim of decision {decision} still has time to go")
            }
            Self::CoolDown { .. } => f.write_str("the pod was killed a moment ago"),
            Self::PodLimit { kills, .. } => write!(f, "the pod was killed {kills} times lately"),
            Self::NodeLimit { kills, .. } => {
                write!(f, "{kills} pods of this node were killed lately")
            }
            Self::Busy { in_flight } => write!(f, "{in_flight} pods are being killed"),
            Self::AlreadyTerminating { decision } => {
                write!(f, "the pod goes by decision {decision} already")
            }
            Self::KilledInKernel => {
                f.write_str("the kernel has just killed a process of another pod for the same crossing")
            }
            Self::Stale { age_ns } => {
                write!(f, "the decision is {} ms old", age_ns / 1_000_000)
            }
            Self::Empty => f.write_str("no process is in the pod's cgroup"),
            Self::Unreachable { processes } => {
                write!(f, "none of the pod's {processes} processes is in the agent's PID namespace")
            }
            Self::NotAPod { what } | Self::Broken { what } => f.write_str(what),
        }
    }
}

impl KillRejection {
    /// What can be done about it.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            Self::Unreachable { .. } => Some(HOST_PID),
            _ => None,
        }
    }
}

/// Said where processes are outside the PID namespace.
pub const HOST_PID: &str = "run the agent in the host's PID namespace (hostPID: true)";

crate::named_enum! {
    /// What was requested.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum ApiOperation {
        /// An eviction, of which PodDisruptionBudgets have a say.
        Eviction = "eviction",
        /// A deletion, of which nobody else has a say.
        Deletion = "deletion",
        /// A condition on the pod.
        Condition = "condition",
        /// The pod as it is.
        #[serde(rename = "look")]
        GetPod = "look",
        /// Taints of the node.
        Taints = "taints",
        /// Conditions of the node.
        NodeConditions = "conditions",
        /// The node as it is.
        Node = "node",
        /// A new Event.
        CreateEvent = "event",
        /// The count of an Event.
        PatchEvent = "event_count",
    }
}

impl ApiOperation {
    /// The right that it takes, as RBAC has it: verb and resource.
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

/// What an answer means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub enum ApiResult {
    /// The pod is terminating; what was to be written is.
    Accepted,
    /// A PodDisruptionBudget says no.
    #[serde(rename = "budget")]
    PdbDenied {
        /// In the server's words.
        why: Box<str>,
    },
    /// The server has too much to do: nothing was done.
    Throttled {
        /// How long it wants to be left alone.
        pause: Duration,
    },
    /// The agent has no right to ask for this.
    Forbidden {
        /// In the server's words.
        why: Box<str>,
    },
    /// Who the agent is was not believed: nothing was done.
    Unauthorized {
        /// In the server's words.
        why: Box<str>,
    },
    /// The pod, or the node, is gone.
    #[serde(rename = "gone")]
    Terminated,
    /// It is gone, and another has its name.
    #[serde(rename = "another")]
    Replaced,
    /// It was refused, for example by an admission webhook.
    Rejected {
        /// The HTTP status.
        status: u16,
        /// In the server's words.
        why: Box<str>,
    },
    /// It may have been done or not: no answer, or none that says so.
    Unknown {
        /// What is known.
        why: Box<str>,
    },
    /// It was not sent, and so nothing was done.
    NotSent {
        /// What is known.
        why: Box<str>,
    },
}

impl ApiResult {
    /// What people call it.
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

    /// What there is to say about it.
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

/// What came of an eviction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvictionResult {
    /// Whose.
    pub uid: Box<str>,
    /// Whether the pod is gone, or why it does not go.
    pub result: Result<(), NotEvicted>,
}

/// Why a pod does not go that was to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotEvicted {
    /// It was tried, and this is why it failed.
    Failed(Box<str>),
    /// A PodDisruptionBudget does not allow it for now.
    PdbDenied,
    /// Nobody took the request: as if nothing had been decided.
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
