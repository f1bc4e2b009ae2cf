//! The text format of events.

use std::fmt;

use super::{
    Backend, ConfigChange, Event, EvictionDecision, EvictionProgress, KernelKillEvent, PodRef, PodsEvent,
    Started, ThresholdEvent,
};
use eviction_core::units::display_bytes;

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started(started) => started.fmt(f),
            Self::Backend(Backend { source, backend, reason }) => {
                write!(f, "source {source}: backend is now {backend} ({reason})")
            }
            Self::Pods(pods) => pods.fmt(f),
            Self::Threshold(threshold) => threshold.fmt(f),
            Self::Condition { condition, status } => {
                write!(f, "condition {condition} is {status}")
            }
            Self::EvictionDecision(decision) => decision.fmt(f),
            Self::EvictionProgress(progress) => progress.fmt(f),
            Self::KernelKill(kill) => kill.fmt(f),
            Self::OomKill(kill) => kill.fmt(f),
            Self::ContainerTerminated(terminated) => terminated.fmt(f),
            Self::ContainerStatusMismatch(mismatch) => mismatch.fmt(f),
            Self::SignalReadError { signal, error } => {
                write!(f, "signal {signal} cannot be read: {error}")
            }
            Self::SignalUnavailable { signal, state: "unavailable" } => {
                write!(f, "signal {signal} is unavailable: its thresholds are not monitored")
            }
            Self::SignalUnavailable { signal, state: _ } => {
                write!(f, "signal {signal} is available again")
            }
            Self::ReadingRejected { signal, reason, available, capacity } => {
                let reason = reason.replace('_', " ");
                write!(f, "reading of {signal} rejected: {reason}: {available} available of {capacity}")
            }
            Self::ConfigChange(change) => change.fmt(f),
            Self::BpfEventsLost { lost, invalid, map_full } => {
                write!(
                    f,
                    "BPF events: {lost} lost, {invalid} invalid, {map_full} updates of full maps failed since the programs were loaded; everything is sampled again"
                )
            }
            Self::TaskAlarm(alarm) => alarm.fmt(f),
            Self::MemoryLimit(limit) => limit.fmt(f),
            Self::NodeReclaim(reclaim) => reclaim.fmt(f),
            Self::KubeApi { state: "reachable" } => {
                f.write_str("API server reachable again: pending evictions are decided anew")
            }
            Self::KubeApi { state: _ } => {
                f.write_str("API server unreachable: soft evictions wait, hard ones follow the configuration")
            }
            Self::PodFreeze { pod, pod_uid: _, state, reason } => {
                pod_freeze(f, pod, state, reason.as_deref())
            }
            Self::Stopped { reason } => write!(f, "stopped: {reason}"),
        }
    }
}

fn pod_freeze(f: &mut fmt::Formatter<'_>, pod: &PodRef, state: &str, reason: Option<&str>) -> fmt::Result {
    match state {
        "frozen" => write!(f, "pod {pod} frozen: the API server is unavailable for its eviction")?,
        "thawed" => write!(f, "pod {pod} thawed")?,
        "dry_run" => write!(f, "pod {pod} would be frozen: the API server is unavailable for its eviction")?,
        _ => write!(f, "pod {pod} cannot be frozen")?,
    }
    match reason {
        Some(reason) if state == "thawed" => write!(f, ": {}", reason.replace('_', " ")),
        Some(reason) => write!(f, ": {reason}"),
        None => Ok(()),
    }
}

impl fmt::Display for Started {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            version,
            action,
            dry_run,
            profile,
            cgroup_root,
            memory_capacity,
            pid_capacity,
            sources,
            pods_known,
            listen_address,
        } = self;
        write!(
            f,
            "started {version}: action {action}, dry run {dry_run}, profile {profile}, cgroup root {cgroup_root}, memory {}, {pid_capacity} process IDs, {pods_known} pods known",
            display_bytes((*memory_capacity).into())
        )?;
        for Backend { source, backend, .. } in sources {
            write!(f, "; {source}: {backend}")?;
        }
        match listen_address {
            Some(address) => write!(f, "; http://{address}/metrics"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ConfigChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, until, would_evict, would_evict_omitted, errors, errors_omitted } = self;
        write!(f, "configuration change {state}")?;
        if !errors.is_empty() {
            write!(f, ": {}", errors.join("; "))?;
            if *errors_omitted > 0 {
                write!(f, "; and {errors_omitted} more errors")?;
            }
            return f.write_str("; the last valid configuration stays in force");
        }
        if let Some(until) = until {
            write!(f, " until {until}")?;
        }
        list(f, "would evict", would_evict, *would_evict_omitted)
    }
}

