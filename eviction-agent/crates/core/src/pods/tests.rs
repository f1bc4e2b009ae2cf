use super::{
    KnownPod, LocalLimits, from_api, is_best_effort, is_critical, memory_limit, pod_limit, pod_request,
};
use crate::fixture::{container, limits, list, pod, quantity, requests, set};
use crate::pod::{Container, EmptyDir, Pod, Resources, Volume};
use crate::policy::Gates;

const GATE_OFF: Gates = Gates { pod_level_resources: false, separate_disk_gc: true };

fn memory(text: &str) -> Resources {
    requests(&[("memory", text)])
}

fn memory_request(pod: &Pod, gates: Gates) -> String {
    pod_request(pod, "memory", gates, false).to_string()
}

fn sidecar(name: &str, text: &str) -> Container {
    Container { restartable: true, ..container(name, memory(text)) }
}

#[test]
fn requests_add_up_over_containers_and_sidecars() {
    let pod = Pod {
        containers: vec![container("a", memory("100Mi")), container("b", memory("50Mi"))],
        init_containers: vec![sidecar("proxy", "10Mi")],
        ..Pod::default()
    };
    assert_eq!(memory_request(&pod, Gates::default()), "160Mi");
}

#[test]
fn an_init_container_counts_with_the_sidecars_before_it_if_that_is_more() {
    let init = |text| container("init", memory(text));
    let pod = |first, last| Pod {
        containers: vec![container("a", memory("100Mi"))],
        init_containers: vec![init(first), sidecar("proxy", "10Mi"), init(last)],
        ..Pod::default()
    };
    let request = |first, last| memory_request(&pod(first, last), Gates::default());
    assert_eq!(request("50Mi", "60Mi"), "110Mi", "what runs later is more");
    assert_eq!(request("50Mi", "150Mi"), "160Mi", "the last one with its sidecar");
    assert_eq!(request("200Mi", "150Mi"), "200Mi", "the first one alone");
}

#[test]
fn overhead_is_added_only_to_nonzero_requests() {
    let overhead = list(&[("memory", "1Mi")]);
    let with = |text| Pod { overhead: overhead.clone(), ..pod("a", text) };
    assert_eq!(memory_request(&with("1Mi"), Gates::default()), "2Mi");
    assert_eq!(memory_request(&with("0"), Gates::default()), "0");
}

#[test]
fn pod_level_resources_hide_container_resources() {
    let mut pod = pod("a", "100Mi");
    pod.resources = Some(requests(&[("cpu", "1")]));
    assert_eq!(memory_request(&pod, Gates::default()), "0");
    assert_eq!(memory_request(&pod, GATE_OFF), "100Mi");

    pod.resources = Some(memory("1Gi"));
    assert_eq!(memory_request(&pod, Gates::default()), "1Gi");
    assert_eq!(memory_request(&pod, GATE_OFF), "1Gi", "replaced one by one");

    pod.resources = Some(requests(&[("ephemeral-storage", "1Gi")]));
    assert_eq!(memory_request(&pod, Gates::default()), "100Mi", "nothing that counts");
}

#[test]
fn limit_of_a_single_container_keeps_its_text() {
    let limit = |texts: &[&str]| {
        let limited = |text: &&str| container("c", limits(&[("ephemeral-storage", text)]));
        let pod = Pod { containers: texts.iter().map(limited).collect(), ..Pod::default() };
        pod_limit(&pod, "ephemeral-storage").map(|limit| limit.to_string())
    };
    assert_eq!(limit(&[]), None);
    assert_eq!(limit(&["+5Mi"]).as_deref(), Some("+5Mi"));
    assert_eq!(limit(&["+5Mi", "0"]).as_deref(), Some("5Mi"));
}

