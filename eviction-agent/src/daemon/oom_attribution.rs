//! Attributes OOM kills: from ids of cgroups to the container, the pod and the scope of the limit.

use eviction_bpf::OomLimitOwner;
use eviction_core::oom::{LimitScope, OomKill};
use eviction_core::time::Timestamp;
use eviction_node::cgroup::pods::{Container, Pod, Pods};
use eviction_node::cgroup::sampler::Sampler;
use eviction_node::cgroup::tree::Tree;
use std::borrow::Cow;

use super::memory_notifier::root_id;
use crate::telemetry::event_log::{CgroupOwner, PodRef};
use eviction_node::container_init::ContainerInitTracker;
use eviction_node::pod_index::PodIndex;

/// Returns whether the victim's cgroup is in the tree as it was last read, as far as the kernel named it.
pub(crate) fn knows_cgroup_of(kill: &eviction_bpf::OomKill, sampler: &Sampler) -> bool {
    let groups = sampler.tree().groups();
    kill.chain.first().is_none_or(|own| groups.iter().any(|group| group.id == own.id))
}

/// The cgroups that concern a kill, and which of them belong to pods and containers.
pub(crate) struct CgroupNames<'a> {
    tree: Cow<'a, Tree>,
    pods: Cow<'a, Pods>,
}

impl<'a> CgroupNames<'a> {
    /// Returns the cgroups of the tree as it was last read. If the victim's cgroup is not in it, returns those
    /// that the kernel itself named at the kill: the cgroup may have existed only for a moment.
    pub(crate) fn of(kill: &eviction_bpf::OomKill, sampler: &'a Sampler, index: &PodIndex) -> Self {
        let named = || {
            let root = root_id(sampler)?;
            let tree = Tree::branch(sampler.tree().root(), root, kill.path_below(root)?);
            let pods = Pods::find(&tree, |uid| index.contains(uid));
            Some(Self { tree: Cow::Owned(tree), pods: Cow::Owned(pods) })
        };
        let named = if knows_cgroup_of(kill, sampler) { None } else { named() };
        named.unwrap_or_else(|| Self::read(sampler))
    }

    /// Returns the cgroups of the tree as it was last read.
    pub(crate) fn read(sampler: &'a Sampler) -> Self {
        Self { tree: Cow::Borrowed(sampler.tree()), pods: Cow::Borrowed(sampler.pods()) }
    }

    fn position(&self, id: u64) -> Option<usize> {
        self.tree.groups().iter().position(|group| group.id == id)
    }

    /// Returns the path of a cgroup below the node's.
    pub(crate) fn path(&self, id: u64) -> Option<Box<str>> {
        self.position(id).map(|index| format!("/{}", self.tree.relative_path(index).display()).into())
    }

