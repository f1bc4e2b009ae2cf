//! Kills and ends in a record.

use serde::Serialize;

use crate::oom::{
    EndHandling, EndSeen, EndUpdate, GroupKill, KillUpdate, LimitScope, OomKill, OomUpdate, OomVictimRole,
};
use crate::time::Timestamp;

use super::PodName;

/// What was taken note of.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OomRecord {
    /// The kernel killed a process for want of memory: no eviction.
    OomKill(Box<OomKillRecord>),
    /// A container ended.
    ContainerEnded(ContainerEndRecord),
}

/// A kill by the kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OomKillRecord {
    /// When the kernel chose the victim.
    pub killed_at: Timestamp,
    /// The victim's process.
    pub tgid: u32,
    /// Its name.
    pub comm: Box<str>,
    /// Its pod, with empty names if the engine was never told of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodName>,
    /// Its container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Box<str>>,
    /// Whose limit it was.
    pub limit_owner: LimitScope,
    /// Whether that was concluded.
    pub inferred: bool,
    /// What the victim was to its container.
    pub victim: OomVictimRole,
    /// The others that were killed with it so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupKill>,
    /// Usage of the limit's owner, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<u64>,
    /// The limit, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Since when the owner had been near its limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub near_since: Option<Timestamp>,
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
    /// The process that asked for a page too many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger: Option<u32>,
    /// Its name.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub trigger_comm: Box<str>,
    /// Since when the pod is being evicted: then it is both, and counted once in each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evicting_since: Option<Timestamp>,
    /// Kills in the pod so far.
    pub kills_in_pod: u64,
    /// Told before; counts for nothing.
    pub repeated: bool,
}

/// A record of an end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContainerEndRecord {
    /// Uid of the pod.
    pub uid: Box<str>,
    /// Name of the container.
    pub container: Box<str>,
    /// Who saw it.
    pub seen: EndSeen,
    /// What the record did.
    pub taken: EndHandling,
}

impl OomRecord {
    pub(super) fn of(note: &OomUpdate) -> Self {
        match note {
            OomUpdate::Kill(note) => Self::OomKill(Box::new(OomKillRecord::of(note))),
            OomUpdate::End(note) => {
                let EndUpdate { end, taken } = &**note;
                Self::ContainerEnded(ContainerEndRecord {
                    uid: end.pod.clone(),
                    container: end.container.clone(),
                    seen: end.seen,
                    taken: *taken,
                })
            }
        }
    }
}

impl OomKillRecord {
    fn of(note: &KillUpdate) -> Self {
        let KillUpdate { kill, at, repeated, pod, evicting_since, group, in_pod } = note;
        let OomKill {
            at: _,
            tgid,
            pid: _,
            comm,
            pod: uid,
            container,
            instance: _,
            owner,
            inferred,
            victim,
            group: _,
            usage,
            limit,
            near_since,
            anon,
            file,
            shmem,
            swap,
            oom_score_adj,
            trigger,
            trigger_comm,
        } = kill;
        let pod = uid.clone().map(|uid| {
            let (namespace, name) = pod.clone().unwrap_or_default();
            PodName { namespace, name, uid }
        });
        Self {
            killed_at: *at,
            tgid: *tgid,
            comm: comm.clone(),
            pod,
            container: container.clone(),
            limit_owner: *owner,
            inferred: *inferred,
            victim: *victim,
            group: group.clone(),
            usage: *usage,
            limit: *limit,
            near_since: *near_since,
            anon: *anon,
            file: *file,
            shmem: *shmem,
            swap: *swap,
            oom_score_adj: *oom_score_adj,
            trigger: *trigger,
            trigger_comm: trigger_comm.clone(),
            evicting_since: *evicting_since,
            kills_in_pod: *in_pod,
            repeated: *repeated,
        }
    }
}