#[test]
fn init_container_behind_a_limited_sidecar_needs_no_memory_limit() {
    let limited = |name| container(name, limits(&[("memory", "1Gi")]));
    let proxy = Container { restartable: true, ..limited("proxy") };
    let unlimited = container("init", Resources::default());
    let limit = |init_containers| {
        let pod = Pod { containers: vec![limited("a")], init_containers, ..Pod::default() };
        memory_limit(&pod, Gates::default()).map(|limit| limit.to_string())
    };
    assert_eq!(limit(vec![proxy.clone(), unlimited.clone()]).as_deref(), Some("2Gi"));
    assert_eq!(limit(vec![unlimited.clone(), proxy]), None);
    assert_eq!(limit(vec![limited("other"), unlimited]), None);
}

fn annotated(key: &str, value: &str) -> Pod {
    Pod { annotations: [(key.into(), value.into())].into_iter().collect(), ..Pod::default() }
}

#[test]
fn static_mirror_and_system_priority_pods_are_critical() {
    let prioritised = |priority| Pod { priority: Some(priority), ..Pod::default() };
    assert!(is_critical(&annotated("kubernetes.io/config.source", "file")));
    assert!(is_critical(&annotated("kubernetes.io/config.source", "")));
    assert!(!is_critical(&annotated("kubernetes.io/config.source", "api")));
    assert!(is_critical(&annotated("kubernetes.io/config.mirror", "")));
    assert!(is_critical(&prioritised(2_000_000_000)));
    assert!(!is_critical(&prioritised(1_999_999_999)));
}

#[test]
fn pod_without_requests_and_limits_is_best_effort() {
    let gates = Gates::default();
    assert!(is_best_effort(&Pod::default(), gates));
    assert!(is_best_effort(&pod("a", "0"), gates));
    assert!(!is_best_effort(&pod("a", "1"), gates));

    let mut hidden = pod("a", "1");
    hidden.resources = Some(Resources::default());
    assert!(is_best_effort(&hidden, gates), "an empty one hides as well");
    assert!(!is_best_effort(&hidden, GATE_OFF));

    hidden.qos_class = "Burstable".into();
    assert!(!is_best_effort(&hidden, gates), "the status knows better");
}

#[test]
fn local_limits_contain_only_positive_limits() {
    let dir = |name: &str, limit: &str| Volume {
        name: name.into(),
        empty_dir: Some(EmptyDir { medium: "Memory".into(), size_limit: Some(quantity(limit)) }),
        ..Volume::default()
    };
    let limited = |name, text| container(name, limits(&[("ephemeral-storage", text)]));
    let pod = Pod {
        volumes: vec![dir("none", "0"), dir("negative", "-1"), dir("some", "10")],
        containers: vec![limited("a", "1"), limited("a", "2500m"), limited("zero", "0")],
        ..Pod::default()
    };
    let limits = LocalLimits::of(&pod);
    let dirs: Vec<_> = limits.empty_dirs.iter().map(|dir| (dir.index, &*dir.name)).collect();
    assert_eq!(dirs, [(2, "some")]);
    assert_eq!(limits.pod, Some(3));
    let containers: Vec<_> = limits.containers.iter().map(|c| (c.index, c.limit)).collect();
    assert_eq!(containers, [(1, 2)], "the last of a name");
    assert!(!limits.is_empty());
    assert!(KnownPod::new(Pod::default(), &crate::fixture::policy(Vec::new())).limits.is_empty());
}

#[test]
fn pod_set_finds_pods_by_uid() {
    let set = set(vec![pod("b", "1"), pod("a", "1"), pod("b", "2")]);
    assert_eq!(set.index_of("b"), Some(0));
    assert_eq!(set.index_of("c"), None);
    assert_eq!(set.repeated(), [(2, 0)]);
    assert_eq!(set.uid_order(), [1, 0, 2]);
}

#[test]
fn config_source_annotation_of_an_api_pod_is_removed() {
    let forged = annotated("kubernetes.io/config.source", "file");
    assert!(is_critical(&forged), "from the kubelet");
    let pod = from_api(forged);
    assert!(!is_critical(&pod) && pod.annotations.is_empty());
    let image = annotated("kubernetes.io/config.mirror", "hash");
    assert!(is_critical(&from_api(image)));
}
