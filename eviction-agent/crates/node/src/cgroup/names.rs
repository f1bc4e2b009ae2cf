//! Parses the names that the kubelet and the container runtimes give to cgroups.
//!
//! The kubelet (pkg/kubelet/cm/cgroup_manager_linux.go) joins `kubepods`, the QoS class unless the pod is
//! Guaranteed, and `pod<UID>`: as folders with the cgroupfs driver, and as slices
//! `a.slice/a-b.slice/a-b-c.slice` with the systemd driver, where `-` inside a part becomes `_`. A kubelet with
//! `--cgroup-root` puts the parts of that path in front.
#![forbid(unsafe_code)]

/// A pod's identity in the kubelet's cgroup names: the API's uid, or for a static pod the hash in its
/// annotation `kubernetes.io/config.hash`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodUid(Box<str>);

impl PodUid {
    /// Creates a uid, with the systemd driver's `_` replaced by `-`; the kubelet allows no `_` in a uid.
    pub fn new(uid: &str) -> Self {
        Self(uid.replace('_', "-").into())
    }

    /// Returns the uid as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for PodUid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What the name of a cgroup means below a certain parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupName<'n> {
    /// The cgroup of all pods.
    PodsRoot,
    /// The cgroup of a QoS class. Guaranteed pods are directly in that of all pods.
    Qos,
    /// The cgroup of a pod.
    Pod {
        /// Its uid.
        uid: PodUid,
        /// Whether the uid has the form of one (a UUID, or the hash of a static pod). Where the parent is not
        /// known to contain pods, only such a name counts as a pod.
        certain: bool,
    },
    /// A container that a runtime misplaced: it is named after its pod's slice instead of being in it, since
    /// the kubelet has the systemd driver and the runtime cgroupfs.
    Misplaced {
        /// The pod's uid.
        uid: PodUid,
        /// The container's id.
        container: &'n str,
    },
    /// Anything else.
    Other,
}

/// Parses the name of a cgroup outside of pods.
pub fn parse_group_name(name: &str) -> GroupName<'_> {
    if let Some((slice, rest)) = name.split_once(':') {
        let container = rest.rsplit(':').next().unwrap_or(rest);
        return match parse_group_name(slice) {
            GroupName::Pod { uid, .. } if !container.is_empty() => GroupName::Misplaced { uid, container },
            _ => GroupName::Other,
        };
    }
    let last = match name.strip_suffix(".slice") {
        Some(slice) => slice.rsplit('-').next().unwrap_or(slice),
        None => name,
    };
    match last {
        "kubepods" => return GroupName::PodsRoot,
        "burstable" | "besteffort" => return GroupName::Qos,
        _ => {}
    }
    match last.strip_prefix("pod") {
        Some(uid) if is_name(uid) => {
            GroupName::Pod { uid: PodUid::new(uid), certain: is_uuid(uid) || is_hash(uid) }
        }
        _ => GroupName::Other,
    }
}

/// The kind of a cgroup directly below a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContainerKind {
    /// A container or the pod's sandbox; names do not show which.
    Container,
    /// CRI-O's monitor of a container.
    Monitor,
    /// Something else in the pod's cgroup, such as the overhead of a virtual machine.
    Other,
}

/// Parses the name of a cgroup directly below a pod's. Returns its kind, and the container's id as in the pod's
/// status behind `containerd://` and the like (the whole name for [`ContainerKind::Other`]).
pub fn parse_container_name(name: &str) -> (ContainerKind, &str) {
    let unit = name.strip_suffix(".scope").unwrap_or(name);
    if let Some(id) = unit.strip_prefix("crio-conmon-").filter(|id| is_id(id)) {
        return (ContainerKind::Monitor, id);
    }
    for prefix in ["cri-containerd-", "crio-", "docker-", "libpod-", "isulad-"] {
        if let Some(id) = unit.strip_prefix(prefix).filter(|id| is_id(id)) {
            return (ContainerKind::Container, id);
        }
    }
    if unit.len() == 64 && unit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return (ContainerKind::Container, unit);
    }
    (ContainerKind::Other, name)
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

fn is_id(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => matches!(byte, b'-' | b'_'),
            _ => byte.is_ascii_hexdigit(),
        })
}

