//! An OOM kill: an input of the engine, a part of its records, and an event line.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use super::group::GroupKill;
use crate::pod::{PodRef, write_owner};
use crate::time::Timestamp;
use crate::units::display_bytes;

/// A process that the kernel's OOM killer killed. It is no eviction, whatever else happens to the pod.
///
/// Where the kernel kills all processes of a cgroup at once (`memory.oom.group`), each has its own record with the
/// same [`oom_group`](Self::oom_group). Fields that scenarios cannot set are filled in by the engine or the agent. The
/// JSON form is that of the event line `oom_kill`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all(deserialize = "camelCase"), deny_unknown_fields, default)]
pub struct OomKill {
    /// When the kernel chose the victim; if unknown, when it was learned. Records with the same time and the same
    /// process are the same kill.
    #[serde(skip_serializing)]
    pub at: Option<Timestamp>,
    /// The victim's process; 0 if unknown: such a record is never a repeated one.
    #[serde(rename(deserialize = "tgid"), skip_serializing_if = "is_zero")]
    pub pid: u32,
    /// The thread of it that the kernel named.
    #[serde(rename(deserialize = "pid"), skip_serializing)]
    pub tid: u32,
    /// Its name as the kernel has it, at most 15 bytes; may hold anything.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub comm: Box<str>,
    /// The victim's cgroup below the node's.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<Box<str>>,
    /// Name of its container, else the start of its id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Box<str>>,
    /// The runtime's id of the container: a restarted one has another.
    #[serde(rename(deserialize = "instance"), skip_serializing_if = "Option::is_none")]
    pub container_id: Option<Box<str>>,
    /// Its pod, if the engine knows it.
    #[serde(flatten, skip_deserializing)]
    pub pod: Option<PodRef>,
    /// UID of its pod as the API has it; `None` if it was in no pod or that is unknown.
    #[serde(rename(deserialize = "pod"), skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<Box<str>>,
    /// Whose limit it was.
    #[serde(rename(deserialize = "owner"))]
    pub limit_scope: LimitScope,
    /// The cgroup with that limit.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub limit_cgroup: Option<Box<str>>,
    /// The scope was concluded from usage and limits, since the kernel did not say.
    pub inferred: bool,
    /// What the victim was to its container.
    #[serde(serialize_with = "role_name")]
    pub victim: OomVictimRole,
    /// Id of the cgroup all of whose processes the kernel killed together.
    #[serde(rename(deserialize = "group"), skip_serializing_if = "Option::is_none")]
    pub oom_group: Option<u64>,
    /// The processes that were killed together so far.
    #[serde(flatten, skip_deserializing)]
    pub group: Option<GroupKill>,
    /// Usage of the cgroup with the limit, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<u64>,
    /// The limit, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Since when usage had been near the limit, if that was seen.
    #[serde(skip_serializing)]
    pub near_since: Option<Timestamp>,
    /// How long usage had been near the limit, microseconds.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub near_limit_us: Option<u64>,
    /// The victim's anonymous memory, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anon: Option<u64>,
    /// Its resident file pages, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<u64>,
    /// Its resident shared memory, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shmem: Option<u64>,
    /// What of it was swapped out, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<u64>,
    /// Its `oom_score_adj`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i32>,
    /// The process whose allocation failed.
    #[serde(rename(deserialize = "trigger"), skip_serializing_if = "Option::is_none")]
    pub trigger_pid: Option<u32>,
    /// Its name.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub trigger_comm: Box<str>,
    /// Its cgroup below the node's.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub trigger_cgroup: Option<Box<str>>,
    /// The backend or counter that reported the kill; empty in scenarios.
    #[serde(skip_deserializing, skip_serializing_if = "str::is_empty")]
    pub detected_by: &'static str,
    /// How many kills it stands for, where only the kernel's counters show them.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub unattributed: Option<u64>,
    /// Kills in the pod so far, this one included.
    #[serde(skip_deserializing)]
    pub kills_in_pod: u64,
    /// The kernel's monotonic time of the kill, nanoseconds.
    #[serde(skip_deserializing)]
    pub mono_ns: u64,
    /// The decision by which the pod was being evicted.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub during_eviction: Option<u64>,
    /// Since when the engine has been evicting the pod. Such a kill counts as a kill and as an eviction.
    #[serde(skip)]
    pub evicting_since: Option<Timestamp>,
    /// The record came before, and counts for nothing.
    #[serde(skip)]
    pub repeated: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
fn is_zero(pid: &u32) -> bool {
    *pid == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
fn role_name<S: Serializer>(role: &OomVictimRole, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(role.name())
}

impl OomKill {
    /// How many processes it is about.
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
            OomVictimRole::Main => ", init process)",
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

crate::named_enum! {
    /// Whose memory limit a kill was about.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum LimitScope {
        /// The container's.
        Container = "container",
        /// The pod's.
        Pod = "pod",
        /// That of a QoS class.
        Qos = "qos",
        /// That of all pods together.
        Kubepods = "kubepods",
        /// The machine itself, or the cgroup that stands for the node.
        Node = "node",
        /// That of another cgroup, such as a system service's.
        Other = "other",
        /// It is not known.
        #[default]
        Unknown = "unknown",
    }
}

crate::named_enum! {
    /// What the victim was to its container.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum OomVictimRole {
        /// Its init process: the container ends with it.
        Main = "init",
        /// Another process: the container may go on.
        Child = "child",
        /// It is not known.
        #[default]
        Unknown = "unknown",
    }
}

/// Kubernetes allows 253 bytes for a name, and a runtime's id has 64.
const LONGEST: usize = 256;

/// The text, or as much of it as is kept.
pub(super) fn clip(text: &str) -> Box<str> {
    clipped(text).into()
}

/// As [`clip`], without a copy.
pub(super) fn clipped(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST)]
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
    fn a_group_in_one_line() {
        let group = GroupKill { kills: 3, ..GroupKill::default() };
        assert_eq!(
            OomKill { group: Some(group), ..kill() }.to_string(),
            "kernel OOM kill of worker (pid 1, a child process) in container app of shop/web: limit of the container; triggered by dd (pid 9); whole OOM group killed, 3 processes; not an eviction"
        );
    }

    #[test]
    fn a_kill_says_for_how_long_the_limit_had_been_near() {
        let kill =
            OomKill { usage: Some(1 << 30), limit: Some(1 << 30), near_limit_us: Some(2_034_900), ..kill() };
        let text = kill.to_string();
        assert!(
            text.contains("limit of the container, 1Gi of 1Gi, near the limit for 2.034 s before;"),
            "{text}"
        );
    }

    #[test]
    fn a_kill_that_only_the_counters_show_in_one_line() {
        let counted =
            OomKill { unattributed: Some(2), cgroup: Some("/system.slice".into()), ..OomKill::default() };
        assert_eq!(counted.kills(), 2);
        assert_eq!(
            counted.to_string(),
            "2 kernel OOM kills that no BPF program reported in /system.slice: limit unknown; not an eviction"
        );
    }

    #[test]
    fn json_is_that_of_the_event_line_and_scenarios_set_what_they_know() {
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
        let input = read(r#"{"tgid": 1, "pid": 2, "pod": "u", "instance": "i", "owner": "qos", "group": 7}"#);
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
