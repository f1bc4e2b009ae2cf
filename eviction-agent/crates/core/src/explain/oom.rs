//! Kills by the kernel and ends of containers as text.

use super::evaluation::TextPage;
use crate::explain::text::{Tone, amount, clock, printable};
use crate::oom::{
    AttributedCause, ContainerTerminated, LimitScope, OomKill, OomVictimRole, TerminationCause,
};
use crate::pod_ref::PodRef;
use crate::signal::Resource;
use crate::time::Timestamp;

/// A process that the kernel killed: no eviction.
pub(super) fn kill(at: Timestamp, kill: &OomKill, page: &mut TextPage<'_>) {
    if kill.repeated {
        return;
    }
    let process = match (&*printable(&kill.comm), kill.pid) {
        ("", 0) => "a process".to_owned(),
        (comm, tgid) => format!("{comm} ({tgid})"),
    };
    let whose = whose(kill.pod.as_ref(), kill.pod_uid.as_deref(), kill.container.as_deref());
    page.heading(&at.to_string(), Tone::Bad, &format!("OOM KILL by the kernel: {process} {whose}"));
    page.lines("limit", [limit(kill)]);
    page.lines("near", kill.near_since.map(|since| format!("the limit was near since {}", clock(since, at))));
    page.lines("victim", [victim(kill)]);
    let group = kill.group.as_ref();
    let group = group.map(|group| match group.kills {
        1 => "its whole group is killed; it is the first".to_owned(),
        more => format!("its whole group is killed: {more} processes so far"),
    });
    page.lines("group", group);
    let since = kill.evicting_since.map(|since| clock(since, at));
    page.lines(
        "eviction",
        since.map(|since| {
            format!("its pod is being evicted since {since}: it is both, and counts once as each")
        }),
    );
    if kill.kills_in_pod > 1 {
        page.lines("before", [format!("{} kills in this pod so far", kill.kills_in_pod)]);
    }
    page.out.push('\n');
}

fn whose(pod: Option<&PodRef>, uid: Option<&str>, container: Option<&str>) -> String {
    let container = container.map(|name| format!(", container {}", printable(name))).unwrap_or_default();
    match (pod, uid) {
        (Some(pod), _) => format!("in {}{container}", printable(&pod.to_string())),
        (None, Some(uid)) => format!("in a pod with uid {}{container}", printable(uid)),
        (None, None) => "in no pod".to_owned(),
    }
}

fn limit(kill: &OomKill) -> String {
    let limit = limit_text(kill.limit_scope);
    let concluded = if kill.inferred { ", which was concluded" } else { "" };
    let bytes = |number: u64| amount(Resource::Memory, i64::try_from(number).unwrap_or(i64::MAX));
    match (kill.usage, kill.limit) {
        (Some(usage), Some(max)) => {
            format!("{limit} ran out{concluded}: {} of {} were used", bytes(usage), bytes(max))
        }
        (None, Some(max)) => format!("{limit} of {} ran out{concluded}", bytes(max)),
        _ => format!("{limit} ran out{concluded}"),
    }
}

fn limit_text(scope: LimitScope) -> &'static str {
    match scope {
        LimitScope::Container => "the limit of the container",
        LimitScope::Pod => "the limit of the pod",
        LimitScope::Qos => "the limit of its QoS class",
        LimitScope::Kubepods => "the limit of all pods together",
        LimitScope::Node => "the memory of the node",
        LimitScope::Other => "the limit of another group",
        LimitScope::Unknown => "an unknown limit",
    }
}

fn victim(kill: &OomKill) -> String {
    let kind = match kill.victim {
        OomVictimRole::Main => "the init process, with which the container ends",
        OomVictimRole::Child => "not the init process: the container may go on",
        OomVictimRole::Unknown => "unknown whether it was the init process",
    };
    let held = [("anonymous", kill.anon), ("file", kill.file), ("shared", kill.shmem)];
    let bytes = |number: u64| amount(Resource::Memory, i64::try_from(number).unwrap_or(i64::MAX));
    let held: Vec<String> =
        held.into_iter().filter_map(|(kind, number)| Some(format!("{} {kind}", bytes(number?)))).collect();
    if held.is_empty() { kind.to_owned() } else { format!("{kind}; it held {}", held.join(", ")) }
}

/// A container that terminated, and why.
pub(super) fn terminated(at: Timestamp, terminated: &ContainerTerminated, page: &mut TextPage<'_>) {
    let ContainerTerminated { container, causes, finished_at, .. } = terminated;
    let whose = whose(container.pod.as_ref(), Some(&container.pod_uid), Some(&container.name));
    let cause = causes.first().map_or("cause unknown", |first| cause_text(first.cause));
    let when = clock(*finished_at, at);
    page.heading(&at.to_string(), Tone::Warning, &format!("ENDED at {when} {whose}: {cause}"));
    let mut causes = causes.iter();
    page.lines("because", causes.next().map(explanation));
    page.lines("also", causes.map(|other| format!("{}: {}", cause_text(other.cause), explanation(other))));
    page.out.push('\n');
}

fn explanation(cause: &AttributedCause) -> String {
    let text = cause.explanation.text();
    match cause.limit_scope {
        Some(LimitScope::Unknown) | None => text.to_owned(),
        Some(scope) => format!("{text}; {} had run out", limit_text(scope)),
    }
}

fn cause_text(cause: TerminationCause) -> &'static str {
    match cause {
        TerminationCause::EvictedByAgent => "evicted by this agent",
        TerminationCause::EvictedByKubelet => "evicted by the kubelet",
        TerminationCause::OomKilled => "killed by the kernel for want of memory",
        TerminationCause::Other => "neither evicted nor killed for want of memory",
    }
}
