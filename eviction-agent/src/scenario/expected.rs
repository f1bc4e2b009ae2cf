//! Compares outcomes with the expected ones, and makes the short form of a decision's record that outcomes contain.

use eviction_core::decision::ProposalState;
use eviction_core::oom::{
    ContainerTerminated, Explanation, LimitScope, OomKill, OomUpdate, OomVictimRole, TerminationCause,
};
use eviction_core::pod::PodName;
use eviction_core::record::{
    CandidateRecord, DecisionRecord, EvaluationRecord, RecordSubject, ThresholdRecord,
};
use eviction_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::scenario::format::Outcome;

/// The short form of a step's record. Empty fields are omitted. `tests/scenarios/README.md` describes the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ExpectedStep {
    /// The end of the evaluation, or the reason why there was none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub end: String,
    /// The deficit of the driving signal, in whole units.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deficit: Option<i64>,
    /// UIDs of the critical pods that would have been evicted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub critical_pods: Vec<String>,
    /// The kernel's values of memory, and whether they allow thresholds of memory to be met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Value>,
    /// Rejected readings, each with its reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<String>,
    /// Signals that have been unknown for a long time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unavailable: Vec<String>,
    /// Conditions whose status is unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown_conditions: Vec<String>,
    /// Thresholds that are about to be met: `SIGNAL < QUANTITY in TIME`, or `SIGNAL < QUANTITY now`
    /// if the prediction is acted on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub imminent: Vec<String>,
    /// The state of a changed configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proposal: Option<String>,
    /// Pods that would have been evicted, but are protected: `uid`, `reason`, and the fields of the
    /// reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused_pods: Vec<Value>,
    /// UIDs of pods without values that started too recently to have a sample.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub too_young: Vec<String>,
    /// Annotations of pods that are ignored: `uid`, `annotation`, `value`, `error`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignored_annotations: Vec<Value>,
    /// OOM kills since the last step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub oom_kills: Vec<OomKillOutcome>,
    /// Causes of terminations that were decided since the last step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub terminations: Vec<TerminationOutcome>,
}

impl ExpectedStep {
    /// Returns the short form of a step's record. `since`: the records of all decisions since the last step.
    pub(super) fn of(record: &DecisionRecord, since: &[DecisionRecord]) -> Self {
        let kill = |record: &DecisionRecord| match &record.subject {
            RecordSubject::Oom(OomUpdate::Kill(kill)) => Some(OomKillOutcome::of(kill)),
            _ => None,
        };
        let step = Self {
            unavailable: record.unavailable.iter().map(ToString::to_string).collect(),
            unknown_conditions: record.unknown_conditions.iter().map(ToString::to_string).collect(),
            proposal: since.iter().rev().find_map(|it| it.proposal.as_ref()).map(proposal),
            oom_kills: since.iter().filter_map(kill).collect(),
            terminations: since.iter().flat_map(|it| &it.terminations).map(TerminationOutcome::of).collect(),
            ..Self::default()
        };
        match &record.subject {
            RecordSubject::Evaluation(evaluation) => step.with_evaluation(evaluation),
            RecordSubject::NotEvaluated(why) => Self { end: name(why), ..step },
            RecordSubject::Nothing | RecordSubject::Admission { .. } | RecordSubject::Oom(_) => step,
        }
    }

    fn with_evaluation(self, evaluation: &EvaluationRecord) -> Self {
        let EvaluationRecord { end, deficit, memory, rejected, thresholds, candidates, .. } = evaluation;
        let ignored = |candidate: &CandidateRecord| {
            let ignored = candidate.protection.ignored.iter();
            ignored.map(|it| of_pod(&candidate.pod, it)).collect::<Vec<_>>()
        };
        let too_young = candidates.iter().filter(|it| it.too_young.is_some());
        Self {
            end: name(end),
            deficit: deficit.map(|deficit| deficit.total),
            memory: memory.as_ref().and_then(|memory| serde_json::to_value(memory).ok()),
            rejected: rejected.iter().map(|it| format!("{}: {}", it.signal, kind(&it.reason))).collect(),
            imminent: thresholds.iter().filter_map(imminent).collect(),
            critical_pods: evaluation.critical_pods.iter().map(|pod| pod.uid.to_string()).collect(),
            refused_pods: evaluation.refused_pods.iter().map(|it| of_pod(&it.pod, &it.why)).collect(),
            too_young: too_young.map(|it| it.pod.uid.to_string()).collect(),
            ignored_annotations: candidates.iter().flat_map(ignored).collect(),
            ..self
        }
    }
}

