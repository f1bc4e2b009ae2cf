//! Lines about containers that ended.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use crate::core::apart::{Difference, Parted};
use crate::core::oom::{Cause, EndedContainer, Evidence, Verdict};

/// See [`super::Event::ContainerEnded`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct ContainerEnded {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    pub uid: String,
    pub container: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    pub verdict: &'static str,
    pub ground: &'static str,
    pub inferred: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_owner: Option<&'static str>,
    pub ended_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub differs: Option<Difference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub differs_why: Option<&'static str>,
    pub evidence: Vec<Evidence>,
}

/// See [`super::Event::ContainerStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct ContainerStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    pub uid: String,
    pub container: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    pub verdict: &'static str,
    pub differs: Difference,
    pub differs_why: &'static str,
}

impl From<Parted> for ContainerStatus {
    fn from(parted: Parted) -> Self {
        let Parted { namespace, name, uid, container, instance, verdict, difference } = parted;
        Self {
            pod: full_name(&namespace, &name),
            uid: uid.into(),
            container: container.into(),
            container_id: instance.map(Into::into),
            verdict: verdict.name(),
            differs: difference,
            differs_why: difference.text(),
        }
    }
}

impl fmt::Display for ContainerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pod, uid, container, container_id: _, verdict, differs: _, differs_why } = self;
        let pod = pod.as_deref().unwrap_or(uid);
        write!(f, "container {container} of {pod} ended as told: {}, ", verdict.replace('_', " "))?;
        write!(f, "and its status came late: {differs_why}")
    }
}

fn full_name(namespace: &str, name: &str) -> Option<String> {
    (!name.is_empty()).then(|| format!("{namespace}/{name}"))
}

impl ContainerEnded {
    /// The verdict, and by what the container's status differs from it.
    pub(crate) fn of(ended: EndedContainer, differs: Option<Difference>) -> Self {
        let verdict = ended.verdict();
        let limit_owner = ended.causes.iter().find_map(|cause| cause.limit_owner);
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
        let others = causes.iter().skip(1).map(|cause| cause.verdict.name());
        Self {
            pod: full_name(&namespace, &name),
            uid: uid.into(),
            container: container.into(),
            container_id: instance.map(Into::into),
            verdict: verdict.name(),
            ground: causes.first().map_or("", |Cause { ground, .. }| ground.text()),
            inferred: causes.first().is_some_and(|cause| cause.ground.is_inferred()),
            also: others.collect(),
            limit_owner: limit_owner.map(|owner| owner.name()),
            ended_at,
            exit_code,
            signal,
            reason: (!reason.is_empty()).then(|| reason.into()),
            differs,
            differs_why: differs.map(Difference::text),
            evidence,
        }
    }
}

impl fmt::Display for ContainerEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pod = self.pod.as_deref().unwrap_or(&self.uid);
        write!(f, "container {} of {pod} ended: {}", self.container, self.verdict.replace('_', " "))?;
        if let Some(owner) = self.limit_owner.filter(|_| self.verdict == Verdict::OomKilled.name()) {
            write!(f, " by the limit of the {owner}")?;
        }
        write!(f, ", {}", self.ground)?;
        if let (Some(code), _) | (None, Some(code)) = (self.exit_code, self.signal) {
            let what = if self.exit_code.is_some() { "exit code" } else { "signal" };
            write!(f, "; {what} {code}")?;
        }
        if let Some(reason) = &self.reason {
            write!(f, "; the runtime says {reason}")?;
        }
        if !self.also.is_empty() {
            write!(f, "; then also {}", self.also.join(", ").replace('_', " "))?;
        }
        match self.differs_why {
            Some(why) => write!(f, "; {why}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::oom::{EndSeen, Ground, LimitOwner};

    #[test]
    fn an_end_in_one_line() {
        let cause = |verdict, ground, limit_owner| Cause { verdict, ground, at: None, limit_owner };
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
            causes: vec![cause(Verdict::OomKilled, Ground::MainProcessKilled, Some(LimitOwner::Pod))],
            evidence: vec![Evidence::Ended { seen: EndSeen::Process }],
        };
        assert_eq!(
            ContainerEnded::of(ended.clone(), None).to_string(),
            "container app of shop/web ended: oom killed by the limit of the pod, the kernel killed its main process; signal 9"
        );
        ended.causes.insert(0, cause(Verdict::EvictedByAgent, Ground::EvictionUnderWay, None));
        (ended.exit_code, ended.reason) = (Some(137), "OOMKilled".into());
        assert_eq!(
            ContainerEnded::of(ended.clone(), None).to_string(),
            "container app of shop/web ended: evicted by agent, its eviction was under way; exit code 137; the runtime says OOMKilled; then also oom killed"
        );
        ended.causes = vec![cause(Verdict::Other, Ground::Exited, None)];
        (ended.exit_code, ended.reason) = (Some(0), "OOMKilled".into());
        assert_eq!(
            ContainerEnded::of(ended, Some(Difference::OnlyAChildKilled)).to_string(),
            "container app of shop/web ended: other, it exited; exit code 0; the runtime says OOMKilled; the status says OOMKilled, but the kernel had killed only a child, and the main process survived it"
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
            verdict: Verdict::OomKilled,
            difference: Difference::KillNotInStatus,
        };
        assert_eq!(
            ContainerStatus::from(parted).to_string(),
            "container app of shop/web ended as told: oom killed, and its status came late: the kernel's OOM killer killed it, which the status does not say"
        );
    }
}
