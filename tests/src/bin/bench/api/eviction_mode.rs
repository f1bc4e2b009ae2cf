//! How victims of a crossing are ended, and the node's taints meanwhile.

use ::tests::node::MIB;
use serde_json::{Value, json};

use crate::case::Case;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictionMode {
    /// The kubelet ends the victim after an eviction request; the node has no taint.
    Evict,
    /// Like `Evict`, on a node that is tainted first: the eviction waits for the response to that.
    Taint,
    /// The agent kills the victim at the same moment. The victim has `mib` MiB: the more memory it has, the
    /// longer the kernel takes to end it.
    EvictAndKill { mib: u64 },
}

impl EvictionMode {
    pub(super) const ALL: [Self; 4] =
        [Self::Evict, Self::Taint, Self::EvictAndKill { mib: MODERATE_MIB }, Self::EvictAndKill { mib: 256 }];

    /// Returns the name in rows.
    pub(super) fn name(self) -> String {
        let mode = match self {
            Self::Evict => "taints off".to_owned(),
            Self::Taint => "taint awaited".to_owned(),
            Self::EvictAndKill { mib } => format!("evict and kill, {mib} MiB"),
        };
        format!("{}, {mode}", self.case().name())
    }

    /// Returns the case of the crossing.
    pub(super) fn case(self) -> Case {
        let case = Case::new(1);
        match self {
            Self::Evict | Self::Taint => case,
            Self::EvictAndKill { mib } => Case { max_working_set: mib * MIB, ..case },
        }
    }

    /// Returns `eviction` of the agent's configuration.
    pub(super) fn eviction(self) -> Value {
        let (mode, taints) = match self {
            Self::Evict => ("Evict", false),
            Self::Taint => ("Evict", true),
            Self::EvictAndKill { .. } => ("EvictAndKill", false),
        };
        json!({"hardMode": mode, "nodeStatus": {"noSchedule": taints, "preferNoSchedule": taints}})
    }

    /// Returns whether each crossing taints the node.
    pub(super) fn taints(self) -> bool {
        self == Self::Taint
    }

    pub(super) fn kills(self) -> bool {
        matches!(self, Self::EvictAndKill { .. })
    }

    /// Returns whether the victims have the size to which the goal applies.
    pub(super) fn is_moderate(self) -> bool {
        self == Self::EvictAndKill { mib: MODERATE_MIB }
    }
}

/// The size of victims to which the goal for the time to death applies.
const MODERATE_MIB: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_names_are_stable() {
        let expected = [
            "idle, fresh, 1 GB/s, taints off",
            "idle, fresh, 1 GB/s, taint awaited",
            "idle, fresh, 1 GB/s, evict and kill, 64 MiB",
            "idle, fresh, 1 GB/s, evict and kill, 256 MiB",
        ];
        assert_eq!(EvictionMode::ALL.map(EvictionMode::name), expected);
    }
}
