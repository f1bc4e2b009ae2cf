//! An OOM kill: an input of the engine, a part of its records, and an event line.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::nullable::is_zero;
use crate::pod::{PodRef, write_owner};
use crate::time::Timestamp;
use crate::units::display_bytes;

/// A process that the kernel's OOM killer killed. It is not an eviction, whatever else happens to the pod.
///
/// If the kernel kills all processes of a cgroup at once (`memory.oom.group`), each has its own record with
/// the same [`oom_group`](Self::oom_group). The engine or the agent fills in the fields that scenarios cannot
/// set. The JSON form is that of the event line `oom_kill`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all(deserialize = "camelCase"), deny_unknown_fields, default)]
pub struct OomKill {
    /// When the kernel chose the victim. If that is unknown, when the agent learned of the kill. Records with
    /// the same time and the same process are the same kill.
    #[serde(skip_serializing)]
    pub at: Option<Timestamp>,
    /// The victim's process id. 0 if unknown; such a record never counts as repeated.
    #[serde(skip_serializing_if = "is_zero")]
    pub pid: u32,
    /// The thread of the victim that the kernel named.
    #[serde(skip_serializing)]
    pub tid: u32,
    /// The name of the victim in the kernel, at most 15 bytes. It may contain any characters.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub comm: Box<str>,
    /// The victim's cgroup, relative to the node's cgroup.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<Box<str>>,
    /// The name of the victim's container, or the start of its id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Box<str>>,
    /// The runtime's id of the container. A restarted container has another id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_id: Option<Box<str>>,
    /// The victim's pod, if the engine knows it.
    #[serde(flatten, skip_deserializing)]
    pub pod: Option<PodRef>,
    /// The UID of the victim's pod in the API. None if the victim was in no pod or the pod is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<Box<str>>,
    /// The scope of the memory limit.
    pub limit_scope: LimitScope,
    /// The cgroup with that limit.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub limit_cgroup: Option<Box<str>>,
    /// Whether the scope was inferred from usage and limits, because the kernel did not report it.
    pub inferred: bool,
    /// The role of the victim in its container.
    pub victim: OomVictimRole,
    /// The id of the cgroup whose processes the kernel killed together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_group: Option<u64>,
    /// The processes that were killed together so far.
    #[serde(flatten, skip_deserializing)]
    pub group: Option<GroupKill>,
    /// The usage of the cgroup with the limit, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<u64>,
    /// The limit, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Since when the usage had been near the limit, if that was observed.
    #[serde(skip_serializing)]
    pub near_since: Option<Timestamp>,
    /// How long the usage had been near the limit, in microseconds.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub near_limit_us: Option<u64>,
    /// The victim's anonymous memory, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anon: Option<u64>,
    /// The victim's resident file pages, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<u64>,
    /// The victim's resident shared memory, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shmem: Option<u64>,
    /// The victim's swapped-out memory, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<u64>,
    /// The victim's `oom_score_adj`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i32>,
    /// The process whose allocation failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger_pid: Option<u32>,
    /// The name of that process.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub trigger_comm: Box<str>,
    /// The cgroup of that process, relative to the node's cgroup.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub trigger_cgroup: Option<Box<str>>,
    /// The backend or counter that reported the kill; empty in scenarios.
    #[serde(skip_deserializing, skip_serializing_if = "str::is_empty")]
    pub detected_by: &'static str,
    /// The number of kills that the record stands for, if only the kernel's counters show them.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub unattributed: Option<u64>,
    /// The number of kills in the pod so far, including this one.
    #[serde(skip_deserializing)]
    pub kills_in_pod: u64,
    /// The kernel's monotonic time of the kill, in nanoseconds.
    #[serde(skip_deserializing)]
    pub mono_ns: u64,
    /// The decision by which the pod was being evicted.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub during_eviction: Option<u64>,
    /// Since when the engine has been evicting the pod. Such a kill counts both as a kill and as an eviction.
    #[serde(skip)]
    pub evicting_since: Option<Timestamp>,
    /// Whether the record repeats an earlier one. Repeated records are not counted.
    #[serde(skip)]
    pub repeated: bool,
}

impl OomKill {
    /// Returns the number of processes that were killed.
    pub fn kills(&self) -> u64 {
        self.unattributed.or(self.group.as_ref().map(|group| group.kills)).unwrap_or(1)
    }

