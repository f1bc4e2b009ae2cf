//! The pod and the container of a cgroup. A cgroup that is removed has neither, so names are taken at once.

use eviction_node::cgroup::sampler::Sampler;

use super::oom_attribution::path_of;
use crate::telemetry::event_log::{CgroupOwner, PodRef};
use eviction_node::pod_index::PodIndex;

/// Where that group is, and of which pod and container.
pub(crate) fn place_of(id: u64, sampler: &Sampler, roster: &PodIndex) -> CgroupOwner {
    let place = CgroupOwner { cgroup: path_of(id, sampler), ..CgroupOwner::default() };
    let pods = sampler.pods();
    let owner = pods.owner(id).and_then(|owner| Some((owner, pods.pods.get(owner.pod)?)));
    let Some((owner, group)) = owner else { return place };
    let known = roster.pod_of(group).map(|known| &known.pod);
    let container = owner.container.and_then(|index| group.containers.get(index));
    CgroupOwner {
        container: container.map(|container| roster.container_name(&container.id).to_owned()),
        pod: known.map(|pod| PodRef::new(&pod.namespace, &pod.name)),
        pod_uid: Some(known.map_or_else(|| group.uid.as_str().to_owned(), |pod| pod.uid.to_string())),
        ..place
    }
}
