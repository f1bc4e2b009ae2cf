//! What a pod requests and may use, and its quality of service:
//! `component-helpers/resource/helpers.go: PodRequests, PodLimits`,
//! `pkg/api/v1/resource/helpers.go: GetResourceRequestQuantity` and
//! `pkg/apis/core/v1/helper/qos/qos.go`.

use crate::pod::{Container, Pod, ResourceList, Resources, Volume};
use crate::policy::Gates;
use crate::signal::Resource;
use crate::units::{Format, Quantity};

/// Returns the request that a pod's usage is compared with, zero if there is none.
///
/// With the gate, a request of the pod replaces those of its containers for that resource. For the kubelet,
/// any request or limit of the pod for cpu, memory or huge pages hides those of the containers for *every*
/// resource; in the enhanced profile only for that resource (KEP-2837). Overhead is added to a request that
/// is not zero.
pub fn pod_request(pod: &Pod, resource: &str, gates: Gates, enhanced: bool) -> Quantity {
    let hide_containers = !enhanced && gates.pod_level_resources && has_pod_level_resources(pod);
    let of_containers = || total(pod, |resources| resources.requests.get(resource));
    let of_pod = || {
        let resources = pod.resources.as_ref()?;
        let counts = is_supported_at_pod_level(resource);
        counts.then(|| resources.requests.get(resource).cloned())?
    };
    let mut request = Quantity::from_i64(0, Format::BinarySi);
    let declared = of_pod().or_else(|| (!hide_containers).then(of_containers).flatten());
    if let Some(declared) = declared {
        request.add(&declared);
    }
    add_overhead(&mut request, pod, resource);
    request
}

/// Returns the limit of all containers together. None if no container has one. Limits of the pod itself do
/// not count; for local storage they do not exist.
pub fn pod_limit(pod: &Pod, resource: &str) -> Option<Quantity> {
    let mut limit = total(pod, |resources| resources.limits.get(resource))?;
    add_overhead(&mut limit, pod, resource);
    Some(limit)
}

/// Returns the memory limit of the pod's cgroup: the limit of the pod, or that of its containers if each of
/// them has one. An init container behind a sidecar with a limit needs none:
/// `pkg/kubelet/cm/helpers_linux.go: ResourceConfigForPod`.
pub fn memory_limit(pod: &Pod, gates: Gates) -> Option<Quantity> {
    let name = Resource::Memory.name();
    let own = pod.resources.as_ref().and_then(|resources| resources.limits.get(name));
    if let Some(own) = own.filter(|_| gates.pod_level_resources) {
        let mut limit = own.clone();
        add_overhead(&mut limit, pod, name);
        return Some(limit);
    }
    let is_limited = |it: &Container| it.resources.limits.get(name).is_some_and(|limit| !limit.is_zero());
    let mut sidecar_is_limited = false;
    let init_is_limited = |it: &Container| {
        sidecar_is_limited |= it.restartable && is_limited(it);
        sidecar_is_limited || is_limited(it)
    };
    let are_limited =
        pod.containers.iter().all(is_limited) && pod.init_containers.iter().all(init_is_limited);
    are_limited.then(|| pod_limit(pod, name)).flatten()
}

/// `IsPodLevelResourcesSet`: returns whether the pod itself has a request or limit that is supported there.
pub fn has_pod_level_resources(pod: &Pod) -> bool {
    let has_supported_resource = |list: &ResourceList| list.keys().any(is_supported_at_pod_level);
    pod.resources.as_ref().is_some_and(|resources| {
        has_supported_resource(&resources.requests) || has_supported_resource(&resources.limits)
    })
}

/// `IsSupportedPodLevelResource`.
fn is_supported_at_pod_level(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory") || resource.starts_with("hugepages-")
}

fn add_overhead(amount: &mut Quantity, pod: &Pod, resource: &str) {
    if let Some(overhead) = pod.overhead.get(resource)
        && !amount.is_zero()
    {
        amount.add(overhead);
    }
}

/// `AggregateContainerRequests` and `AggregateContainerLimits` for one resource: the sum over
/// containers and sidecars, or what an init container needs with the sidecars started
/// before it, if that is more.
fn total<'a>(pod: &'a Pod, amount: impl Fn(&'a Resources) -> Option<&'a Quantity>) -> Option<Quantity> {
    let mut sum = None;
    for container in &pod.containers {
        add(&mut sum, amount(&container.resources));
    }
    let (mut sidecars, mut peak) = (None, None);
    for container in &pod.init_containers {
        let own = amount(&container.resources);
        let while_starting = if container.restartable {
            add(&mut sum, own);
            add(&mut sidecars, own);
            sidecars.clone()
        } else {
            let mut with_sidecars = own.cloned();
            add(&mut with_sidecars, sidecars.as_ref());
            with_sidecars
        };
        set_to_maximum(&mut peak, while_starting);
    }
    set_to_maximum(&mut sum, peak);
    sum
}

