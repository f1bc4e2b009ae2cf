//! The pod and the container of a cgroup. A cgroup that is removed has neither, so names are taken at once.

use eviction_node::cgroup::sampler::Sampler;

use super::event::{Place, PodRef};
use super::oom::path_of;
use super::roster::Roster;

/// Where that group is, and of which pod and container.
pub(crate) fn place_of(id: u64, sampler: &Sampler, roster: &Roster) -> Place {
    let place = Place { cgroup: path_of(id, sampler), ..Place::default() };
    let pods = sampler.pods();
    let owner = pods.owner(id).and_then(|owner| Some((owner, pods.pods.get(owner.pod)?)));
    let Some((owner, group)) = owner else { return place };
    let known = roster.pod_of(group).map(|known| &known.pod);
    let container = owner.container.and_then(|index| group.containers.get(index));
    Place {
        container: container.map(|container| roster.container_name(&container.id).to_owned()),
        pod: known.map(|pod| PodRef::new(&pod.namespace, &pod.name)),
        pod_uid: Some(known.map_or_else(|| group.uid.as_str().to_owned(), |pod| pod.uid.to_string())),
        ..place
    }
}
