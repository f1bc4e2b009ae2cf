//! The OOM story in an outcome: who was killed, and why containers ended.

use serde::{Deserialize, Serialize};

use eviction_core::decision::{Decision, DecisionKind};
use eviction_core::oom::{
    AttributedCause, EndedContainer, Explanation, GroupKill, KillUpdate, LimitScope, OomUpdate,
    OomVictimRole, TerminationCause,
};
use eviction_core::time::Timestamp;

/// A kill by the kernel, in brief.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KillBrief {
    /// The pod; empty if the victim was in none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The container; empty if not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub container: String,
    /// The victim's process.
    pub tgid: u32,
    /// Whose limit it was.
    pub limit_owner: LimitScope,
    /// What the victim was.
    pub victim: OomVictimRole,
    /// Since when we evict the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evicting_since: Option<Timestamp>,
    /// Processes of the group that were killed together so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub together: Option<u64>,
    /// Kills in the pod so far.
    #[serde(default)]
    pub in_pod: u64,
    /// It was told before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeated: bool,
}

/// The end of a container, in brief.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndBrief {
    /// The pod.
    pub uid: String,
    /// The container.
    pub container: String,
    /// Why it ended.
    pub verdict: TerminationCause,
    /// On what ground.
    pub ground: Explanation,
    /// Whose limit it was, if a kill had a part in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_owner: Option<LimitScope>,
    /// What else happened to it before it was gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<TerminationCause>,
}

/// What was told since the last step.
#[derive(Default)]
pub(super) struct StoryBrief {
    pub(super) oom_kills: Vec<KillBrief>,
    pub(super) ended: Vec<EndBrief>,
}

impl StoryBrief {
    pub(super) fn add(&mut self, decision: &Decision) {
        if let DecisionKind::Story(OomUpdate::Kill(note)) = &decision.subject {
            self.oom_kills.push(KillBrief::of(note));
        }
        self.ended.extend(decision.ended.iter().filter_map(EndBrief::of));
    }
}

impl KillBrief {
    fn of(note: &KillUpdate) -> Self {
        let KillUpdate { kill, at: _, repeated, pod: _, evicting_since, group, in_pod } = note;
        Self {
            uid: kill.pod.as_deref().unwrap_or_default().to_owned(),
            container: kill.container.as_deref().unwrap_or_default().to_owned(),
            tgid: kill.tgid,
            limit_owner: kill.owner,
            victim: kill.victim,
            evicting_since: *evicting_since,
            together: group.as_ref().map(GroupKill::processes),
            in_pod: *in_pod,
            repeated: *repeated,
        }
    }
}

impl EndBrief {
    fn of(ended: &EndedContainer) -> Option<Self> {
        let (first, others) = ended.causes.split_first()?;
        let AttributedCause { verdict, ground, at: _, limit_owner: _ } = first;
        Some(Self {
            uid: ended.uid.to_string(),
            container: ended.container.to_string(),
            verdict: *verdict,
            ground: *ground,
            limit_owner: ended.causes.iter().find_map(|cause| cause.limit_owner),
            also: others.iter().map(|cause| cause.verdict).collect(),
        })
    }
}