    fn write_victim(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.comm.is_empty() { "a process" } else { &self.comm };
        match (self.unattributed, self.pid) {
            (Some(1), _) => return f.write_str("kernel OOM kill that no BPF program reported"),
            (Some(kills), _) => return write!(f, "{kills} kernel OOM kills that no BPF program reported"),
            (None, 0) => return write!(f, "kernel OOM kill of {name}"),
            (None, pid) => write!(f, "kernel OOM kill of {name} (pid {pid}")?,
        }
        f.write_str(match self.victim {
            OomVictimRole::Init => ", init process)",
            OomVictimRole::Child => ", a child process)",
            OomVictimRole::Unknown => ")",
        })
    }
}

impl fmt::Display for OomKill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_victim(f)?;
        f.write_str(" in ")?;
        write_owner(f, self.container.as_deref(), self.pod.as_ref(), self.cgroup.as_deref())?;
        match self.limit_scope {
            LimitScope::Unknown => f.write_str(": limit unknown")?,
            LimitScope::Other => f.write_str(": limit of another cgroup")?,
            scope => write!(f, ": limit of the {}", scope.name())?,
        }
        if self.inferred {
            f.write_str(" (inferred)")?;
        }
        if let (Some(usage), Some(limit)) = (self.usage, self.limit) {
            write!(f, ", {} of {}", display_bytes(usage.into()), display_bytes(limit.into()))?;
        }
        if let Some(us) = self.near_limit_us {
            write!(f, ", near the limit for {}.{:03} s before", us / 1_000_000, us / 1000 % 1000)?;
        }
        if let (Some(anon), Some(file), Some(shmem)) = (self.anon, self.file, self.shmem) {
            let [anon, file, shmem] = [anon, file, shmem].map(|bytes| display_bytes(bytes.into()));
            write!(f, "; victim: anon {anon}, file {file}, shmem {shmem}")?;
        }
        if let Some(trigger) = self.trigger_pid.filter(|trigger| *trigger != self.pid) {
            write!(f, "; triggered by {} (pid {trigger})", self.trigger_comm)?;
        }
        if let Some(group) = &self.group {
            write!(f, "; whole OOM group killed, {} processes", group.kills)?;
        }
        f.write_str("; not an eviction")?;
        match self.during_eviction {
            Some(id) => write!(f, "; decision {id} was evicting the pod"),
            None => Ok(()),
        }
    }
}

/// The number of victims of each group kill that are listed. The others are only counted.
pub const LISTED: usize = 64;

/// The processes of a cgroup that were killed together: with `memory.oom.group` the kernel kills every process
/// of a cgroup together with the victim that it chose (`mm/oom_kill.c: oom_kill_process`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GroupKill {
    /// The number of victims.
    #[serde(rename = "oom_group_kills")]
    pub kills: u64,
    /// The victims, in the order of the records.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub victims: Vec<Victim>,
    /// The number of victims that are not listed.
    #[serde(skip_serializing_if = "is_zero")]
    pub victims_omitted: u64,
    /// When the last victim was killed, if that is known.
    #[serde(skip)]
    pub latest: Option<Timestamp>,
}

/// A process that was killed with its cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Victim {
    /// The process id.
    pub pid: u32,
    /// The name of the process.
    pub comm: Box<str>,
    /// The container of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Box<str>>,
    /// The pod of the process, if the engine knows it.
    #[serde(flatten)]
    pub pod: Option<PodRef>,
}

impl GroupKill {
    /// Adds a victim.
    pub fn add(&mut self, kill: &OomKill) {
        self.kills = self.kills.saturating_add(1);
        self.latest = self.latest.max(kill.at);
        if self.victims.len() < LISTED {
            let container = kill.container.as_deref().map(clip);
            let victim = Victim { pid: kill.pid, comm: clip(&kill.comm), container, pod: kill.pod.clone() };
            self.victims.push(victim);
        } else {
            self.victims_omitted = self.victims_omitted.saturating_add(1);
        }
    }
}

