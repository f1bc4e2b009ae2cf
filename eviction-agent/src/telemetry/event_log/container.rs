//! Lines about containers that terminated.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use eviction_core::oom::{AttributedCause, EndedContainer, Evidence, TerminationCause};
use eviction_core::status_mismatch::{MismatchKind, Parted};

use super::{PodRef, bounded, is_zero};

/// See [`super::Event::ContainerTerminated`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct ContainerTerminated {
    #[serde(flatten)]
    pub pod: Option<PodRef>,
    pub pod_uid: String,
    pub container: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    pub cause: &'static str,
    pub explanation: &'static str,
    pub inferred: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub contributing: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_scope: Option<&'static str>,
    pub finished_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mismatch: Option<MismatchKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mismatch_explanation: Option<&'static str>,
    pub evidence: Vec<Evidence>,
    #[serde(skip_serializing_if = "is_zero")]
    pub evidence_omitted: usize,
}

/// See [`super::Event::ContainerStatusMismatch`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct ContainerStatusMismatch {
    #[serde(flatten)]
    pub pod: Option<PodRef>,
    pub pod_uid: String,
    pub container: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    pub cause: &'static str,
    pub mismatch: MismatchKind,
    pub mismatch_explanation: &'static str,
}

impl From<Parted> for ContainerStatusMismatch {
    fn from(parted: Parted) -> Self {
        let Parted { namespace, name, uid, container, instance, verdict, difference } = parted;
        Self {
            pod: PodRef::if_known(&namespace, &name),
            pod_uid: uid.into(),
            container: container.into(),
            container_id: instance.map(Into::into),
            cause: verdict.name(),
            mismatch: difference,
            mismatch_explanation: difference.text(),
        }
    }
}

impl fmt::Display for ContainerStatusMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pod, pod_uid, container, cause, mismatch_explanation, .. } = self;
        let pod = shown(pod.as_ref(), pod_uid);
        let cause = cause.replace('_', " ");
        write!(
            f,
            "container {container} of {pod} terminated: {cause}; its status came later and differs: {mismatch_explanation}"
        )
    }
}

fn shown(pod: Option<&PodRef>, uid: &str) -> String {
    pod.map_or_else(|| uid.to_owned(), PodRef::to_string)
}

impl ContainerTerminated {
    /// From the engine's verdict, and by what the container's status differs from it.
    pub(crate) fn of(ended: EndedContainer, mismatch: Option<MismatchKind>) -> Self {
        let verdict = ended.verdict();
        let limit_scope = ended.causes.iter().find_map(|cause| cause.limit_owner);
        let EndedContainer {
            namespace,
            name,
            uid,
            container,
            instance,
            ended_at,
            exit_code,
            signal,
            reason,
            causes,
            evidence,
        } = ended;
        let (evidence, evidence_omitted) = bounded(evidence.into_iter());
        let others = causes.iter().skip(1).map(|cause| cause.verdict.name());
        Self {
            pod: PodRef::if_known(&namespace, &name),
            pod_uid: uid.into(),
            container: container.into(),
            container_id: instance.map(Into::into),
            cause: verdict.name(),
            explanation: causes.first().map_or("", |AttributedCause { ground, .. }| ground.text()),
            inferred: causes.first().is_some_and(|cause| cause.ground.is_inferred()),
            contributing: others.collect(),
            limit_scope: limit_scope.map(|owner| owner.name()),
            finished_at: ended_at,
            exit_code,
            exit_signal: signal,
            reason: (!reason.is_empty()).then(|| reason.into()),
            mismatch,
            mismatch_explanation: mismatch.map(MismatchKind::text),
            evidence,
            evidence_omitted,
        }
    }
}

impl fmt::Display for ContainerTerminated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pod = shown(self.pod.as_ref(), &self.pod_uid);
        write!(f, "container {} of {pod} terminated: {}", self.container, self.cause.replace('_', " "))?;
        if let Some(owner) = self.limit_scope.filter(|_| self.cause == TerminationCause::OomKilled.name()) {
            write!(f, " at the limit of the {owner}")?;
        }
        write!(f, ", {}", self.explanation)?;
        if let (Some(code), _) | (None, Some(code)) = (self.exit_code, self.exit_signal) {
            let what = if self.exit_code.is_some() { "exit code" } else { "signal" };
            write!(f, "; {what} {code}")?;
        }
        if let Some(reason) = &self.reason {
            write!(f, "; status reason {reason}")?;
        }
        if !self.contributing.is_empty() {
            write!(f, "; contributing: {}", self.contributing.join(", ").replace('_', " "))?;
        }
        match self.mismatch_explanation {
            Some(why) => write!(f, "; {why}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eviction_core::oom::{EndSeen, Explanation, LimitScope};

    #[test]
    fn a_termination_in_one_line() {
        let cause = |verdict, ground, limit_owner| AttributedCause { verdict, ground, at: None, limit_owner };
        let mut ended = EndedContainer {
            namespace: "shop".into(),
            name: "web".into(),
            uid: "u".into(),
            container: "app".into(),
            instance: Some("4f1c".into()),
            ended_at: Timestamp::UNIX_EPOCH,
            exit_code: None,
            signal: Some(9),
            reason: "".into(),
            causes: vec![cause(
                TerminationCause::OomKilled,
                Explanation::MainProcessKilled,
                Some(LimitScope::Pod),
            )],
            evidence: vec![Evidence::Ended { seen: EndSeen::Process }],
        };
        assert_eq!(
            ContainerTerminated::of(ended.clone(), None).to_string(),
            "container app of shop/web terminated: oom killed at the limit of the pod, the kernel killed its init process; signal 9"
        );
        ended.causes.insert(0, cause(TerminationCause::EvictedByAgent, Explanation::EvictionUnderWay, None));
        (ended.exit_code, ended.reason) = (Some(137), "OOMKilled".into());
        assert_eq!(
            ContainerTerminated::of(ended.clone(), None).to_string(),
            "container app of shop/web terminated: evicted by agent, its eviction was under way; exit code 137; status reason OOMKilled; contributing: oom killed"
        );
        ended.causes = vec![cause(TerminationCause::Other, Explanation::Exited, None)];
        (ended.exit_code, ended.reason) = (Some(0), "OOMKilled".into());
        assert_eq!(
            ContainerTerminated::of(ended, Some(MismatchKind::OnlyAChildKilled)).to_string(),
            "container app of shop/web terminated: other, it exited; exit code 0; status reason OOMKilled; the status says OOMKilled, but the kernel had killed only a child, and the main process survived it"
        );
    }

    #[test]
    fn a_late_status_that_differs_in_one_line() {
        let parted = Parted {
            namespace: "shop".into(),
            name: "web".into(),
            uid: "u".into(),
            container: "app".into(),
            instance: None,
            verdict: TerminationCause::OomKilled,
            difference: MismatchKind::KillNotInStatus,
        };
        assert_eq!(
            ContainerStatusMismatch::from(parted).to_string(),
            "container app of shop/web terminated: oom killed; its status came later and differs: the kernel's OOM killer killed it, which the status does not say"
        );
    }
}
