//! The lines as people read them.

use std::fmt::{self, Write as _};

use super::super::text::bytes;
use super::{
    Blind, Condition, Configuration, Decision, Event, Eviction, Line, Lost, Node, Pods, Refusal, Source,
    Started, Stopped, Threshold, Unknown,
};

/// The line for people.
impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} {}", self.at, self.event)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started(started) => started.fmt(f),
            Self::Source(Source { source, rung, reason }) => {
                write!(f, "source {source}: now {rung} ({reason})")
            }
            Self::Pods(pods) => pods.fmt(f),
            Self::Threshold(threshold) => threshold.fmt(f),
            Self::Condition(Condition { condition, status }) => {
                write!(f, "condition {condition} is {status}")
            }
            Self::Decision(decision) => decision.fmt(f),
            Self::Eviction(eviction) => eviction.fmt(f),
            Self::Reflex(reflex) => reflex.fmt(f),
            Self::OomKill(kill) => kill.fmt(f),
            Self::ContainerEnded(ended) => ended.fmt(f),
            Self::ContainerStatus(status) => status.fmt(f),
            Self::Unknown(Unknown { signal, why }) => write!(f, "{signal} is unknown: {why}"),
            Self::Blind(Blind { signal, state: "blind" }) => {
                write!(f, "{signal} has been unknown for long: nobody watches it")
            }
            Self::Blind(Blind { signal, state: _ }) => write!(f, "{signal} is known again"),
            Self::Refused(Refusal { signal, reason, available, capacity }) => {
                let reason = reason.replace('_', " ");
                write!(f, "{signal} is not believed: {reason}: {available} available of {capacity}")
            }
            Self::Configuration(configuration) => configuration.fmt(f),
            Self::Lost(Lost { records, invalid, no_room }) => {
                write!(
                    f,
                    "{records} kernel records lost, {invalid} of an unknown form, {no_room} figures without room; everything was looked at anew"
                )
            }
            Self::Tasks(tasks) => tasks.fmt(f),
            Self::Limit(limit) => limit.fmt(f),
            Self::ApiServer(server) => server.fmt(f),
            Self::Stopped(Stopped { why }) => write!(f, "stopped: {why}"),
        }
    }
}

impl fmt::Display for Started {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, action, dry_run, profile, node, sources, pods, listen } = self;
        let Node { root, memory_capacity, pid_capacity } = node;
        write!(
            f,
            "started {version}: action {action}, dry run {dry_run}, profile {profile}, node {root} of {} and {pid_capacity} process ids, {pods} pods",
            bytes(*memory_capacity)
        )?;
        for Source { source, rung, .. } in sources {
            write!(f, "; {source}: {rung}")?;
        }
        match listen {
            Some(address) => write!(f, "; http://{address}/metrics"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, until, would_evict, errors } = self;
        write!(f, "changed configuration: {}", state.replace('_', " "))?;
        if !errors.is_empty() {
            return write!(f, ": {}; the last good one stays", errors.join("; "));
        }
        if let Some(until) = until {
            write!(f, " until {until}")?;
        }
        list(f, "would evict", would_evict)
    }
}

impl fmt::Display for Pods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pods, with_cgroup, without_cgroup, strange_cgroups, unreadable, error } = self;
        if let Some(error) = error {
            return write!(f, "pods: {error}; the last good list of {pods} stays");
        }
        write!(f, "pods: {pods}, {with_cgroup} with a cgroup")?;
        list(f, "without a cgroup", without_cgroup)?;
        list(f, "cgroups without a pod", strange_cgroups)?;
        list(f, "not understood", unreadable)
    }
}

fn list(f: &mut fmt::Formatter<'_>, what: &str, names: &[String]) -> fmt::Result {
    const SHOWN: usize = 5;
    if names.is_empty() {
        return Ok(());
    }
    write!(f, "; {what}: {}", names[..names.len().min(SHOWN)].join(", "))?;
    match names.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => write!(f, " and {more} more"),
        _ => Ok(()),
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { signal, kind, state, value, available, capacity: _, seen_by } = self;
        write!(f, "{kind} threshold {signal} < {value} {state}")?;
        if let Some(available) = available {
            write!(f, ", available {}", amount(signal, *available))?;
        }
        write!(f, " (seen by {seen_by})")
    }
}

/// A figure of a signal: bytes for memory and disk space, else a count.
fn amount(signal: &str, value: i64) -> String {
    match u64::try_from(value) {
        Ok(value) if signal.ends_with(".available") && signal != "pid.available" => bytes(value),
        _ => value.to_string(),
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        write!(
            text,
            "decision {}: evict {} with {} s of grace: {}",
            self.id,
            self.pod,
            self.grace_seconds,
            self.message.trim_end()
        )?;
        write!(text, " Seen by {}", self.seen_by)?;
        if let Some(late) = self.crossed_to_decided_us {
            write!(text, ", decided {} after the kernel's stamp", milliseconds(late))?;
        }
        let passed = self
            .candidates
            .iter()
            .filter_map(|it| it.passed_over.as_ref().map(|why| format!("{} ({why})", it.pod)));
        let passed: Vec<_> = passed.collect();
        if !passed.is_empty() {
            write!(text, "; passed over: {}", passed.join(", "))?;
        }
        f.write_str(&text)
    }
}

impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id,
            decision: _,
            pod,
            uid: _,
            outcome,
            processes,
            why,
            mono_ns: _,
            decided_to_now_us,
            is_beside: _,
        } = self;
        write!(f, "eviction {id} of {pod}: {}", outcome.replace('_', " "))?;
        if let Some(processes) = processes {
            write!(f, ", {processes} processes")?;
        }
        if let Some(why) = why {
            write!(f, ": {why}")?;
        }
        write!(f, " ({} after the decision)", milliseconds(*decided_to_now_us))
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with a few digits")]
pub(super) fn milliseconds(us: u64) -> String {
    format!("{:.2} ms", us as f64 / 1000.0)
}