crate::named_enum! {
    /// The scope of the memory limit that led to a kill.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum LimitScope {
        /// The limit of the container.
        Container = "container",
        /// The limit of the pod.
        Pod = "pod",
        /// The limit of a QoS class.
        Qos = "qos",
        /// The limit of all pods together.
        Kubepods = "kubepods",
        /// The memory of the machine, or the limit of the cgroup that represents the node.
        Node = "node",
        /// The limit of another cgroup, such as that of a system service.
        Other = "other",
        /// The scope is not known.
        #[default]
        Unknown = "unknown",
    }
}

crate::named_enum! {
    /// The role of the victim in its container.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum OomVictimRole {
        /// The init process. The container ends with it.
        Init = "init",
        /// Another process. The container may continue.
        Child = "child",
        /// The role is not known.
        #[default]
        Unknown = "unknown",
    }
}

/// The longest text that is stored, in bytes. Kubernetes allows 253 bytes for a name, and a runtime's id has 64.
const MAX_TEXT_BYTES: usize = 256;

/// Returns the text, shortened to the length that is stored.
pub(super) fn clip(text: &str) -> Box<str> {
    clipped(text).into()
}

/// As [`clip`], without a copy.
pub(super) fn clipped(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kill() -> OomKill {
        OomKill {
            pid: 1,
            comm: "worker".into(),
            container: Some("app".into()),
            pod: Some(PodRef::new("shop", "web")),
            limit_scope: LimitScope::Container,
            victim: OomVictimRole::Child,
            trigger_pid: Some(9),
            trigger_comm: "dd".into(),
            ..OomKill::default()
        }
    }

    #[test]
    fn group_kill_is_written_in_one_line() {
        let group = GroupKill { kills: 3, ..GroupKill::default() };
        assert_eq!(
            OomKill { group: Some(group), ..kill() }.to_string(),
            "kernel OOM kill of worker (pid 1, a child process) in container app of shop/web: limit of the container; triggered by dd (pid 9); whole OOM group killed, 3 processes; not an eviction"
        );
    }

    #[test]
    fn kill_text_shows_how_long_the_limit_had_been_near() {
        let kill =
            OomKill { usage: Some(1 << 30), limit: Some(1 << 30), near_limit_us: Some(2_034_900), ..kill() };
        let text = kill.to_string();
        assert!(
            text.contains("limit of the container, 1Gi of 1Gi, near the limit for 2.034 s before;"),
            "{text}"
        );
    }

    #[test]
    fn unattributed_kills_are_written_in_one_line() {
        let counted =
            OomKill { unattributed: Some(2), cgroup: Some("/system.slice".into()), ..OomKill::default() };
        assert_eq!(counted.kills(), 2);
        assert_eq!(
            counted.to_string(),
            "2 kernel OOM kills that no BPF program reported in /system.slice: limit unknown; not an eviction"
        );
    }

    #[test]
    fn kill_json_matches_the_event_line_and_scenario_kills_are_read() {
        let line = serde_json::to_value(OomKill {
            container_id: Some("4f1c".into()),
            pod_uid: Some("u".into()),
            oom_group: Some(7),
            near_since: Some(Timestamp::UNIX_EPOCH),
            detected_by: "vmstat",
            ..kill()
        });
        let expected = serde_json::json!({
            "pid": 1, "comm": "worker", "container": "app", "container_id": "4f1c", "namespace": "shop",
            "pod": "web", "pod_uid": "u", "limit_scope": "container", "inferred": false, "victim": "child",
            "oom_group": 7, "trigger_pid": 9, "trigger_comm": "dd", "detected_by": "vmstat",
            "kills_in_pod": 0, "mono_ns": 0,
        });
        assert_eq!(line.unwrap(), expected);
        let read = |text| serde_json::from_str::<OomKill>(text);
        let input = read(
            r#"{"pid": 1, "tid": 2, "podUid": "u", "containerId": "i", "limitScope": "qos", "oomGroup": 7}"#,
        );
        let expected = OomKill {
            pid: 1,
            tid: 2,
            pod_uid: Some("u".into()),
            container_id: Some("i".into()),
            limit_scope: LimitScope::Qos,
            oom_group: Some(7),
            ..OomKill::default()
        };
        assert_eq!(input.unwrap(), expected);
        for unknown in ["{\"cgroup\": \"/\"}", "{\"podd\": \"u\"}", "{\"namespace\": \"shop\"}"] {
            assert!(read(unknown).is_err(), "{unknown}");
        }
    }
}
