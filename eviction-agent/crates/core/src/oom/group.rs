//! Kills of whole cgroups: with `memory.oom.group` the kernel kills every process of a cgroup together with
//! the victim that it chose (`mm/oom_kill.c: oom_kill_process`). The engine joins their records.

use std::collections::VecDeque;

use serde::Serialize;

use super::kill::{OomKill, clip, is_zero};
use crate::pod::PodRef;
use crate::time::Timestamp;

/// The number of group kills that are kept.
const GROUPS: usize = 32;

/// The number of victims of each group kill that are listed. The others are only counted.
pub const LISTED: usize = 64;

/// The longest time between two records of one group kill. The kernel kills all processes at once.
const SAME_NANOS: i128 = 1_000_000_000;

/// The processes of a cgroup that were killed together.
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
        if self.victims.len() < LISTED {
            let container = kill.container.as_deref().map(clip);
            let victim = Victim { pid: kill.pid, comm: clip(&kill.comm), container, pod: kill.pod.clone() };
            self.victims.push(victim);
        } else {
            self.victims_omitted = self.victims_omitted.saturating_add(1);
        }
    }
}

/// The most recent group kills.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupKills(VecDeque<OpenGroup>);

#[derive(Clone, Debug)]
struct OpenGroup {
    cgroup: u64,
    latest: Timestamp,
    kill: GroupKill,
}

impl GroupKills {
    /// Adds a record of this time to its group, if it belongs to one. Returns the group so far.
    pub(super) fn add(&mut self, kill: &OomKill, at: Timestamp) -> Option<GroupKill> {
        let cgroup = kill.oom_group?;
        let is_same = |open: &&mut OpenGroup| {
            let distance = at.as_nanosecond() - open.latest.as_nanosecond();
            open.cgroup == cgroup && distance.abs() <= SAME_NANOS
        };
        let open = match self.0.iter_mut().rev().find(is_same) {
            Some(open) => open,
            None => {
                if self.0.len() >= GROUPS {
                    self.0.pop_front();
                }
                self.0.push_back_mut(OpenGroup { cgroup, latest: at, kill: GroupKill::default() })
            }
        };
        open.latest = open.latest.max(at);
        open.kill.add(kill);
        Some(open.kill.clone())
    }
}
