//! Whose an OOM kill was: from ids of cgroups to container, pod and the owner of the limit.

use crate::core::oom::{LimitOwner, OomKill};
use crate::core::time::Timestamp;
use crate::source::bpf;
use crate::source::bpf::owner::{Attribution, Owner, attribute};
use crate::source::cgroup::files::Version;
use crate::source::cgroup::sampler::Sampler;
use crate::source::file::read_once;

use super::mains::Mains;
use super::roster::Roster;

/// A kill as the engine is told of it, and where in the tree it was.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) kill: OomKill,
    /// The victim's group.
    pub(crate) cgroup: Option<String>,
    /// The group whose limit it was.
    pub(crate) owner_cgroup: Option<String>,
}

/// The kill in the terms of the node. Names are those of this moment: the cgroup may be gone soon.
pub(crate) fn describe(
    kill: &bpf::OomKill,
    at: Timestamp,
    sampler: &Sampler,
    roster: &Roster,
    mains: &mut Mains,
) -> Described {
    let page_bytes = rustix::param::page_size() as u64;
    let Attribution { owner, inferred } = attribute(kill, page_bytes);
    let mut told = OomKill {
        at: Some(at),
        tgid: kill.tgid,
        pid: kill.pid,
        comm: kill.comm_lossy().to_string().into(),
        inferred,
        group: killed_group(kill, owner, sampler),
        ..OomKill::default()
    };
    if let Some(rss) = kill.rss {
        (told.anon, told.file, told.shmem) = (Some(rss.anon), Some(rss.file), Some(rss.shmem));
    }
    let mut described = Described { kill: told, cgroup: None, owner_cgroup: None };
    if let Some(victim) = kill.memcg_id() {
        described.cgroup = path_of(victim, sampler);
        name_victim(&mut described.kill, victim, sampler, roster, mains);
    }
    match owner {
        Owner::Memcg(group) => {
            described.owner_cgroup = path_of(group.id, sampler);
            described.kill.owner = kind_of(group.id, sampler);
            described.kill.usage = Some(group.usage);
            described.kill.limit = group.max;
        }
        Owner::Global => described.kill.owner = LimitOwner::Node,
        Owner::Unknown => {}
    }
    described
}

fn name_victim(told: &mut OomKill, id: u64, sampler: &Sampler, roster: &Roster, mains: &mut Mains) {
    let pods = sampler.pods();
    let Some(owner) = pods.owner(id) else { return };
    let Some(cgroup) = pods.pods.get(owner.pod) else { return };
    let known = roster.pod_of(cgroup).map(|known| &known.pod);
    told.pod = Some(known.map_or_else(|| cgroup.uid.as_str().into(), |pod| pod.uid.clone()));
    let Some(container) = owner.container.and_then(|index| cgroup.containers.get(index)) else { return };
    told.container = Some(roster.container_name(&container.id).into());
    told.instance = Some(container.id.clone());
    told.victim = mains.victim(container.cgroup_id, told.tgid);
}

/// What the group is whose limit was hit.
fn kind_of(id: u64, sampler: &Sampler) -> LimitOwner {
    let pods = sampler.pods();
    if sampler.tree().groups().first().is_some_and(|root| root.id == id) {
        return LimitOwner::Node;
    }
    if pods.pods_root == Some(id) {
        return LimitOwner::Kubepods;
    }
    if pods.qos.iter().any(|(_, qos)| *qos == id) {
        return LimitOwner::Qos;
    }
    match pods.owner(id) {
        Some(owner) if owner.container.is_some() => LimitOwner::Container,
        Some(_) => LimitOwner::Pod,
        None => LimitOwner::Other,
    }
}

/// The group all of whose processes die with the victim: the topmost of those between the victim
/// and the limit's owner that have `memory.oom.group` set (`mm/memcontrol.c:
/// mem_cgroup_get_oom_group`). Version 1 has no such thing.
fn killed_group(kill: &bpf::OomKill, owner: Owner, sampler: &Sampler) -> Option<u64> {
    if sampler.root().version != Version::V2 || kill.pid_only {
        return None;
    }
    let top = match owner {
        Owner::Memcg(owner) => kill.chain.iter().position(|group| group.id == owner.id)? + 1,
        // The root has no such file.
        Owner::Global => kill.chain.len(),
        Owner::Unknown => return None,
    };
    let is_set = |id: u64| {
        let tree = sampler.tree();
        let index = tree.groups().iter().position(|group| group.id == id)?;
        let file = tree.root().join(tree.relative_path(index)).join("memory.oom.group");
        Some(read_once(&file, 32).ok()? == b"1\n")
    };
    kill.chain.iter().take(top).rev().map(|group| group.id).find(|id| is_set(*id) == Some(true))
}

/// Where in the tree a group is.
pub(super) fn path_of(id: u64, sampler: &Sampler) -> Option<String> {
    let tree = sampler.tree();
    let index = tree.groups().iter().position(|group| group.id == id)?;
    Some(format!("/{}", tree.relative_path(index).display()))
}
