//! The Events of OOM kills, rendered from the kill's record.

use std::collections::BTreeMap;

use eviction_core::oom::OomKill;
use jiff::Timestamp;

use super::object::{Occurrence, Reason, Regarding};

/// Before the names of the annotations.
const PREFIX: &str = "eviction-agent.io/";

/// A kill, on its pod; on the node where that is not known. One container's kills of the same kind, by
/// the same owner's limit, are one series.
pub(super) fn oom_event(kill: &OomKill, at: Timestamp, node: &Regarding) -> Occurrence {
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
        annotations: annotations(kill),
        times: kill.unattributed.unwrap_or(1),
    }
}

/// All values for programs, bytes in full.
fn annotations(kill: &OomKill) -> BTreeMap<Box<str>, Box<str>> {
    let number = |number: Option<u64>| number.map(|number| number.to_string().into());
    let values = [
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
        values.into_iter().filter_map(|(name, value)| Some((format!("{PREFIX}{name}").into(), value?)));
    known.collect()
}

#[cfg(test)]
mod tests {
    use eviction_core::oom::{LimitScope, OomVictimRole};
    use eviction_core::pod_ref::PodRef;

    use super::*;

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
    fn a_kill_is_an_event_of_its_pod_with_all_its_values() {
        let event = oom_event(&kill(), Timestamp::UNIX_EPOCH, &node());
        assert_eq!(event.reason, Reason::ContainerOomKilled);
        assert_eq!(event.regarding, Regarding::Pod(PodRef::new("shop", "web").with_uid("u-1")));
        assert_eq!(
            &*event.note,
            "kernel OOM kill of java (pid 42, init process) in container app of shop/web: limit of the container, 64Mi of 64Mi; victim: anon 32Mi, file 0B, shmem 4Ki; not an eviction"
        );
        let annotations: Vec<_> =
            event.annotations.iter().map(|(name, value)| (&name[PREFIX.len()..], &**value)).collect();
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
        assert_eq!(annotations, wanted);
    }

    #[test]
    fn kills_of_one_kind_are_one_series() {
        let part = |kill: OomKill| oom_event(&kill, Timestamp::UNIX_EPOCH, &node()).part;
        assert_eq!(part(kill()), part(OomKill { pid: 43, usage: None, ..kill() }));
        assert_ne!(part(kill()), part(OomKill { victim: OomVictimRole::Child, ..kill() }));
        assert_ne!(part(kill()), part(OomKill { limit_scope: LimitScope::Pod, ..kill() }));
    }

    #[test]
    fn a_kill_outside_of_known_pods_is_an_event_of_the_node() {
        for kill in [
            OomKill { pod: None, cgroup: Some("/system.slice".into()), ..kill() },
            OomKill { pod_uid: None, unattributed: Some(3), ..kill() },
        ] {
            let event = oom_event(&kill, Timestamp::UNIX_EPOCH, &node());
            assert_eq!((event.reason, &event.regarding), (Reason::ProcessOomKilled, &node()));
            assert_eq!(event.times, kill.unattributed.unwrap_or(1));
        }
    }
}
