//! The Events of OOM kills.

use std::collections::BTreeMap;

use eviction_core::oom::OomKill;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use super::object::{Occurrence, Reason, pod_reference};

/// The prefix of the annotation names.
const PREFIX: &str = "eviction-agent.io/";

/// Returns the Event of an OOM kill on its pod, or on the node if the pod is not known. Kills of one
/// container with the same victim role and limit scope form one series.
pub(super) fn oom_event(kill: &OomKill, at: Timestamp, node: &ObjectReference) -> Occurrence {
    let pod = kill.pod.as_ref().zip(kill.pod_uid.as_deref()).map(|(pod, uid)| pod.with_uid(uid));
    let (reason, regarding, location) = match pod {
        Some(pod) => (Reason::ContainerOomKilled, pod_reference(&pod), kill.container.as_deref()),
        None => (Reason::ProcessOomKilled, node.clone(), kill.cgroup.as_deref()),
    };
    let part = format!("{}/{}/{}", location.unwrap_or_default(), kill.limit_scope.name(), kill.victim.name());
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

/// Returns all values as annotations for programs, with bytes as full numbers.
fn annotations(kill: &OomKill) -> BTreeMap<String, String> {
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
        values.into_iter().filter_map(|(name, value)| Some((format!("{PREFIX}{name}"), value?.into())));
    known.collect()
}

#[cfg(test)]
mod tests {
    use eviction_core::oom::{LimitScope, OomVictimRole};
    use eviction_core::pod::PodRef;

    use super::super::object::node_reference;
    use super::*;

    fn kill() -> OomKill {
        OomKill {
            pid: 42,
            comm: "java".into(),
            container: Some("app".into()),
            pod: Some(PodRef::new("shop", "web")),
            pod_uid: Some("u-1".into()),
            limit_scope: LimitScope::Container,
            victim: OomVictimRole::Init,
            usage: Some(1 << 26),
            limit: Some(1 << 26),
            anon: Some(1 << 25),
            file: Some(0),
            shmem: Some(4096),
            ..OomKill::default()
        }
    }

    fn node() -> ObjectReference {
        node_reference("n1")
    }

    #[test]
    fn oom_kill_is_an_event_of_its_pod_with_all_values() {
        let event = oom_event(&kill(), Timestamp::UNIX_EPOCH, &node());
        assert_eq!(event.reason, Reason::ContainerOomKilled);
        assert_eq!(event.regarding, pod_reference(&PodRef::new("shop", "web").with_uid("u-1")));
        assert_eq!(
            &*event.note,
            "kernel OOM kill of java (pid 42, init process) in container app of shop/web: limit of the container, 64Mi of 64Mi; victim: anon 32Mi, file 0B, shmem 4Ki; not an eviction"
        );
        let annotations: Vec<_> =
            event.annotations.iter().map(|(name, value)| (&name[PREFIX.len()..], value.as_str())).collect();
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
    fn oom_kills_with_the_same_role_and_scope_form_one_series() {
        let part = |kill: OomKill| oom_event(&kill, Timestamp::UNIX_EPOCH, &node()).part;
        assert_eq!(part(kill()), part(OomKill { pid: 43, usage: None, ..kill() }));
        assert_ne!(part(kill()), part(OomKill { victim: OomVictimRole::Child, ..kill() }));
        assert_ne!(part(kill()), part(OomKill { limit_scope: LimitScope::Pod, ..kill() }));
    }

    #[test]
    fn oom_kill_outside_known_pods_is_an_event_of_the_node() {
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