/// `addResourceList`: the first amount is kept as it was written.
fn add(sum: &mut Option<Quantity>, amount: Option<&Quantity>) {
    match (sum.as_mut(), amount) {
        (Some(sum), Some(amount)) => sum.add(amount),
        (None, Some(amount)) => *sum = Some(amount.clone()),
        (_, None) => {}
    }
}

/// `maxResourceList`.
fn set_to_maximum(highest: &mut Option<Quantity>, amount: Option<Quantity>) {
    if let Some(amount) = amount
        && highest.as_ref().is_none_or(|highest| amount > *highest)
    {
        *highest = Some(amount);
    }
}

/// Returns whether the QoS class is BestEffort, by the status or else by `ComputePodQOS`.
///
/// With the gate, `spec.resources` hides the resources of the containers, even if it is empty.
pub fn is_best_effort(pod: &Pod, gates: Gates) -> bool {
    if !pod.qos_class.is_empty() {
        return &*pod.qos_class == "BestEffort";
    }
    match &pod.resources {
        Some(resources) if gates.pod_level_resources => !has_nonzero_resource(resources),
        _ => !pod
            .containers
            .iter()
            .chain(&pod.init_containers)
            .any(|container| has_nonzero_resource(&container.resources)),
    }
}

fn has_nonzero_resource(resources: &Resources) -> bool {
    [&resources.requests, &resources.limits]
        .into_iter()
        .flat_map(ResourceList::iter)
        .any(|(name, quantity)| matches!(name, "cpu" | "memory") && quantity.signum() > 0)
}

/// The limits of a pod's local storage, in bytes. Fractions of a byte are dropped, because they cannot be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalLimits {
    /// The limits of emptyDir volumes with a limit above zero, in the order of the specification.
    pub empty_dirs: Vec<NamedLimit>,
    /// The limit of all containers together, if any of them has one.
    pub pod: Option<i128>,
    /// The limits of the main containers, other than zero.
    pub containers: Vec<NamedLimit>,
}

/// The limit of an emptyDir volume on any medium, or of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedLimit {
    /// The index of the volume or container in the specification.
    pub index: usize,
    /// The name of the volume or container. No two limits of containers have the same name.
    pub name: Box<str>,
    /// `sizeLimit` or `limits["ephemeral-storage"]`, in bytes.
    pub limit: i128,
}

impl LocalLimits {
    /// Returns the limits in a specification.
    pub fn of(pod: &Pod) -> Self {
        Self {
            empty_dirs: empty_dirs(pod),
            pod: pod_limit(pod, Resource::EphemeralStorage.name()).map(|limit| bytes(&limit)),
            containers: containers(pod),
        }
    }

    /// Returns the lowest limit in bytes; `None` without limits.
    pub fn lowest(&self) -> Option<i128> {
        let volumes = self.empty_dirs.iter().map(|volume| volume.limit);
        let containers = self.containers.iter().map(|container| container.limit);
        volumes.chain(containers).chain(self.pod).min()
    }

    /// Returns whether the pod has no limits.
    pub fn is_empty(&self) -> bool {
        self.lowest().is_none()
    }
}

fn empty_dirs(pod: &Pod) -> Vec<NamedLimit> {
    let limit = |(index, spec): (usize, &Volume)| {
        let limit = spec.empty_dir.as_ref()?.size_limit.as_ref()?;
        (limit.signum() > 0).then(|| NamedLimit { index, name: spec.name.clone(), limit: bytes(limit) })
    };
    pod.volumes.iter().enumerate().filter_map(limit).collect()
}

/// Returns the limits of the main containers. Of several containers with the same name, the last one with a
/// limit counts.
fn containers(pod: &Pod) -> Vec<NamedLimit> {
    let mut limits: Vec<NamedLimit> = Vec::new();
    for (index, container) in pod.containers.iter().enumerate() {
        let limit = container.resources.limits.get(Resource::EphemeralStorage.name());
        let Some(limit) = limit.filter(|limit| !limit.is_zero()) else { continue };
        limits.retain(|other| other.name != container.name);
        limits.push(NamedLimit { index, name: container.name.clone(), limit: bytes(limit) });
    }
    limits
}

fn bytes(limit: &Quantity) -> i128 {
    limit.nanos().units_rounded_down()
}
