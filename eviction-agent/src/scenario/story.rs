//! OOM kills and terminated containers in an outcome.

use serde::{Deserialize, Serialize};

use eviction_core::decision::{Decision, DecisionKind};
use eviction_core::oom::{
    ContainerTerminated, Explanation, LimitScope, OomKill, OomUpdate, OomVictimRole, TerminationCause,
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
        if let DecisionKind::Oom(OomUpdate::Kill(kill)) = &decision.kind {
            self.oom_kills.push(KillBrief::of(kill));
        }
        self.ended.extend(decision.ended.iter().filter_map(EndBrief::of));
    }
}

impl KillBrief {
    fn of(kill: &OomKill) -> Self {
        Self {
            uid: kill.pod_uid.as_deref().unwrap_or_default().to_owned(),
            container: kill.container.as_deref().unwrap_or_default().to_owned(),
            tgid: kill.pid,
            limit_owner: kill.limit_scope,
            victim: kill.victim,
            evicting_since: kill.evicting_since,
            together: kill.group.as_ref().map(|group| group.kills),
            in_pod: kill.kills_in_pod,
            repeated: kill.repeated,
        }
    }
}

impl EndBrief {
    fn of(terminated: &ContainerTerminated) -> Option<Self> {
        Some(Self {
            uid: terminated.pod_uid.to_string(),
            container: terminated.container.to_string(),
            verdict: terminated.cause(),
            ground: terminated.causes.first()?.explanation,
            limit_owner: terminated.limit_scope(),
            also: terminated.contributing().collect(),
        })
    }
}
