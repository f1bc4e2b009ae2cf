//! How victims of a crossing are ended, and what the node says meanwhile.

use ::tests::node::MIB;
use serde_json::{Value, json};

use crate::case::Case;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By the kubelet, which is asked to: the node has no taint.
    Evict,
    /// The same on a node that is tainted first: the eviction waits for the answer to that.
    Taint,
    /// By the agent itself at the same moment. A victim has so many MiB: the kernel takes the longer
    /// to end it, the more it has.
    EvictAndKill { mib: u64 },
}

impl Way {
    pub(super) const ALL: [Self; 4] =
        [Self::Evict, Self::Taint, Self::EvictAndKill { mib: MODERATE_MIB }, Self::EvictAndKill { mib: 256 }];

    /// As rows have it.
    pub(super) fn name(self) -> String {
        let way = match self {
            Self::Evict => "taints off".to_owned(),
            Self::Taint => "taint awaited".to_owned(),
            Self::EvictAndKill { mib } => format!("evict and kill, {mib} MiB"),
        };
        format!("{}, {way}", self.case().name())
    }

    /// What crosses which line.
    pub(super) fn case(self) -> Case {
        let case = Case::new(1);
        match self {
            Self::Evict | Self::Taint => case,
            Self::EvictAndKill { mib } => Case { line: mib * MIB, ..case },
        }
    }

    /// `eviction` of the agent's configuration.
    pub(super) fn eviction(self) -> Value {
        let (mode, taints) = match self {
            Self::Evict => ("Evict", false),
            Self::Taint => ("Evict", true),
            Self::EvictAndKill { .. } => ("EvictAndKill", false),
        };
        json!({"hardMode": mode, "nodeStatus": {"noSchedule": taints, "preferNoSchedule": taints}})
    }

    /// Whether each crossing taints the node.
    pub(super) fn taints(self) -> bool {
        self == Self::Taint
    }

    pub(super) fn kills(self) -> bool {
        matches!(self, Self::EvictAndKill { .. })
    }

    /// Whether its victims are of the size that the goal is for.
    pub(super) fn is_moderate(self) -> bool {
        self == Self::EvictAndKill { mib: MODERATE_MIB }
    }
}

/// What a victim has that is to be dead soon.
const MODERATE_MIB: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_by_which_runs_are_compared() {
        let expected = [
            "idle, fresh, 1 GB/s, taints off",
            "idle, fresh, 1 GB/s, taint awaited",
            "idle, fresh, 1 GB/s, evict and kill, 64 MiB",
            "idle, fresh, 1 GB/s, evict and kill, 256 MiB",
        ];
        assert_eq!(Way::ALL.map(Way::name), expected);
    }
}
