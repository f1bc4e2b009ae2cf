//! A scenario through the configuration and the engine, to its outcome.

use std::collections::HashSet;

use eviction_config::{AgentConfiguration, kubelet_policy, parse_agent};
use eviction_core::decision::{Decision, DecisionKind};
use eviction_core::oom::{
    ContainerTerminated, Explanation, LimitScope, OomKill, OomUpdate, OomVictimRole, TerminationCause,
};
use eviction_core::pod::{Pod, PodName};
use eviction_core::policy::Policy;
use eviction_core::policy::preferences::Profile;
use eviction_core::record::DecisionRecord;
use eviction_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::scenario::format::{Outcome, Scenario, Step};
use crate::scenario::inputs::Proposed;
use crate::scenario::simulator::Simulator;

/// Why a scenario makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// The uid is the key of a pod.
    #[error("pods[{place}]: uid {uid:?} occurs twice")]
    RepeatedUid {
        /// The second pod with it.
        place: usize,
        /// The uid.
        uid: Box<str>,
    },
    /// A step names a pod that there is not.
    #[error("steps[{step}].{field}: no pod has uid {uid:?}")]
    UnknownUid {
        /// Which step.
        step: usize,
        /// Where it is named.
        field: &'static str,
        /// Who is named.
        uid: Box<str>,
    },
    /// A configuration that is proposed has errors: live, it would never get to the engine.
    #[error("steps[{step}].propose: {text}")]
    BadProposal {
        /// Which step.
        step: usize,
        /// What is wrong.
        text: String,
    },
    /// A step sees nothing, and does not say that the look fails.
    #[error("steps[{step}]: neither summary nor summaryError")]
    NoSummary {
        /// Which step.
        step: usize,
    },
}

/// What is laid over the configuration that scenarios have of the agent.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Stands in the place of every `agentConfiguration`.
    pub agent: Option<AgentConfiguration>,
    /// Stands in the place of its profile.
    pub profile: Option<Profile>,
}

/// Runs a scenario as it is written.
/// A scenario's outcome, and how every decision of it came about.
#[derive(Clone, Debug)]
pub struct Explained {
    /// What came of it.
    pub outcome: Outcome,
    /// Every pod there was.
    pub pods: Vec<PodName>,
    /// Of all passes and admissions, in their order.
    pub reports: Vec<DecisionRecord>,
}

/// Runs a scenario.
///
/// # Errors
/// If the scenario contradicts itself. An error of its configuration is an outcome.
pub fn run(scenario: Scenario) -> Result<Outcome, ScenarioError> {
    run_under(scenario, &Overrides::default())
}

/// Runs a scenario.
///
/// # Errors
/// As [`run`].
pub fn run_under(scenario: Scenario, overrides: &Overrides) -> Result<Outcome, ScenarioError> {
    play(scenario, overrides, false).map(|explained| explained.outcome)
}

/// Runs a scenario and keeps the reports.
///
/// # Errors
/// As [`run`].
pub fn explain_under(scenario: Scenario, overrides: &Overrides) -> Result<Explained, ScenarioError> {
    play(scenario, overrides, true)
}

fn play(scenario: Scenario, overrides: &Overrides, keep_reports: bool) -> Result<Explained, ScenarioError> {
    let Scenario { name, kubelet_configuration, agent_configuration, filesystems, pods, steps } = scenario;
    let pods: Vec<Pod> = pods.into_iter().map(Pod::from).collect();
    validate(&pods, &steps)?;
    let outcome = Outcome { name, ..Outcome::default() };
    let names = pods.iter().map(PodName::of).collect();
    let policy = match policy(&kubelet_configuration, &agent_configuration, overrides) {
        Ok(policy) => policy,
        Err((stage, text)) => {
            let outcome =
                Outcome { config_error: Some(text), config_error_stage: stage.to_owned(), ..outcome };
            return Ok(Explained { outcome, pods: names, reports: Vec::new() });
        }
    };
    let proposed = steps.iter().enumerate().map(|(place, step)| {
        let Some(Proposed { kubelet_configuration: kubelet, agent_configuration: agent }) = &step.propose
        else {
            return Ok(None);
        };
        let kubelet = kubelet.as_ref().unwrap_or(&kubelet_configuration);
        let agent = agent.as_ref().unwrap_or(&agent_configuration);
        let changed = self::policy(kubelet, agent, overrides);
        changed.map(Some).map_err(|(_, text)| ScenarioError::BadProposal { step: place, text })
    });
    let mut world = Simulator::new(policy, filesystems, pods);
    if keep_reports {
        world.keep_reports();
    }
    let outcomes = steps.iter().zip(proposed).map(|(step, proposed)| Ok(world.step(step, proposed?)));
    let outcome = Outcome { steps: outcomes.collect::<Result<_, ScenarioError>>()?, ..outcome };
    Ok(Explained { outcome, pods: names, reports: world.into_reports() })
}

/// What the engine decides by, or the stage at which the configuration fails, and why.
fn policy(kubelet: &Value, agent: &Value, overrides: &Overrides) -> Result<Policy, (&'static str, String)> {
    let kubelet = kubelet_policy(kubelet).map_err(|error| (error.stage, error.text))?;
    let mut agent = match &overrides.agent {
        Some(agent) => agent.clone(),
        None => parse_agent(agent).map_err(|problems| ("agent", problems.to_string()))?,
    };
    if let Some(profile) = overrides.profile {
        agent.profile = profile;
    }
    Ok(agent.over(kubelet))
}

fn validate(pods: &[Pod], steps: &[Step]) -> Result<(), ScenarioError> {
    let mut uids = HashSet::new();
    for (place, pod) in pods.iter().enumerate() {
        if !uids.insert(&*pod.uid) {
            let uid = pod.uid.clone();
            return Err(ScenarioError::RepeatedUid { place, uid });
        }
    }
    for (place, step) in steps.iter().enumerate() {
        if step.summary.is_none() && step.summary_error.is_empty() {
            return Err(ScenarioError::NoSummary { step: place });
        }
        let active = step.active_pods.iter().flatten();
        let active = active.map(|uid| ("activePods", uid));
        let admit = step.admit.iter().map(|uid| ("admit", uid));
        let evicted = step.evicted.iter().flatten().map(|evicted| ("evicted", &evicted.uid));
        for (field, uid) in active.chain(admit).chain(evicted) {
            if !uids.contains(&**uid) {
                return Err(ScenarioError::UnknownUid { step: place, field, uid: uid.clone() });
            }
        }
    }
    Ok(())
}

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
            uid: terminated.container.pod_uid.to_string(),
            container: terminated.container.name.to_string(),
            verdict: terminated.cause(),
            ground: terminated.causes.first()?.explanation,
            limit_owner: terminated.limit_scope(),
            also: terminated.contributing().collect(),
        })
    }
}
