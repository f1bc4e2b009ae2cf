//! Kills by the kernel and ends of containers as text.

use super::evaluation::TextPage;
use crate::explain::text::{Tone, amount, clock, pod, printable};
use crate::oom::{AttributedCause, EndedContainer, LimitScope, OomVictimRole, TerminationCause};
use crate::pod::PodName;
use crate::record::OomKillRecord;
use crate::signal::Resource;
use crate::time::Timestamp;

/// A process that the kernel killed: no eviction.
pub(super) fn kill(at: Timestamp, kill: &OomKillRecord, page: &mut TextPage<'_>) {
    if kill.repeated {
        return;
    }
    let process = match (&*printable(&kill.comm), kill.tgid) {
        ("", 0) => "a process".to_owned(),
        (comm, tgid) => format!("{comm} ({tgid})"),
    };
    let whose = whose(kill.pod.as_ref(), kill.container.as_deref());
    page.heading(&at.to_string(), Tone::Bad, &format!("OOM KILL by the kernel: {process} {whose}"));
    page.lines("limit", [limit(kill)]);
    page.lines("near", kill.near_since.map(|since| format!("the limit was near since {}", clock(since, at))));
    page.lines("victim", [victim(kill)]);
    let group = kill.group.as_ref();
    let group = group.map(|group| match group.processes() {
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

fn whose(name: Option<&PodName>, container: Option<&str>) -> String {
    let container = container.map(|name| format!(", container {}", printable(name))).unwrap_or_default();
    match name {
        Some(name) if name.name.is_empty() => {
            format!("in a pod with uid {}{container}", printable(&name.uid))
        }
        Some(name) => format!("in {}{container}", pod(name)),
        None => "in no pod".to_owned(),
    }
}

fn limit(kill: &OomKillRecord) -> String {
    let owner = owner(kill.limit_owner);
    let concluded = if kill.inferred { ", which was concluded" } else { "" };
    let bytes = |number: u64| amount(Resource::Memory, i64::try_from(number).unwrap_or(i64::MAX));
    match (kill.usage, kill.limit) {
        (Some(usage), Some(limit)) => {
            format!("{owner} ran out{concluded}: {} of {} were used", bytes(usage), bytes(limit))
        }
        (None, Some(limit)) => format!("{owner} of {} ran out{concluded}", bytes(limit)),
        _ => format!("{owner} ran out{concluded}"),
    }
}

fn owner(owner: LimitScope) -> &'static str {
    match owner {
        LimitScope::Container => "the limit of the container",
        LimitScope::Pod => "the limit of the pod",
        LimitScope::Qos => "the limit of its QoS class",
        LimitScope::Kubepods => "the limit of all pods together",
        LimitScope::Node => "the memory of the node",
        LimitScope::Other => "the limit of another group",
        LimitScope::Unknown => "an unknown limit",
    }
}

fn victim(kill: &OomKillRecord) -> String {
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

/// A container that ended, and the verdict.
pub(super) fn ended(at: Timestamp, ended: &EndedContainer, page: &mut TextPage<'_>) {
    let name =
        PodName { namespace: ended.namespace.clone(), name: ended.name.clone(), uid: ended.uid.clone() };
    let whose = whose(Some(&name), Some(&ended.container));
    let verdict = ended.causes.first().map_or("cause unknown", |cause| said(cause.verdict));
    let when = clock(ended.ended_at, at);
    page.heading(&at.to_string(), Tone::Warning, &format!("ENDED at {when} {whose}: {verdict}"));
    let mut causes = ended.causes.iter();
    page.lines("because", causes.next().map(ground));
    page.lines("also", causes.map(|cause| format!("{}: {}", said(cause.verdict), ground(cause))));
    page.out.push('\n');
}

fn ground(cause: &AttributedCause) -> String {
    let text = cause.ground.text();
    match cause.limit_owner {
        Some(LimitScope::Unknown) | None => text.to_owned(),
        Some(whose) => format!("{text}; {} had run out", owner(whose)),
    }
}

fn said(verdict: TerminationCause) -> &'static str {
    match verdict {
        TerminationCause::EvictedByAgent => "evicted by this agent",
        TerminationCause::EvictedByKubelet => "evicted by the kubelet",
        TerminationCause::OomKilled => "killed by the kernel for want of memory",
        TerminationCause::Other => "neither evicted nor killed for want of memory",
    }
}