fn imminent(threshold: &ThresholdRecord) -> Option<String> {
    let ThresholdRecord { signal, quantity, eta, imminent, met, .. } = threshold;
    let quantity = quantity.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string);
    let line = format!("{signal} < {quantity}");
    match (eta, met) {
        (Some(eta), None) if *imminent => Some(format!("{line} in {}", eta.expected)),
        (_, Some(met)) if met.by_prediction => Some(format!("{line} now")),
        _ => None,
    }
}

/// Returns the name of a variant without its content.
fn kind(variant: &impl Serialize) -> String {
    name(variant).split(": ").next().unwrap_or_default().to_owned()
}

fn proposal(state: &ProposalState) -> String {
    match state {
        ProposalState::Unchanged => "unchanged".to_owned(),
        ProposalState::Applied => "applied".to_owned(),
        ProposalState::Pending { since: _, until, would_evict, would_reclaim } => {
            let until = until.map_or_else(|| "it is applied manually".to_owned(), |until| until.to_string());
            let pods = would_evict.iter().map(|pod| format!("evict {}", pod.name));
            let garbage = would_reclaim.iter().map(|reclaim| format!("collect {}", reclaim.name()));
            let would: Vec<_> = garbage.chain(pods).collect();
            match would.is_empty() {
                true => format!("pending until {until}: not tried on a sample yet"),
                false => format!("pending until {until}: would {}", would.join(", ")),
            }
        }
    }
}

/// Returns the fields of a value about a pod, and its UID.
fn of_pod(pod: &PodName, value: &impl Serialize) -> Value {
    let mut fields = json!({ "uid": pod.uid });
    if let (Some(fields), Ok(Value::Object(more))) = (fields.as_object_mut(), serde_json::to_value(value)) {
        fields.extend(more);
    }
    fields
}

/// Returns the name of a variant, or `outer: inner` if it contains another one.
fn name(variant: &impl Serialize) -> String {
    match serde_json::to_value(variant) {
        Ok(Value::String(name)) => name,
        Ok(Value::Object(object)) => {
            let named = |(outer, inner): (String, Value)| format!("{outer}: {}", name(&inner));
            object.into_iter().next().map(named).unwrap_or_default()
        }
        _ => String::new(),
    }
}

/// The first difference between an outcome and the expected outcome that agrees with it longest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// The field, such as `steps[1].evictions[0].message`.
    pub path: String,
    /// The expected value as JSON. `None` if there is no such field.
    pub expected: Option<String>,
    /// The found value as JSON.
    pub found: Option<String>,
    /// The number of expected outcomes.
    pub outcomes: usize,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}:", self.path)?;
        write!(f, "  expected {}", self.expected.as_deref().unwrap_or("nothing"))?;
        if self.outcomes > 1 {
            write!(f, " (the nearest of {} outcomes)", self.outcomes)?;
        }
        write!(f, "\n  found    {}", self.found.as_deref().unwrap_or("nothing"))
    }
}

/// Returns `None` if the outcome is one of those expected.
///
/// The text of a configuration error is compared only for the stages `thresholds` and `agent`. The
/// texts of other stages come from Go's decoder.
pub fn compare(outcome: &Outcome, expected: &[Outcome]) -> Option<Difference> {
    let found = comparable(outcome);
    let mut nearest: Option<(usize, Difference)> = None;
    for one in expected {
        let (agreed, difference) = diff(&comparable(one), &found);
        // Without a difference, the outcome is this one.
        let difference = difference?;
        // The first of the outcomes that agree longest.
        if nearest.as_ref().is_none_or(|(most, _)| agreed > *most) {
            nearest = Some((agreed, difference));
        }
    }
    Some(Difference { outcomes: expected.len(), ..nearest?.1 })
}

