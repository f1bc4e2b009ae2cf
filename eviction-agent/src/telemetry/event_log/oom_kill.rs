//! The line of a kill by the kernel's OOM killer.

use std::fmt;

use serde::Serialize;

use eviction_core::oom::KillUpdate;

use super::place::write_place;
use super::{LISTED, PodRef, is_zero};
use eviction_core::units::display_bytes;

/// See [`super::Event::OomKill`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct OomKill {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub comm: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    #[serde(flatten)]
    pub pod: Option<PodRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    pub limit_scope: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_cgroup: Option<String>,
    pub inferred: bool,
    pub victim: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_group: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_group_kills: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub victims: Vec<Victim>,
    #[serde(skip_serializing_if = "is_zero")]
    pub victims_omitted: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub near_limit_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anon: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shmem: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger_pid: Option<u32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub trigger_comm: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger_cgroup: Option<String>,
    pub detected_by: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unattributed: Option<u64>,
    pub kills_in_pod: u64,
    pub mono_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub during_eviction: Option<u64>,
}

/// A process that was killed with its OOM group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct Victim {
    pub pid: u32,
    pub comm: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    #[serde(flatten)]
    pub pod: Option<PodRef>,
}

impl OomKill {
    /// From what the engine reports. The engine knows neither the cgroups nor the evictions in progress.
    pub(crate) fn of(note: &KillUpdate, mono_ns: u64) -> Self {
        let KillUpdate { kill, at: _, repeated: _, pod, evicting_since: _, group, in_pod } = note;
        let text = |text: &Option<Box<str>>| text.as_deref().map(str::to_owned);
        let pid = (kill.tgid != 0).then_some(kill.tgid);
        let pod = pod.as_ref().map(|(namespace, name)| PodRef::new(namespace, name));
        let victim = pid.filter(|_| group.is_some()).map(|pid| Victim {
            pid,
            comm: kill.comm.to_string(),
            container: text(&kill.container),
            pod: pod.clone(),
        });
        Self {
            pid,
            comm: kill.comm.to_string(),
            cgroup: None,
            container: text(&kill.container),
            container_id: text(&kill.instance),
            pod,
            pod_uid: text(&kill.pod),
            limit_scope: kill.owner.name(),
            limit_cgroup: None,
            inferred: kill.inferred,
            victim: kill.victim.name(),
            oom_group: kill.group,
            oom_group_kills: group.as_ref().map(|_| 1),
            victims: victim.into_iter().collect(),
            victims_omitted: 0,
            usage: kill.usage,
            limit: kill.limit,
            near_limit_us: None,
            anon: kill.anon,
            file: kill.file,
            shmem: kill.shmem,
            swap: kill.swap,
            oom_score_adj: kill.oom_score_adj,
            trigger_pid: kill.trigger,
            trigger_comm: kill.trigger_comm.to_string(),
            trigger_cgroup: None,
            detected_by: "",
            unattributed: None,
            kills_in_pod: *in_pod,
            mono_ns,
            during_eviction: None,
        }
    }
}

impl OomKill {
    /// How many processes the line is about.
    pub fn kills(&self) -> u64 {
        self.unattributed.or(self.oom_group_kills).unwrap_or(1)
    }

    /// Takes in another process that was killed together with this one.
    pub(crate) fn join(&mut self, other: Self) {
        self.oom_group_kills = Some(self.kills().saturating_add(other.kills()));
        self.kills_in_pod = self.kills_in_pod.max(other.kills_in_pod);
        let room = LISTED.saturating_sub(self.victims.len());
        self.victims_omitted += other.victims.len().saturating_sub(room);
        self.victims.extend(other.victims.into_iter().take(room));
    }

    fn write_victim(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.comm.is_empty() { "a process" } else { &self.comm };
        match (self.unattributed, self.pid) {
            (Some(1), _) => return f.write_str("kernel OOM kill that no BPF program reported"),
            (Some(kills), _) => return write!(f, "{kills} kernel OOM kills that no BPF program reported"),
            (None, Some(pid)) => write!(f, "kernel OOM kill of {name} (pid {pid}")?,
            (None, None) => return write!(f, "kernel OOM kill of {name}"),
        }
        match self.victim {
            "init" => f.write_str(", init process)"),
            "child" => f.write_str(", a child process)"),
            _ => f.write_str(")"),
        }
    }
}