    /// Returns a cgroup and its ancestors up to the node's.
    pub(crate) fn ancestors(&self, id: u64) -> impl Iterator<Item = u64> + '_ {
        let groups = self.tree.groups();
        let start = self.position(id).and_then(|index| groups.get(index));
        std::iter::successors(start, |group| groups.get(group.parent?)).map(|group| group.id)
    }

    /// Returns the scope of a cgroup's limit.
    fn scope(&self, id: u64) -> LimitScope {
        let pods = &self.pods;
        if self.tree.groups().first().is_some_and(|root| root.id == id) {
            return LimitScope::Node;
        }
        if pods.pods_root == Some(id) {
            return LimitScope::Kubepods;
        }
        if pods.qos.contains(&id) {
            return LimitScope::Qos;
        }
        match pods.owner(id) {
            Some((_, Some(_))) => LimitScope::Container,
            Some((_, None)) => LimitScope::Pod,
            None => LimitScope::Other,
        }
    }

    /// Returns the pod and the container of a cgroup.
    pub(crate) fn owner(&self, id: u64) -> Option<(&Pod, Option<&Container>)> {
        self.pods.owner(id)
    }

    /// Returns the names of the pod and the container of a cgroup, with the cgroup's path.
    pub(crate) fn named(&self, id: u64, index: &PodIndex) -> CgroupOwner {
        let cgroup = self.path(id);
        let Some((pod, container)) = self.owner(id) else {
            return CgroupOwner { cgroup, ..CgroupOwner::default() };
        };
        let known = index.pod_of(pod).map(|known| &known.pod);
        CgroupOwner {
            cgroup,
            container: container.map(|container| index.container_name(&container.id).into()),
            pod: known.map(PodRef::from),
            pod_uid: Some(known.map_or_else(|| pod.uid.as_str().into(), |pod| pod.uid.clone())),
        }
    }

    /// Sets the pod and the container of the victim's cgroup, and the role of the victim in the container.
    pub(crate) fn name_victim(
        &self,
        kill: &mut OomKill,
        cgroup: u64,
        index: &PodIndex,
        inits: &mut ContainerInitTracker,
    ) {
        let CgroupOwner { cgroup: path, container, pod: _, pod_uid } = self.named(cgroup, index);
        (kill.cgroup, kill.container, kill.pod_uid) = (path, container, pod_uid);
        let Some((_, Some(container))) = self.owner(cgroup) else { return };
        kill.container_id = Some(container.id.clone());
        if kill.pid != 0 {
            kill.victim = inits.victim(container.cgroup_id, kill.pid);
        }
    }

    /// Sets the cgroup whose limit caused the kill, and the scope of the limit.
    pub(crate) fn name_limit(&self, kill: &mut OomKill, cgroup: u64) {
        kill.limit_cgroup = self.path(cgroup);
        kill.limit_scope = self.scope(cgroup);
    }
}

/// Describes a kill with the names that the node had at that time.
pub(crate) fn describe(
    kill: &eviction_bpf::OomKill,
    at: Timestamp,
    cgroups: &CgroupNames<'_>,
    index: &PodIndex,
    inits: &mut ContainerInitTracker,
) -> OomKill {
    let mut described = OomKill {
        at: Some(at),
        mono_ns: kill.ktime_ns,
        pid: kill.tgid,
        tid: kill.pid,
        comm: kill.comm_lossy().to_string().into(),
        inferred: kill.owner_inferred,
        oom_group: killed_group(kill),
        anon: kill.anon,
        file: kill.file,
        shmem: kill.shmem,
        swap: kill.swap,
        oom_score_adj: kill.oom_score_adj,
        trigger_pid: Some(kill.trigger_tgid),
        trigger_comm: kill.trigger_comm_lossy().to_string().into(),
        trigger_cgroup: kill.trigger_memcg.and_then(|id| cgroups.path(id)),
        ..OomKill::default()
    };
    if let Some(victim) = kill.memcg_id() {
        cgroups.name_victim(&mut described, victim, index, inits);
    }
    match kill.owner {
        OomLimitOwner::Memcg(limited) => {
            cgroups.name_limit(&mut described, limited.id);
            described.usage = Some(limited.usage);
            described.limit = limited.max;
        }
        OomLimitOwner::Global => described.limit_scope = LimitScope::Node,
        OomLimitOwner::Unknown => {}
    }
    described
}

/// Returns the cgroup whose processes are all killed with the victim: the topmost of those between the victim
/// and the limit's owner that have `memory.oom.group` set (`mm/memcontrol.c: mem_cgroup_get_oom_group`).
fn killed_group(kill: &eviction_bpf::OomKill) -> Option<u64> {
    if kill.pid_only {
        return None;
    }
    let top = match kill.owner {
        OomLimitOwner::Memcg(owner) => kill.chain.iter().position(|group| group.id == owner.id)? + 1,
        // The root has no such file.
        OomLimitOwner::Global => kill.chain.len(),
        OomLimitOwner::Unknown => return None,
    };
    kill.chain.iter().take(top).rev().find(|group| group.oom_group).map(|group| group.id)
}
