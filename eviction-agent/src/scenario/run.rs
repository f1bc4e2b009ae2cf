//! A scenario through the configuration and the engine, to its outcome.

use std::collections::HashSet;

use super::format::{Outcome, Scenario, Step};
use super::world::World;
use crate::config::kubelet_policy;
use crate::core::pod::Pod;

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
    /// A step sees nothing, and does not say that the look fails.
    #[error("steps[{step}]: neither summary nor summaryError")]
    NoSummary {
        /// Which step.
        step: usize,
    },
}

/// Runs a scenario.
///
/// # Errors
/// If the scenario contradicts itself. An error of its configuration is an outcome.
pub fn run(scenario: Scenario) -> Result<Outcome, ScenarioError> {
    let Scenario { name, kubelet_configuration, filesystems, pods, steps } = scenario;
    let pods: Vec<Pod> = pods.into_iter().map(Pod::from).collect();
    validate(&pods, &steps)?;
    let outcome = Outcome { name, ..Outcome::default() };
    let policy = match kubelet_policy(&kubelet_configuration) {
        Ok(policy) => policy,
        Err(error) => {
            return Ok(Outcome {
                config_error: Some(error.text),
                config_error_stage: error.stage.name().to_owned(),
                ..outcome
            });
        }
    };
    let mut world = World::new(policy, filesystems, pods);
    Ok(Outcome { steps: steps.iter().map(|step| world.step(step)).collect(), ..outcome })
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
        for (field, uid) in active.chain(admit) {
            if !uids.contains(&**uid) {
                return Err(ScenarioError::UnknownUid { step: place, field, uid: uid.clone() });
            }
        }
    }
    Ok(())
}