impl fmt::Display for OomKill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_victim(f)?;
        f.write_str(" in ")?;
        write_place(f, self.container.as_deref(), self.pod.as_ref(), self.cgroup.as_deref())?;
        write!(f, ": {}", limit_of(self.limit_scope))?;
        if self.inferred {
            f.write_str(" (inferred)")?;
        }
        if let (Some(usage), Some(limit)) = (self.usage, self.limit) {
            write!(f, ", {} of {}", display_bytes(usage.into()), display_bytes(limit.into()))?;
        }
        if let Some(near_limit) = self.near_limit_us {
            write!(
                f,
                ", near the limit for {}.{:03} s before",
                near_limit / 1_000_000,
                near_limit / 1000 % 1000
            )?;
        }
        if let (Some(anon), Some(file), Some(shmem)) = (self.anon, self.file, self.shmem) {
            write!(
                f,
                "; victim: anon {}, file {}, shmem {}",
                display_bytes(anon.into()),
                display_bytes(file.into()),
                display_bytes(shmem.into())
            )?;
        }
        if let (Some(trigger), false) = (self.trigger_pid, self.trigger_pid == self.pid) {
            write!(f, "; triggered by {} (pid {trigger})", self.trigger_comm)?;
        }
        if let Some(together) = self.oom_group_kills {
            write!(f, "; whole OOM group killed, {together} processes")?;
        }
        f.write_str("; not an eviction")?;
        match self.during_eviction {
            Some(id) => write!(f, "; decision {id} was evicting the pod"),
            None => Ok(()),
        }
    }
}

fn limit_of(scope: &str) -> String {
    match scope {
        "unknown" => "limit unknown".to_owned(),
        "other" => "limit of another cgroup".to_owned(),
        scope => format!("limit of the {scope}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(pid: u32) -> OomKill {
        OomKill {
            pid: Some(pid),
            comm: "worker".into(),
            container: Some("app".into()),
            pod: Some(PodRef::new("shop", "web")),
            limit_scope: "container",
            victim: "child",
            oom_group: Some(7),
            oom_group_kills: Some(1),
            victims: vec![Victim { pid, comm: "worker".into(), container: None, pod: None }],
            trigger_pid: Some(9),
            trigger_comm: "dd".into(),
            kills_in_pod: u64::from(pid),
            ..OomKill::default()
        }
    }

    #[test]
    fn a_group_in_one_line() {
        let mut first = member(1);
        first.join(member(2));
        first.join(member(3));
        assert_eq!((first.kills(), first.kills_in_pod, first.victims.len()), (3, 3, 3));
        assert_eq!(
            first.to_string(),
            "kernel OOM kill of worker (pid 1, a child process) in container app of shop/web: limit of the container; triggered by dd (pid 9); whole OOM group killed, 3 processes; not an eviction"
        );
        for pid in 4..1000 {
            first.join(member(pid));
        }
        assert_eq!((first.kills(), first.victims.len()), (999, LISTED));
        assert_eq!(first.victims_omitted, 999 - LISTED);
    }

    #[test]
    fn a_kill_says_for_how_long_the_limit_had_been_near() {
        let kill = OomKill { usage: Some(1 << 30), limit: Some(1 << 30), ..member(1) };
        let kill = OomKill { near_limit_us: Some(2_034_900), ..kill };
        let text = kill.to_string();
        assert!(
            text.contains("limit of the container, 1Gi of 1Gi, near the limit for 2.034 s before;"),
            "{text}"
        );
    }

    #[test]
    fn a_kill_that_only_the_counters_show_in_one_line() {
        let unseen = OomKill {
            unattributed: Some(2),
            cgroup: Some("/system.slice".into()),
            limit_scope: "unknown",
            ..OomKill::default()
        };
        assert_eq!(unseen.kills(), 2);
        assert_eq!(
            unseen.to_string(),
            "2 kernel OOM kills that no BPF program reported in /system.slice: limit unknown; not an eviction"
        );
    }
}