impl fmt::Display for PodsEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pods_known, with_cgroup, without_cgroup, unknown_cgroups, undecodable, error, .. } = self;
        if let Some(error) = error {
            return write!(f, "pods: {error}; the last valid list of {pods_known} pods stays in use");
        }
        write!(f, "pods: {pods_known} known, {with_cgroup} with a cgroup")?;
        list(f, "without a cgroup", without_cgroup, self.without_cgroup_omitted)?;
        list(f, "cgroups of unknown pods", unknown_cgroups, self.unknown_cgroups_omitted)?;
        list(f, "undecodable", undecodable, self.undecodable_omitted)
    }
}

fn list(f: &mut fmt::Formatter<'_>, what: &str, items: &[impl ToString], omitted: usize) -> fmt::Result {
    const SHOWN: usize = 5;
    if items.is_empty() {
        return Ok(());
    }
    let shown: Vec<_> = items.iter().take(SHOWN).map(ToString::to_string).collect();
    write!(f, "; {what}: {}", shown.join(", "))?;
    match items.len().saturating_sub(SHOWN) + omitted {
        0 => Ok(()),
        more => write!(f, " and {more} more"),
    }
}

impl fmt::Display for ThresholdEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { signal, threshold, state, value, available, capacity: _, detected_by } = self;
        write!(f, "{threshold} threshold {signal} < {value} {state}")?;
        if let Some(available) = available {
            write!(f, ", {} available", amount(signal, *available))?;
        }
        write!(f, " (detected by {detected_by})")
    }
}

/// Returns a value of a signal as text: bytes for memory and disk space, else a count.
fn amount(signal: &str, value: i64) -> String {
    match u64::try_from(value) {
        Ok(value) if signal.ends_with(".available") && signal != "pid.available" => {
            display_bytes(value.into())
        }
        _ => value.to_string(),
    }
}

impl fmt::Display for EvictionDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "eviction decision {}: evict {} with a grace period of {} s: {}",
            self.id,
            self.pod,
            self.grace_seconds,
            self.eviction_message.trim_end()
        )?;
        write!(f, " Detected by {}", self.detected_by)?;
        if let Some(late) = self.crossed_to_decided_us {
            write!(f, ", decided {} after the kernel's timestamp", milliseconds(late))?;
        }
        let skipped = self
            .candidates
            .iter()
            .filter_map(|it| it.skipped_reason.as_ref().map(|why| format!("{} ({why})", it.pod)));
        let skipped: Vec<_> = skipped.collect();
        if !skipped.is_empty() {
            write!(f, "; skipped: {}", skipped.join(", "))?;
        }
        Ok(())
    }
}

impl fmt::Display for KernelKillEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, pod, pid, comm, signal, threshold_bytes, available, growth, .. } = self;
        let Self { armed_mono_ns, killed_mono_ns, received_mono_ns, .. } = self;
        let between = |from: u64, to: u64| milliseconds(to.saturating_sub(from) / 1_000);
        write!(
            f,
            "kernel kill: {comm} (pid {pid}) of {pod} took {signal} below {} with {} more than at the last sample; kill order armed {} before with {} available, reported {} after",
            display_bytes((*threshold_bytes).into()),
            display_bytes((*growth).into()),
            between(*armed_mono_ns, *killed_mono_ns),
            display_bytes((*available).into()),
            between(*killed_mono_ns, *received_mono_ns)
        )?;
        match id {
            Some(id) => write!(f, "; the rest of the pod is evicted by decision {id}"),
            None => f.write_str("; the pod would no longer be evicted, so the rest of it stays"),
        }
    }
}

impl fmt::Display for EvictionProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, pod, result, processes, reason, since_decision_us, .. } = self;
        write!(f, "eviction {id} of {pod}: {}", result.replace('_', " "))?;
        if let Some(processes) = processes {
            write!(f, ", {processes} processes")?;
        }
        if let Some(reason) = reason {
            write!(f, ": {reason}")?;
        }
        write!(f, " ({} after the decision)", milliseconds(*since_decision_us))
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with a few digits")]
pub(super) fn milliseconds(us: u64) -> String {
    format!("{:.2} ms", us as f64 / 1000.0)
}
