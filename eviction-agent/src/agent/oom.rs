//! Whose an OOM kill was: from ids of cgroups to container, pod and the owner of the limit.

use crate::source::bpf::OomKill;
use crate::source::bpf::owner::{Attribution, Owner, attribute};
use crate::source::cgroup::sampler::Sampler;

use super::event;
use super::roster::Roster;

/// The kill as people are told of it. Names are those of this moment: the cgroup may be gone soon.
pub(crate) fn describe(kill: &OomKill, sampler: &Sampler, roster: &Roster) -> event::OomKill {
    let page_bytes = rustix::param::page_size() as u64;
    let Attribution { owner, inferred } = attribute(kill, page_bytes);
    let mut told = event::OomKill {
        pid: kill.tgid,
        comm: kill.comm_lossy().to_string(),
        inferred,
        mono_ns: kill.stamp.ktime_ns,
        ..event::OomKill::default()
    };
    if let Some(rss) = kill.rss {
        (told.anon, told.file, told.shmem) = (Some(rss.anon), Some(rss.file), Some(rss.shmem));
    }
    if let Some(victim) = kill.memcg_id() {
        name_victim(&mut told, victim, sampler, roster);
    }
    match owner {
        Owner::Memcg(group) => {
            told.limit_owner = kind_of(group.id, sampler);
            told.owner_cgroup = path_of(group.id, sampler);
            told.usage = Some(group.usage);
            told.limit = group.max;
        }
        Owner::Global => told.limit_owner = "node",
        Owner::Unknown => told.limit_owner = "unknown",
    }
    told
}

fn name_victim(told: &mut event::OomKill, id: u64, sampler: &Sampler, roster: &Roster) {
    told.cgroup = path_of(id, sampler);
    let pods = sampler.pods();
    let Some(owner) = pods.owner(id) else { return };
    let Some(cgroup) = pods.pods.get(owner.pod) else { return };
    let known = roster.pod_of(cgroup).map(|known| &known.pod);
    told.uid = Some(known.map_or_else(|| cgroup.uid.as_str().to_owned(), |pod| pod.uid.to_string()));
    told.pod = known.map(|pod| format!("{}/{}", pod.namespace, pod.name));
    let container = owner.container.and_then(|index| cgroup.containers.get(index));
    told.container = container.map(|container| roster.container_name(&container.id).to_owned());
}

/// What the group is whose limit was hit.
fn kind_of(id: u64, sampler: &Sampler) -> &'static str {
    let pods = sampler.pods();
    if sampler.tree().groups().first().is_some_and(|root| root.id == id) {
        return "node";
    }
    if pods.pods_root == Some(id) {
        return "kubepods";
    }
    if pods.qos.iter().any(|(_, qos)| *qos == id) {
        return "qos";
    }
    match pods.owner(id) {
        Some(owner) if owner.container.is_some() => "container",
        Some(_) => "pod",
        None => "other",
    }
}

fn path_of(id: u64, sampler: &Sampler) -> Option<String> {
    let tree = sampler.tree();
    let index = tree.groups().iter().position(|group| group.id == id)?;
    Some(format!("/{}", tree.relative_path(index).display()))
}
