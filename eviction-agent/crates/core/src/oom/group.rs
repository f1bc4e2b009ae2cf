//! Kills of whole groups: `memory.oom.group` makes the kernel kill every process of a cgroup
//! with the one that it chose (`mm/oom_kill.c: oom_kill_process`). That is one story, with as
//! many victims as there are records.

use std::collections::VecDeque;

use serde::Serialize;

use crate::time::Timestamp;

use super::kill::OomKill;
use super::pod::KillEntry;

/// Stories remembered.
const STORIES: usize = 32;

/// Victims of each that are remembered; the others are counted.
const VICTIMS: usize = 64;

/// The kernel kills them in one go; records of the same group that are further apart are two stories.
const SAME_NANOS: i128 = 1_000_000_000;

/// All processes of a group were killed together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupKill {
    /// The cgroup's id.
    pub group: u64,
    /// When it began.
    pub at: Timestamp,
    /// Who died, in the order of the records.
    pub victims: Vec<KillEntry>,
    /// How many more than those.
    #[serde(skip_serializing_if = "is_zero")]
    pub more: u64,
    #[serde(skip)]
    pods: Vec<Box<str>>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl GroupKill {
    /// How many died.
    pub fn processes(&self) -> u64 {
        self.more.saturating_add(self.victims.len() as u64)
    }
}

/// The last stories of this kind.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupKills(VecDeque<GroupKill>);

/// What a record is to its group's story.
pub(super) struct GroupMember {
    /// It is the first one.
    pub(super) first: bool,
    /// It is the first one in its pod.
    pub(super) first_in_pod: bool,
    pub(super) story: GroupKill,
}

impl GroupKills {
    /// Adds a record to its story, if it is part of one.
    pub(super) fn add(&mut self, kill: &OomKill, killed: &KillEntry) -> Option<GroupMember> {
        let group = kill.group?;
        let same = |story: &&mut GroupKill| {
            let apart = killed.at.as_nanosecond() - story.at.as_nanosecond();
            story.group == group && apart.abs() <= SAME_NANOS
        };
        let (index, first) = match self.0.iter_mut().rev().find(same) {
            Some(story) => (story, false),
            None => {
                if self.0.len() >= STORIES {
                    self.0.pop_front();
                }
                let (at, victims, pods) = (killed.at, Vec::new(), Vec::new());
                (self.0.push_back_mut(GroupKill { group, at, victims, more: 0, pods }), true)
            }
        };
        let story = index;
        story.at = story.at.min(killed.at);
        if story.victims.len() < VICTIMS {
            story.victims.push(killed.clone());
        } else {
            story.more = story.more.saturating_add(1);
        }
        let pod = kill.pod.as_deref().unwrap_or_default();
        let first_in_pod = !story.pods.iter().any(|known| &**known == pod);
        if first_in_pod && story.pods.len() < VICTIMS {
            story.pods.push(super::text::clip(pod));
        }
        Some(GroupMember { first, first_in_pod, story: story.clone() })
    }
}
