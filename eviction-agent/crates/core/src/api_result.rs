//! What is asked of the API server, and what its answers mean to the engine.

use std::time::Duration;

use serde::Serialize;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ApiOperation {
    /// An eviction, of which PodDisruptionBudgets have a say.
    Eviction,
    /// A deletion, of which nobody else has a say.
    Deletion,
    /// A condition on the pod.
    Condition,
    /// The pod as it is.
    Look,
    /// Taints of the node.
    Taints,
    /// Conditions of the node.
    NodeConditions,
    /// The node as it is.
    Node,
}

impl ApiOperation {
    /// The right that it takes, as RBAC has it: verb and resource.
    pub fn right(self) -> (&'static str, &'static str) {
        match self {
            Self::Eviction => ("create", "pods/eviction"),
            Self::Deletion => ("delete", "pods"),
            Self::Condition => ("patch", "pods/status"),
            Self::Look => ("get", "pods"),
            Self::Taints => ("patch", "nodes"),
            Self::NodeConditions => ("patch", "nodes/status"),
            Self::Node => ("get", "nodes"),
        }
    }

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Eviction => "eviction",
            Self::Deletion => "deletion",
            Self::Condition => "condition",
            Self::Look => "look",
            Self::Taints => "taints",
            Self::NodeConditions => "conditions",
            Self::Node => "node",
        }
    }
}

/// What an answer means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub enum ApiResult {
    /// The pod is on its way out; what was to be written is.
    Accepted,
    /// A PodDisruptionBudget says no.
    Budget {
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
    Gone,
    /// It is gone, and another has its name.
    Another,
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
            Self::Budget { .. } => "pdb_denied",
            Self::Throttled { .. } => "throttled",
            Self::Forbidden { .. } => "forbidden",
            Self::Unauthorized { .. } => "unauthorized",
            Self::Gone => "terminated",
            Self::Another => "replaced",
            Self::Rejected { .. } => "rejected",
            Self::Unknown { .. } => "unknown",
            Self::NotSent { .. } => "not_sent",
        }
    }

    /// What there is to say about it.
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Accepted | Self::Throttled { .. } | Self::Gone | Self::Another => None,
            Self::Budget { why }
            | Self::Forbidden { why }
            | Self::Unauthorized { why }
            | Self::Rejected { why, .. }
            | Self::Unknown { why }
            | Self::NotSent { why } => Some(why),
        }
    }
}
