//! Why a pod does not go although its turn has come, and what put its turn where it is.

use crate::pod::PodName;
use crate::pods::EvictionOrder;
use crate::record::{CandidateRecord, EvaluationRecord, ProtectionRecord, RefusedPodRecord};

use super::amount::{count, pod};

/// Why a pod was refused in an evaluation, as a sentence without its subject.
pub(super) fn of(evaluation: &EvaluationRecord, name: &PodName) -> Option<String> {
    let refused = evaluation.refused_pods.iter().find(|refused| refused.pod == *name)?;
    Some(refused.why.to_string())
}

/// A pod and why it was refused.
pub(super) fn line(refused: &RefusedPodRecord) -> String {
    format!("{} {}", pod(&refused.pod), refused.why)
}

/// Why one pod ranks before another if that is for what they are sheltered by, before standing
/// and priority are looked at.
pub(super) fn turn_ahead(ahead: &CandidateRecord, behind: &CandidateRecord) -> Option<String> {
    let (a, b) = (turn(ahead), turn(behind));
    if a == b {
        return None;
    }
    Some(match (a, b) {
        (EvictionOrder::First, _) => "it is to go first by the operator's table".to_owned(),
        (_, EvictionOrder::Never) => "the other is never to go by the operator's table".to_owned(),
        (_, EvictionOrder::OptedOut) => "the other opted out".to_owned(),
        _ => "the other is to go last".to_owned(),
    })
}

/// The same, among those of the same standing and priority.
pub(super) fn shelter_ahead(ahead: &CandidateRecord, behind: &CandidateRecord) -> Option<String> {
    let bare = |candidate: &CandidateRecord| candidate.shelter.as_ref().is_some_and(|shelter| shelter.bare);
    let hint = |candidate: &CandidateRecord| candidate.shelter.as_ref().map_or(0, |shelter| shelter.hint);
    if bare(ahead) != bare(behind) {
        return Some("the other has no owner to bring it back".to_owned());
    }
    let (a, b) = (hint(ahead), hint(behind));
    (a != b).then(|| format!("its hint is lower: {a} against {b}"))
}

fn turn(candidate: &CandidateRecord) -> EvictionOrder {
    candidate.shelter.as_ref().map_or(EvictionOrder::default(), |shelter| shelter.turn)
}

/// What shelters a pod or puts it forward, for the table.
pub(super) fn notes(candidate: &CandidateRecord) -> Vec<String> {
    let Some(ProtectionRecord { turn, rule, bare, hint, ignored_annotations }) = &candidate.shelter else {
        return Vec::new();
    };
    let by_rule = rule.map_or_else(String::new, |rule| format!(" by policy.protection[{rule}]"));
    let mut notes = Vec::new();
    match turn {
        EvictionOrder::First => notes.push(format!("first{by_rule}")),
        EvictionOrder::Normal => {}
        EvictionOrder::Last => notes.push(format!("last{by_rule}")),
        EvictionOrder::OptedOut => notes.push("opted out".to_owned()),
        EvictionOrder::Never => notes.push(format!("never{by_rule}")),
    }
    if *bare {
        notes.push("no owner".to_owned());
    }
    if *hint != 0 {
        notes.push(format!("hint {hint}"));
    }
    if !ignored_annotations.is_empty() {
        notes.push(format!("{} ignored", count(ignored_annotations.len(), "annotation")));
    }
    notes
}
