//! Runs a scenario through the configuration and the engine.

use std::collections::HashSet;

use eviction_config::{AgentConfiguration, kubelet_policy, parse_agent};
use eviction_core::pod::{Pod, PodName};
use eviction_core::policy::Policy;
use eviction_core::policy::preferences::Profile;
use eviction_core::record::DecisionRecord;
use serde_json::Value;

use crate::scenario::format::{ChangedConfig, Outcome, Scenario, Step};
use crate::scenario::simulator::Simulator;

/// Overrides of the agent configuration of scenarios.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Replaces every `agentConfiguration`.
    pub agent: Option<AgentConfiguration>,
    /// Replaces the profile.
    pub profile: Option<Profile>,
}

/// The outcome of a scenario, with the records that explain its decisions.
#[derive(Clone, Debug)]
pub struct ExplainedScenario {
    /// The outcome.
    pub outcome: Outcome,
    /// All pods of the scenario.
    pub pods: Vec<PodName>,
    /// The records of all evaluations and admissions, in order.
    pub reports: Vec<DecisionRecord>,
}

/// Runs a scenario.
///
/// # Errors
/// If the scenario contradicts itself. An error of its configuration is an outcome.
pub fn run(scenario: Scenario, overrides: &Overrides) -> Result<ExplainedScenario, String> {
    let Scenario { name, kubelet_configuration, agent_configuration, filesystems, pods, steps, .. } =
        scenario;
    let pods: Vec<Pod> = pods.into_iter().map(Pod::from).collect();
    validate(&pods, &steps)?;
    let outcome = Outcome { name, ..Outcome::default() };
    let names = pods.iter().map(PodName::of).collect();
    let policy = match policy(&kubelet_configuration, &agent_configuration, overrides) {
        Ok(policy) => policy,
        Err((stage, text)) => {
            let outcome =
                Outcome { config_error: Some(text), config_error_stage: stage.to_owned(), ..outcome };
            return Ok(ExplainedScenario { outcome, pods: names, reports: Vec::new() });
        }
    };
    let proposed = steps.iter().enumerate().map(|(index, step)| {
        let Some(ChangedConfig { kubelet_configuration: kubelet, agent_configuration: agent }) =
            &step.changed_config
        else {
            return Ok(None);
        };
        let kubelet = kubelet.as_ref().unwrap_or(&kubelet_configuration);
        let agent = agent.as_ref().unwrap_or(&agent_configuration);
        let changed = self::policy(kubelet, agent, overrides);
        changed.map(Some).map_err(|(_, text)| format!("steps[{index}].changedConfig: {text}"))
    });
    let mut simulator = Simulator::new(policy, filesystems, pods);
    let outcomes = steps.iter().zip(proposed).map(|(step, proposed)| Ok(simulator.step(step, proposed?)));
    let outcome = Outcome { steps: outcomes.collect::<Result<_, String>>()?, ..outcome };
    Ok(ExplainedScenario { outcome, pods: names, reports: simulator.reports })
}

/// Returns the policy, or the stage at which the configuration fails and the error.
fn policy(kubelet: &Value, agent: &Value, overrides: &Overrides) -> Result<Policy, (&'static str, String)> {
    let kubelet = kubelet_policy(kubelet)?;
    let mut agent = match &overrides.agent {
        Some(agent) => agent.clone(),
        None => parse_agent(agent).map_err(|problems| ("agent", problems.to_string()))?,
    };
    if let Some(profile) = overrides.profile {
        agent.profile = profile;
    }
    Ok(agent.over(kubelet))
}

fn validate(pods: &[Pod], steps: &[Step]) -> Result<(), String> {
    let mut uids = HashSet::new();
    for (index, pod) in pods.iter().enumerate() {
        if !uids.insert(&*pod.uid) {
            return Err(format!("pods[{index}]: uid {:?} occurs twice", pod.uid));
        }
    }
    for (index, step) in steps.iter().enumerate() {
        if step.summary.is_none() && step.summary_error.is_empty() {
            return Err(format!("steps[{index}]: neither summary nor summaryError"));
        }
        let active = step.active_pods.iter().flatten();
        let active = active.map(|uid| ("activePods", uid));
        let admit = step.admit.iter().map(|uid| ("admit", uid));
        let results = step.eviction_results.iter().flatten();
        let results = results.map(|result| ("evictionResults", &result.uid));
        for (field, uid) in active.chain(admit).chain(results) {
            if !uids.contains(&**uid) {
                return Err(format!("steps[{index}].{field}: no pod has uid {uid:?}"));
            }
        }
    }
    Ok(())
}
