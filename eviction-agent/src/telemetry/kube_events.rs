//! The Events of OOM kills, and how many Events were written.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::telemetry::event_log::OomKill;
use crate::telemetry::metrics::{EventLabels, Metrics};
use eviction_kube::events::{Fate, Occurrence, Reason, Regarding};

/// Before the names of the annotations.
const PREFIX: &str = "eviction-agent.io/";

/// A kill, on its pod; on the node where that is not known. One container's kills of the same kind, by
/// the same owner's limit, are one series.
pub(crate) fn oom_event(kill: &OomKill, at: Timestamp, node: &Regarding) -> Occurrence {
    let pod = kill.pod.as_ref().zip(kill.pod_uid.as_deref()).map(|(pod, uid)| pod.with_uid(uid));
    let (reason, regarding, place) = match pod {
        Some(pod) => (Reason::ContainerOomKilled, Regarding::Pod(pod), kill.container.as_deref()),
        None => (Reason::ProcessOomKilled, node.clone(), kill.cgroup.as_deref()),
    };
    let part = format!("{}/{}/{}", place.unwrap_or_default(), kill.limit_scope.name(), kill.victim.name());
    Occurrence {
        reason,
        regarding,
        part: part.into(),
        at,
        note: kill.to_string().into(),
        annotations: facts(kill),
        times: kill.unattributed.unwrap_or(1),
    }
}

/// All figures for programs, bytes in full.
fn facts(kill: &OomKill) -> BTreeMap<Box<str>, Box<str>> {
    let number = |number: Option<u64>| number.map(|number| number.to_string().into());
    let facts = [
        ("container", kill.container.clone()),
        ("container-id", kill.container_id.clone()),
        ("victim", Some(kill.victim.name().into())),
        ("process", Some(kill.comm.clone()).filter(|comm| !comm.is_empty())),
        ("pid", number((kill.pid != 0).then(|| kill.pid.into()))),
        ("limit-scope", Some(kill.limit_scope.name().into())),
        ("limit-scope-inferred", kill.inferred.then(|| "true".into())),
        ("limit-cgroup", kill.limit_cgroup.clone()),
        ("usage", number(kill.usage)),
        ("limit", number(kill.limit)),
        ("anon", number(kill.anon)),
        ("file", number(kill.file)),
        ("shmem", number(kill.shmem)),
        ("oom-group-kills", number(kill.group.as_ref().map(|group| group.kills))),
    ];
    let known =
        facts.into_iter().filter_map(|(name, value)| Some((format!("{PREFIX}{name}").into(), value?)));
    known.collect()
}

/// Counts what becomes of each occurrence.
pub(crate) fn counter(metrics: Arc<Metrics>) -> impl Fn(Reason, Fate, u64) + Send + 'static {
    for (reason, fate) in Reason::ALL.into_iter().flat_map(|reason| Fate::ALL.map(|fate| (reason, fate))) {
        let labels = EventLabels { reason: reason.name(), result: fate.name() };
        metrics.kube_events.get_or_create(&labels);
    }
    move |reason, fate, times| {
        let labels = EventLabels { reason: reason.name(), result: fate.name() };
        metrics.kube_events.get_or_create(&labels).inc_by(times);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::event_log::PodRef;
    use eviction_core::oom::{LimitScope, OomVictimRole};

    fn kill() -> OomKill {
        OomKill {
            pid: 42,
            comm: "java".into(),
            container: Some("app".into()),
            pod: Some(PodRef::new("shop", "web")),
            pod_uid: Some("u-1".into()),
            limit_scope: LimitScope::Container,
            victim: OomVictimRole::Main,
            usage: Some(1 << 26),
            limit: Some(1 << 26),
            anon: Some(1 << 25),
            file: Some(0),
            shmem: Some(4096),
            ..OomKill::default()
        }
    }

    fn node() -> Regarding {
        Regarding::Node("n1".into())
    }

    #[test]
    fn a_kill_is_told_on_its_pod_with_the_whole_story() {
        let told = oom_event(&kill(), Timestamp::UNIX_EPOCH, &node());
        assert_eq!(told.reason, Reason::ContainerOomKilled);
        assert_eq!(told.regarding, Regarding::Pod(PodRef::new("shop", "web").with_uid("u-1")));
        assert_eq!(
            &*told.note,
            "kernel OOM kill of java (pid 42, init process) in container app of shop/web: limit of the container, 64Mi of 64Mi; victim: anon 32Mi, file 0B, shmem 4Ki; not an eviction"
        );
        let facts: Vec<_> =
            told.annotations.iter().map(|(name, value)| (&name[PREFIX.len()..], &**value)).collect();
        let wanted = [
            ("anon", "33554432"),
            ("container", "app"),
            ("file", "0"),
            ("limit", "67108864"),
            ("limit-scope", "container"),
            ("pid", "42"),
            ("process", "java"),
            ("shmem", "4096"),
            ("usage", "67108864"),
            ("victim", "init"),
        ];
        assert_eq!(facts, wanted);
    }

    #[test]
    fn kills_of_one_kind_are_one_series() {
        let part = |kill: OomKill| oom_event(&kill, Timestamp::UNIX_EPOCH, &node()).part;
        assert_eq!(part(kill()), part(OomKill { pid: 43, usage: None, ..kill() }));
        assert_ne!(part(kill()), part(OomKill { victim: OomVictimRole::Child, ..kill() }));
        assert_ne!(part(kill()), part(OomKill { limit_scope: LimitScope::Pod, ..kill() }));
    }

    #[test]
    fn a_kill_outside_of_known_pods_is_told_on_the_node() {
        for kill in [
            OomKill { pod: None, cgroup: Some("/system.slice".into()), ..kill() },
            OomKill { pod_uid: None, unattributed: Some(3), ..kill() },
        ] {
            let told = oom_event(&kill, Timestamp::UNIX_EPOCH, &node());
            assert_eq!((told.reason, &told.regarding), (Reason::ProcessOomKilled, &node()));
            assert_eq!(told.times, kill.unattributed.unwrap_or(1));
        }
    }

    #[test]
    fn each_reason_and_result_is_counted_from_0() {
        let metrics = Arc::new(Metrics::new("0", "0"));
        let count = counter(Arc::clone(&metrics));
        assert_eq!(metrics.kube_events.len(), Reason::ALL.len() * Fate::ALL.len());
        count(Reason::Evicted, Fate::Created, 2);
        let of = |result| metrics.kube_events.get_or_create(&EventLabels { reason: "Evicted", result }).get();
        assert_eq!((of("created"), of("refused")), (2, 0));
    }
}
