//! Whose an OOM kill was: from ids of cgroups to container, pod and the owner of the limit.

use eviction_bpf::oom_limit_owner::{Attribution, OomLimitOwner, attribute};
use eviction_core::oom::{LimitScope, OomKill};
use eviction_core::time::Timestamp;
use eviction_node::cgroup::pods::Pods;
use eviction_node::cgroup::sampler::Sampler;
use eviction_node::cgroup::tree::Tree;
use std::borrow::Cow;

use super::monitor::root_id;
use eviction_node::container_init::ContainerInitTracker;
use eviction_node::pod_index::PodIndex;

/// A kill as the engine is told of it, and where in the tree it was.
#[derive(Debug)]
pub(crate) struct DescribedKill {
    pub(crate) kill: OomKill,
    /// The victim's group.
    pub(crate) cgroup: Option<String>,
    /// The group whose limit it was.
    pub(crate) owner_cgroup: Option<String>,
    /// The group of the process that asked for a page too many.
    pub(crate) trigger_cgroup: Option<String>,
}

/// The groups that a kill is about, and which of them are pods' and containers'.
pub(crate) struct KillCgroups<'a> {
    tree: Cow<'a, Tree>,
    pods: Cow<'a, Pods>,
}

impl<'a> KillCgroups<'a> {
    /// Those of the tree as it was last read; or, where that has not the victim's group, as the
    /// kernel itself named them at the kill: it may have come a moment ago, and be gone again.
    pub(crate) fn of(kill: &eviction_bpf::OomKill, sampler: &'a Sampler, roster: &PodIndex) -> Self {
        let read = Self::read(sampler);
        let known = kill.chain.first().is_none_or(|group| read.index(group.id).is_some());
        let named = || {
            let root = root_id(sampler)?;
            let tree = Tree::branch(sampler.tree().root(), root, kill.way_down(root)?);
            let pods = Pods::find(&tree, |uid| roster.knows(uid));
            Some(Self { tree: Cow::Owned(tree), pods: Cow::Owned(pods) })
        };
        if known { read } else { named().unwrap_or(read) }
    }

    /// Those of the tree as it was last read.
    pub(crate) fn read(sampler: &'a Sampler) -> Self {
        Self { tree: Cow::Borrowed(sampler.tree()), pods: Cow::Borrowed(sampler.pods()) }
    }

    fn index(&self, id: u64) -> Option<usize> {
        self.tree.groups().iter().position(|group| group.id == id)
    }

    /// Where a group is below the node's.
    pub(crate) fn path(&self, id: u64) -> Option<String> {
        self.index(id).map(|index| format!("/{}", self.tree.relative_path(index).display()))
    }

    /// A group and those that it is in, up to the node's.
    pub(crate) fn way_up(&self, id: u64) -> impl Iterator<Item = u64> + '_ {
        let groups = self.tree.groups();
        let start = self.index(id).and_then(|index| groups.get(index));
        std::iter::successors(start, |group| groups.get(group.parent?)).map(|group| group.id)
    }

    /// What the group is whose limit was hit.
    pub(crate) fn kind(&self, id: u64) -> LimitScope {
        let pods = &self.pods;
        if self.tree.groups().first().is_some_and(|root| root.id == id) {
            return LimitScope::Node;
        }
        if pods.pods_root == Some(id) {
            return LimitScope::Kubepods;
        }
        if pods.qos.iter().any(|(_, qos)| *qos == id) {
            return LimitScope::Qos;
        }
        match pods.owner(id) {
            Some(owner) if owner.container.is_some() => LimitScope::Container,
            Some(_) => LimitScope::Pod,
            None => LimitScope::Other,
        }
    }

    /// Writes down in whose group a victim was, and what it was to its container.
    pub(crate) fn name_victim(
        &self,
        told: &mut OomKill,
        id: u64,
        roster: &PodIndex,
        mains: &mut ContainerInitTracker,
    ) {
        let Some(owner) = self.pods.owner(id) else { return };
        let Some(cgroup) = self.pods.pods.get(owner.pod) else { return };
        let known = roster.pod_of(cgroup).map(|known| &known.pod);
        told.pod = Some(known.map_or_else(|| cgroup.uid.as_str().into(), |pod| pod.uid.clone()));
        let container = owner.container.and_then(|index| cgroup.containers.get(index));
        let Some(container) = container else { return };
        told.container = Some(roster.container_name(&container.id).into());
        told.instance = Some(container.id.clone());
        if told.tgid != 0 {
            told.victim = mains.victim(container.cgroup_id, told.tgid);
        }
    }
}

/// The kill in the terms of the node. Names are those of the moment of the kill.
pub(crate) fn describe(
    kill: &eviction_bpf::OomKill,
    at: Timestamp,
    places: &KillCgroups<'_>,
    roster: &PodIndex,
    mains: &mut ContainerInitTracker,
) -> DescribedKill {
    let page_bytes = rustix::param::page_size() as u64;
    let Attribution { owner, inferred } = attribute(kill, page_bytes);
    let mut told = OomKill {
        at: Some(at),
        tgid: kill.tgid,
        pid: kill.pid,
        comm: kill.comm_lossy().to_string().into(),
        inferred,
        group: killed_group(kill, owner),
        oom_score_adj: kill.oom_score_adj,
        trigger: Some(kill.trigger_tgid),
        trigger_comm: kill.trigger_comm_lossy().to_string().into(),
        ..OomKill::default()
    };
    if let Some(rss) = kill.rss {
        (told.anon, told.file, told.shmem) = (Some(rss.anon), Some(rss.file), Some(rss.shmem));
        told.swap = Some(rss.swap);
    }
    let trigger_cgroup = kill.trigger_memcg.and_then(|id| places.path(id));
    let mut described = DescribedKill { kill: told, cgroup: None, owner_cgroup: None, trigger_cgroup };
    if let Some(victim) = kill.memcg_id() {
        described.cgroup = places.path(victim);
        places.name_victim(&mut described.kill, victim, roster, mains);
    }
    match owner {
        OomLimitOwner::Memcg(group) => {
            described.owner_cgroup = places.path(group.id);
            described.kill.owner = places.kind(group.id);
            described.kill.usage = Some(group.usage);
            described.kill.limit = group.max;
        }
        OomLimitOwner::Global => described.kill.owner = LimitScope::Node,
        OomLimitOwner::Unknown => {}
    }
    described
}

/// The group all of whose processes die with the victim: the topmost of those between the victim
/// and the limit's owner that have `memory.oom.group` set (`mm/memcontrol.c:
/// mem_cgroup_get_oom_group`).
pub(crate) fn killed_group(kill: &eviction_bpf::OomKill, owner: OomLimitOwner) -> Option<u64> {
    if kill.pid_only {
        return None;
    }
    let top = match owner {
        OomLimitOwner::Memcg(owner) => kill.chain.iter().position(|group| group.id == owner.id)? + 1,
        // The root has no such file.
        OomLimitOwner::Global => kill.chain.len(),
        OomLimitOwner::Unknown => return None,
    };
    kill.chain.iter().take(top).rev().find(|group| group.dies_together).map(|group| group.id)
}

/// Where in the tree a group is.
pub(super) fn path_of(id: u64, sampler: &Sampler) -> Option<String> {
    KillCgroups::read(sampler).path(id)
}