fn is_hash(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UID: &str = "0f0a7f2e-1f0c-4a57-8e3a-6d2c5b1e9f00";

    fn pod(uid: &str, certain: bool) -> GroupName<'static> {
        GroupName::Pod { uid: PodUid::new(uid), certain }
    }

    #[test]
    fn cgroup_names_are_parsed() {
        let escaped = UID.replace('-', "_");
        let hash = "9d3f0a1b2c3d4e5f60718293a4b5c6d7";
        for (name, expected) in [
            ("kubepods".to_owned(), GroupName::PodsRoot),
            ("kubepods.slice".to_owned(), GroupName::PodsRoot),
            ("kubelet-kubepods.slice".to_owned(), GroupName::PodsRoot),
            ("burstable".to_owned(), GroupName::Qos),
            ("besteffort".to_owned(), GroupName::Qos),
            ("kubepods-burstable.slice".to_owned(), GroupName::Qos),
            ("kubelet-kubepods-besteffort.slice".to_owned(), GroupName::Qos),
            (format!("pod{UID}"), pod(UID, true)),
            (format!("kubepods-pod{escaped}.slice"), pod(UID, true)),
            (format!("kubepods-burstable-pod{escaped}.slice"), pod(UID, true)),
            (format!("something-kubepods-besteffort-pod{escaped}.slice"), pod(UID, true)),
            (format!("pod{hash}"), pod(hash, true)),
            (format!("kubepods-pod{hash}.slice"), pod(hash, true)),
            ("podman".to_owned(), pod("man", false)),
            ("podmy-own-uid".to_owned(), pod("my-own-uid", false)),
            ("pod".to_owned(), GroupName::Other),
            ("pod ".to_owned(), GroupName::Other),
            ("system.slice".to_owned(), GroupName::Other),
            ("user-1000.slice".to_owned(), GroupName::Other),
            ("kubelet.service".to_owned(), GroupName::Other),
            (".slice".to_owned(), GroupName::Other),
            ("".to_owned(), GroupName::Other),
            (":".to_owned(), GroupName::Other),
            (
                format!("kubepods-burstable-pod{escaped}.slice:cri-containerd:0123abcd"),
                GroupName::Misplaced { uid: PodUid::new(UID), container: "0123abcd" },
            ),
            (format!("kubepods-burstable-pod{escaped}.slice:cri-containerd:"), GroupName::Other),
            ("system.slice:docker:0123abcd".to_owned(), GroupName::Other),
        ] {
            assert_eq!(parse_group_name(&name), expected, "{name}");
        }
    }

    #[test]
    fn container_names_are_parsed() {
        let id = "0123456789abcdef".repeat(4);
        for (name, kind) in [
            (id.clone(), ContainerKind::Container),
            (format!("cri-containerd-{id}.scope"), ContainerKind::Container),
            (format!("crio-{id}.scope"), ContainerKind::Container),
            (format!("crio-{id}"), ContainerKind::Container),
            (format!("docker-{id}.scope"), ContainerKind::Container),
            (format!("crio-conmon-{id}.scope"), ContainerKind::Monitor),
            (format!("crio-conmon-{id}"), ContainerKind::Monitor),
        ] {
            assert_eq!(parse_container_name(&name), (kind, id.as_str()), "{name}");
        }
        for name in [
            "kata_overhead",
            "init.scope",
            "crio-.scope",
            "crio-conmon-.scope",
            "",
            "0123",
            "docker-/x.scope",
        ] {
            assert_eq!(parse_container_name(name), (ContainerKind::Other, name), "{name}");
        }
    }

    proptest! {
        #[test]
        fn pod_name_is_parsed_for_any_driver_and_root(uid in "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", root in "[a-z]{1,8}(_[a-z]{1,8})?") {
            let escaped = uid.replace('-', "_");
            let expected = pod(&uid, true);
            let name = format!("pod{uid}");
            prop_assert_eq!(parse_group_name(&name), expected.clone());
            for qos in ["", "-burstable", "-besteffort"] {
                let name = format!("{root}-kubepods{qos}-pod{escaped}.slice");
                prop_assert_eq!(parse_group_name(&name), expected.clone());
            }
        }

        #[test]
        fn arbitrary_name_causes_no_panic(name in "\\PC{0,80}") {
            parse_group_name(&name);
            let (_, id) = parse_container_name(&name);
            prop_assert!(name.contains(id));
        }
    }
}