/// Returns the JSON of an outcome, without texts that are not compared.
fn comparable(outcome: &Outcome) -> Value {
    // All keys are texts, so this does not fail.
    let mut value = serde_json::to_value(outcome).unwrap_or_default();
    let is_text_compared = matches!(&*outcome.config_error_stage, "thresholds" | "agent");
    if outcome.config_error.is_some() && !is_text_compared {
        value["configError"] = "(not compared)".into();
    }
    value
}

/// Compares two values side by side. Returns the number of values that agree before the first difference, and that
/// difference.
pub(super) fn diff(expected: &Value, found: &Value) -> (usize, Option<Difference>) {
    let mut agreed = 0;
    let difference = diff_at("", Some(expected), Some(found), &mut agreed);
    (agreed, difference)
}

fn diff_at(
    path: &str,
    expected: Option<&Value>,
    found: Option<&Value>,
    agreed: &mut usize,
) -> Option<Difference> {
    match (expected, found) {
        (Some(Value::Array(a)), Some(Value::Array(b))) => (0..a.len().max(b.len()))
            .find_map(|index| diff_at(&format!("{path}[{index}]"), a.get(index), b.get(index), agreed)),
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let added = b.keys().filter(|key| !a.contains_key(*key));
            let dot = if path.is_empty() { "" } else { "." };
            a.keys()
                .chain(added)
                .find_map(|key| diff_at(&format!("{path}{dot}{key}"), a.get(key), b.get(key), agreed))
        }
        _ if expected == found => {
            *agreed += 1;
            None
        }
        _ => {
            let text = |value: Option<&Value>| value.map(ToString::to_string);
            let (expected, found) = (text(expected), text(found));
            Some(Difference { path: path.to_owned(), expected, found, outcomes: 1 })
        }
    }
}

/// The short form of an OOM kill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OomKillOutcome {
    /// The UID of the pod. Empty if the victim was not in a pod.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The container. Empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub container: String,
    /// The process ID of the victim.
    pub pid: u32,
    /// The scope of the limit.
    pub limit_scope: LimitScope,
    /// The role of the victim.
    pub victim: OomVictimRole,
    /// The time since which the agent evicts the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evicting_since: Option<Timestamp>,
    /// The number of processes of the OOM group that were killed so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_group_kills: Option<u64>,
    /// The number of kills in the pod so far.
    #[serde(default)]
    pub kills_in_pod: u64,
    /// Whether the kill was reported before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeated: bool,
}

/// The short form of the termination of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TerminationOutcome {
    /// The UID of the pod.
    pub uid: String,
    /// The container.
    pub container: String,
    /// The cause of the termination.
    pub cause: TerminationCause,
    /// The explanation of the cause.
    pub explanation: Explanation,
    /// The scope of the limit, if an OOM kill is among the causes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_scope: Option<LimitScope>,
    /// Contributing causes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contributing: Vec<TerminationCause>,
}

impl OomKillOutcome {
    fn of(kill: &OomKill) -> Self {
        Self {
            uid: kill.pod_uid.as_deref().unwrap_or_default().to_owned(),
            container: kill.container.as_deref().unwrap_or_default().to_owned(),
            pid: kill.pid,
            limit_scope: kill.limit_scope,
            victim: kill.victim,
            evicting_since: kill.evicting_since,
            oom_group_kills: kill.group.as_ref().map(|group| group.kills),
            kills_in_pod: kill.kills_in_pod,
            repeated: kill.repeated,
        }
    }
}

impl TerminationOutcome {
    fn of(terminated: &ContainerTerminated) -> Self {
        Self {
            uid: terminated.container.pod_uid.to_string(),
            container: terminated.container.name.to_string(),
            cause: terminated.cause,
            explanation: terminated.explanation,
            limit_scope: terminated.limit_scope,
            contributing: terminated.contributing.clone(),
        }
    }
}
