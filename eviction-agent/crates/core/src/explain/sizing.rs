//! Who is on the way, what that makes up for, and who was passed over.

use crate::deficit::SkipReason;
use crate::expected_release::Basis;
use crate::pod::PodName;
use crate::record::{EvaluationRecord, InFlightPhase, InFlightRecord, SizingRecord, SkippedPodRecord};

use super::amount::{pod, printable, spoken};

/// Earlier evictions that were remembered.
pub(super) fn flights(evaluation: &EvaluationRecord) -> impl Iterator<Item = String> {
    evaluation.flights.iter().map(flight)
}

pub(super) fn flight(InFlightRecord { pod: name, signal, state, .. }: &InFlightRecord) -> String {
    let name = pod(name);
    match state {
        InFlightPhase::UnderWay { remaining_grace } => {
            format!("{name} for {signal}, {remaining_grace} of its grace period left")
        }
        InFlightPhase::Gone { .. } => format!("{name} is gone; figures from before that still count it"),
        InFlightPhase::Failed { why, age } => {
            format!("{name} did not go ({}), {age} ago", printable(why))
        }
        InFlightPhase::Expired { age } => {
            format!("{name} did not go: its time was over {age} ago, and nothing was freed")
        }
    }
}

/// What each threshold lacked that was dealt with, and who makes up for it.
pub(super) fn sums(evaluation: &EvaluationRecord) -> impl Iterator<Item = String> {
    evaluation.sizing.iter().map(|sizing| {
        let SizingRecord { signal, lacking, in_flight, chosen, open, .. } = sizing;
        let tell = |number: i64| spoken(signal.resource(), number);
        let victims = sizing.victims.iter().map(|victim| {
            let guess = match victim.basis {
                Basis::Request => ", as it requested: its usage is not known",
                Basis::Unknown => ": its usage is not known",
                Basis::Anonymous | Basis::WorkingSet | Basis::Usage => "",
            };
            format!("; {} frees {}{guess}", pod(&victim.pod), tell(victim.release))
        });
        let hurried = sizing.hurried.iter().map(|name| format!("; {} is hurried", pod(name)));
        let detail: String = hurried.chain(victims).collect();
        let rest = match open {
            ..=0 => String::new(),
            open => format!("; {} remain lacking", tell(*open)),
        };
        let (lacking, in_flight, chosen) = (tell(*lacking), tell(*in_flight), tell(*chosen));
        format!("{signal} lacks {lacking}: {in_flight} on the way, {chosen} chosen{detail}{rest}")
    })
}

/// Those who would have gone before others, and why they did not.
pub(super) fn passed_over(evaluation: &EvaluationRecord) -> impl Iterator<Item = String> {
    evaluation.sizing.iter().flat_map(passed_over_of).map(|(_, why)| why)
}

/// The same for one threshold, with the pods.
pub(super) fn passed_over_of(sizing: &SizingRecord) -> impl Iterator<Item = (&PodName, String)> {
    let resource = sizing.signal.resource();
    sizing.passed_over.iter().map(move |SkippedPodRecord { pod: name, why, release, open, .. }| {
        let (release, open) = (spoken(resource, *release), spoken(resource, *open));
        let why = match why {
            SkipReason::FreesNextToNothing => format!(
                "{} would free {release} of {open}, and others of its standing and priority more",
                pod(name)
            ),
            SkipReason::DidNotGo => format!("{} did not go when it was to", pod(name)),
        };
        (name, why)
    })
}
