//! A decision with its whole reason, as plain data.
//!
//! A [`Report`] is made from a [`Decision`] after the fact, away from the path of reaction.
//! Logs, events, metrics, recordings and screens are all made from it. The same decision
//! gives the same bytes.

mod candidate;
mod condition;
mod deficit;
mod eviction;
mod in_flight;
mod margin;
mod oom;
mod protection;
mod rejected;
mod signal;
mod sizing;
#[cfg(test)]
mod tests;
mod threshold;

use std::collections::BTreeSet;

use serde::Serialize;

use crate::pod::PodName;
use candidate::Candidates;
pub use candidate::{CandidateOutcome, CandidateReport};
pub use condition::{ConditionReport, RaiserReport};
pub use deficit::DeficitReport;
pub use eviction::EvictionReport;
pub use in_flight::{ExpectedReport, InFlightPhase, InFlightReport};
pub use margin::{MarginReport, NearestReport};
pub use oom::{EndReport, KillReport, OomReport};
pub use protection::ProtectionReport;
pub use rejected::RefusedReport;
pub use signal::{GrowthReport, MemoryReport, ProposalReport, UnknownValue};
pub use sizing::{PassedOverReport, SizingReport, VictimReport};
pub use threshold::{MetReport, SignalReport, ThresholdReport};

use super::decision::{Action, Decision, DecisionKind, Evaluation, EvaluationEnd, NotEvaluated};
use super::disk_layout::Reclaim;
use super::message;
use super::oom::EndedContainer;
use super::policy::Policy;
use super::signal::{NodeCondition, Resource, Signal};
use super::signal_filter::RejectedReading;
use super::time::Timestamp;

/// One decision, explained.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The time of the input.
    pub at: Timestamp,
    /// What was decided about.
    #[serde(flatten)]
    pub about: About,
    /// The node conditions that hold, and why.
    pub conditions: Vec<ConditionReport>,
    /// Containers that ended, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<EndedContainer>,
    /// Conditions of which nobody can tell whether they hold: a signal that raises them has
    /// been unknown for long.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown_conditions: Vec<NodeCondition>,
    /// Those signals.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blind: Vec<Signal>,
    /// What becomes of a policy that was proposed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proposal: Option<ProposalReport>,
}

/// What was decided about.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum About {
    /// Nothing: something was taken note of.
    Nothing,
    /// A pass.
    Pass(Box<PassReport>),
    /// A pass that did not take place.
    NoPass(NotEvaluated),
    /// An admission.
    Admission {
        /// Of which pod.
        pod: PodName,
        /// The answer.
        admit: bool,
        /// What the pod is told, if it was no.
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// A kill by the kernel, or the end of a container.
    Story(OomReport),
}

/// One pass, explained.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PassReport {
    /// How it ended.
    pub end: EvaluationEnd,
    /// What was seen, signal by signal.
    pub signals: Vec<SignalReport>,
    /// What was seen after node-level reclaim.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signals_after_reclaim: Vec<SignalReport>,
    /// The node's memory by every measure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryReport>,
    /// Readings that were not believed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RejectedReading>,
    /// The pods whose memory grows fastest, of those that use most.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub growing: Vec<GrowthReport>,
    /// The thresholds that count.
    pub thresholds: Vec<ThresholdReport>,
    /// What is short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starved: Option<Resource>,
    /// How much would have to come free for the threshold that drives the pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deficit: Option<DeficitReport>,
    /// Earlier evictions that were remembered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flights: Vec<InFlightReport>,
    /// What was lacking for each threshold that was dealt with, the last one as in `starved`,
    /// where evictions are sized.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sizing: Vec<SizingReport>,
    /// What garbage is to be collected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reclaim: Vec<Reclaim>,
    /// The pods, the first to go first, with what they are ranked by.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<CandidateReport>,
    /// The smallest change of what a single pod uses with which another pod had gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<NearestReport>,
    /// Pods that would have gone, but are critical.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spared: Vec<PodName>,
    /// Pods whose turn had come, but which are protected, and by what.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused_pods: Vec<RefusedReport>,
    /// Pods that go.
    pub evictions: Vec<EvictionReport>,
    /// How many volumes under a limit have no known usage.
    pub unknown_volumes: u32,
}

impl Report {
    /// Explains a decision that was made by a policy.
    pub fn of(decision: &Decision, policy: &Policy) -> Self {
        let about = match &decision.subject {
            DecisionKind::Noted => About::Nothing,
            DecisionKind::NoPass(why) => About::NoPass(*why),
            DecisionKind::Pass(pass) => About::Pass(Box::new(PassReport::of(decision, pass))),
            DecisionKind::Story(note) => About::Story(OomReport::of(note)),
            DecisionKind::Admission(admission) => About::Admission {
                pod: PodName::of(&admission.pod.pod),
                admit: admission.admit,
                message: (!admission.admit).then(|| message::refusal(&decision.conditions)),
            },
        };
        let period = policy.pressure_transition_period;
        let thresholds = match &about {
            About::Pass(pass) => &*pass.thresholds,
            About::Nothing | About::NoPass(_) | About::Admission { .. } | About::Story(_) => &[],
        };
        let condition = |raised| ConditionReport::of(raised, thresholds, decision.at, period);
        Self {
            at: decision.at,
            conditions: decision.conditions.iter().map(condition).collect(),
            about,
            ended: decision.ended.clone(),
            unknown_conditions: decision.unknown_conditions().collect(),
            blind: decision.blind.iter().collect(),
            proposal: decision.proposal.as_ref().map(ProposalReport::of),
        }
    }
}

impl PassReport {
    fn of(decision: &Decision, pass: &Evaluation) -> Self {
        let evictions = decision.actions.iter().filter_map(|action| match action {
            Action::Evict(eviction) => EvictionReport::of(pass, eviction, false),
            Action::ShortenGrace(eviction) => EvictionReport::of(pass, eviction, true),
            Action::RecordEvent(_) | Action::Reclaim(_) => None,
        });
        let reclaim = decision.actions.iter().filter_map(|action| match action {
            Action::Reclaim(reclaim) => Some(*reclaim),
            Action::RecordEvent(_) | Action::Evict(_) | Action::ShortenGrace(_) => None,
        });
        let slopes = |signal: Signal| pass.sight.slopes[signal as usize];
        let signals = |seen| SignalReport::all(seen, decision.at, slopes);
        let candidates = Candidates::of(decision, pass);
        Self {
            end: pass.end,
            signals: signals(&pass.seen),
            signals_after_reclaim: pass.seen_after_reclaim.as_deref().map_or(Vec::new(), signals),
            memory: MemoryReport::of(pass),
            refused: pass.sight.refused.clone(),
            growing: GrowthReport::all(pass),
            thresholds: ThresholdReport::all(pass, decision.at),
            starved: pass.handled_signal().map(Signal::resource),
            deficit: DeficitReport::of(pass),
            flights: InFlightReport::all(pass),
            sizing: SizingReport::all(pass),
            reclaim: reclaim.collect(),
            candidates: candidates.all,
            nearest: candidates.nearest,
            spared: spared(pass),
            refused_pods: RefusedReport::all(pass),
            evictions: evictions.collect(),
            unknown_volumes: pass.unknown_volumes,
        }
    }
}

/// Each once, though its turn may have come for several thresholds.
fn spared(pass: &Evaluation) -> Vec<PodName> {
    let mut told = BTreeSet::new();
    let places = pass.spared.iter().filter(|&&place| told.insert(place));
    places.filter_map(|&place| Some(PodName::of(&pass.pods.get(place)?.pod))).collect()
}
