//! Terminations of containers that the pods' statuses report.

use std::collections::BTreeSet;

use eviction_core::oom::{ContainerEnded, EndSeen, Evictor};
use eviction_core::pod::{Pod, PodCondition};
use eviction_core::time::Timestamp;

use eviction_node::clock::Clock;
use eviction_node::pod_index::PodIndex;

/// `status.reason` of a pod that the kubelet evicted: `eviction_manager.go: Reason`.
const EVICTED: &str = "Evicted";
/// The condition of a pod that is being disrupted, and the kubelet's reason for it.
const DISRUPTION_TARGET: &str = "DisruptionTarget";
const TERMINATION_BY_KUBELET: &str = "TerminationByKubelet";

/// Tracks which terminations are known.
#[derive(Debug)]
pub(crate) struct ContainerStatusTracker {
    /// Terminations before the start of the agent are not reported.
    since: Timestamp,
    /// The terminations in the last statuses. They include those that are not reported: if the system clock is set
    /// back, one from before the start seems to be after it.
    known: BTreeSet<Key>,
}

/// A termination: the pod, the container's instance, and whether the pod was known to be evicted.
type Key = (Box<str>, Box<str>, bool);

impl ContainerStatusTracker {
    pub(crate) fn new(now: Timestamp) -> Self {
        // Times of the API have whole seconds.
        let since = Timestamp::from_second(now.as_second()).unwrap_or(now);
        Self { since, known: BTreeSet::new() }
    }

    /// Returns the new terminations in the statuses of these pods.
    pub(crate) fn update(&mut self, pod_index: &PodIndex, clock: &Clock) -> Vec<ContainerEnded> {
        let before = std::mem::take(&mut self.known);
        let mut ends = Vec::new();
        for known in pod_index.known() {
            let pod = &known.pod;
            let evicted = (&*pod.reason == EVICTED).then(|| evicted_at(pod).map(|at| clock.steady(at)));
            for end in &pod.ended {
                let Some(at) = end.finished_at.map(|at| clock.steady(at)) else { continue };
                let key = (pod.uid.clone(), end.instance.clone(), evicted.is_some());
                if at >= self.since && !before.contains(&key) {
                    ends.push(ContainerEnded {
                        at: Some(at),
                        pod_uid: pod.uid.clone(),
                        container: end.container.clone(),
                        container_id: (!end.instance.is_empty()).then(|| end.instance.clone()),
                        seen: EndSeen::Status,
                        exit_code: Some(end.exit_code),
                        signal: (end.signal != 0).then_some(end.signal),
                        reason: end.reason.clone(),
                        evicted_by: evicted.map(|_| Evictor::Kubelet),
                        evicted_at: evicted.flatten(),
                    });
                }
                self.known.insert(key);
            }
        }
        ends
    }
}

/// Returns when the kubelet began to evict the pod.
fn evicted_at(pod: &Pod) -> Option<Timestamp> {
    let by_kubelet =
        |it: &&PodCondition| &*it.kind == DISRUPTION_TARGET && &*it.reason == TERMINATION_BY_KUBELET;
    pod.conditions.iter().find(by_kubelet)?.last_transition_time
}

#[cfg(test)]
mod tests {
    use eviction_core::fixture::policy;
    use eviction_core::pod::ContainerEnd;
    use std::sync::Arc;

    use super::*;
    use eviction_core::pods::KnownPod;

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod_index(reason: &str, ends: &[(&str, i64)]) -> PodIndex {
        let end = |(instance, at): &(&str, i64)| ContainerEnd {
            container: "main".into(),
            instance: (*instance).into(),
            exit_code: 137,
            signal: 0,
            reason: "OOMKilled".into(),
            finished_at: Some(second(*at)),
        };
        let pod = Pod {
            uid: "u".into(),
            reason: reason.into(),
            ended: ends.iter().map(end).collect(),
            conditions: vec![PodCondition {
                kind: DISRUPTION_TARGET.into(),
                reason: TERMINATION_BY_KUBELET.into(),
                last_transition_time: Some(second(7)),
                ..PodCondition::default()
            }],
            ..Pod::default()
        };
        PodIndex::new(vec![Arc::new(KnownPod::new(pod, &policy(Vec::new())))])
    }

    fn update(statuses: &mut ContainerStatusTracker, pod_index: &PodIndex) -> Vec<ContainerEnded> {
        statuses.update(pod_index, &Clock::start())
    }

    #[test]
    fn terminations_are_reported_once_and_only_since_the_start() {
        let mut statuses = ContainerStatusTracker::new(Timestamp::new(100, 900_000_000).unwrap());
        let first = update(&mut statuses, &pod_index("", &[("old", 99), ("i1", 100)]));
        assert_eq!(first.len(), 1);
        let end = &first[0];
        assert_eq!((end.container_id.as_deref(), end.exit_code, end.signal), (Some("i1"), Some(137), None));
        assert_eq!((end.at, end.evicted_by), (Some(second(100)), None));
        assert!(update(&mut statuses, &pod_index("", &[("old", 99), ("i1", 100)])).is_empty());
        assert_eq!(update(&mut statuses, &pod_index("", &[("i1", 100), ("i2", 105)])).len(), 1);
    }

    #[test]
    fn old_termination_stays_unreported_when_the_system_clock_is_set_back() {
        let now = Clock::start().now().wall.as_second();
        let mut statuses = ContainerStatusTracker::new(second(now));
        let old = [("old", now - 60)];
        assert!(update(&mut statuses, &pod_index("", &old)).is_empty());
        // The steady time is an hour ahead of the system clock.
        let zero = Clock::start().at(0).wall + jiff::SignedDuration::from_hours(1);
        let set_back: Clock = serde_json::from_value(serde_json::json!(zero)).unwrap();
        assert!(set_back.steady(second(now - 60)) > second(now));
        assert!(statuses.update(&pod_index("", &old), &set_back).is_empty());
    }

    #[test]
    fn an_eviction_that_the_status_shows_later_is_reported() {
        let mut statuses = ContainerStatusTracker::new(second(5));
        assert_eq!(update(&mut statuses, &pod_index("", &[("i1", 8)]))[0].evicted_by, None);
        let evicted = update(&mut statuses, &pod_index(EVICTED, &[("i1", 8)]));
        assert_eq!((evicted[0].evicted_by, evicted[0].evicted_at), (Some(Evictor::Kubelet), Some(second(7))));
    }
}
