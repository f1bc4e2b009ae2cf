//! Kills of whole cgroups: `memory.oom.group` makes the kernel kill every process of a cgroup with the one that it chose
//! (`mm/oom_kill.c: oom_kill_process`). The engine joins their records.

use std::collections::VecDeque;

use serde::Serialize;

use super::kill::OomKill;
use super::text::clip;
use crate::pod_ref::PodRef;
use crate::time::Timestamp;

/// Group kills that are remembered.
const GROUPS: usize = 32;

/// Victims of each that are listed; the others are counted.
pub const LISTED: usize = 64;

/// The kernel kills them in one go: records of the same cgroup that are further apart are two group kills.
const SAME_NANOS: i128 = 1_000_000_000;

/// The processes of a cgroup that were killed together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GroupKill {
    /// How many.
    #[serde(rename = "oom_group_kills")]
    pub kills: u64,
    /// The victims, in the order of the records.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub victims: Vec<Victim>,
    /// How many more victims there are.
    #[serde(skip_serializing_if = "is_zero")]
    pub victims_omitted: u64,
}

/// A process that was killed with its cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Victim {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: Box<str>,
    /// Its container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Box<str>>,
    /// Its pod, if the engine knows it.
    #[serde(flatten)]
    pub pod: Option<PodRef>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The last group kills.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupKills(VecDeque<OpenGroup>);

#[derive(Clone, Debug)]
struct OpenGroup {
    cgroup: u64,
    latest: Timestamp,
    pods: Vec<Box<str>>,
    kill: GroupKill,
}

/// What a record is to its group.
pub(super) struct GroupMember {
    /// It is the first one.
    pub(super) first: bool,
    /// It is the first one in its pod.
    pub(super) first_in_pod: bool,
    /// The group so far.
    pub(super) group: GroupKill,
}

impl GroupKills {
    /// Adds a record of this time to its group, if it is part of one.
    pub(super) fn add(&mut self, kill: &OomKill, at: Timestamp, pod: Option<&PodRef>) -> Option<GroupMember> {
        let cgroup = kill.oom_group?;
        let is_same = |open: &&mut OpenGroup| {
            let distance = at.as_nanosecond() - open.latest.as_nanosecond();
            open.cgroup == cgroup && distance.abs() <= SAME_NANOS
        };
        let (open, first) = match self.0.iter_mut().rev().find(is_same) {
            Some(open) => (open, false),
            None => {
                if self.0.len() >= GROUPS {
                    self.0.pop_front();
                }
                let open = OpenGroup { cgroup, latest: at, pods: Vec::new(), kill: GroupKill::default() };
                (self.0.push_back_mut(open), true)
            }
        };
        open.latest = open.latest.max(at);
        open.kill.kills = open.kill.kills.saturating_add(1);
        if open.kill.victims.len() < LISTED {
            let container = kill.container.as_deref().map(clip);
            let victim = Victim { pid: kill.pid, comm: clip(&kill.comm), container, pod: pod.cloned() };
            open.kill.victims.push(victim);
        } else {
            open.kill.victims_omitted = open.kill.victims_omitted.saturating_add(1);
        }
        let uid = clip(kill.pod_uid.as_deref().unwrap_or_default());
        let first_in_pod = !open.pods.contains(&uid);
        if first_in_pod && open.pods.len() < LISTED {
            open.pods.push(uid);
        }
        Some(GroupMember { first, first_in_pod, group: open.kill.clone() })
    }
}
