//! The names that the kubelet and container runtimes give to the cgroups of pods and containers.

use std::path::PathBuf;

/// The quality of service class of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qos {
    /// Requests equal limits; its pods are directly below `kubepods`.
    Guaranteed,
    /// Some requests.
    Burstable,
    /// No requests.
    BestEffort,
}

/// The kubelet's cgroup driver, which decides the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// `kubepods/burstable/pod<uid>/<id>`.
    Cgroupfs,
    /// `kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope`.
    Systemd,
}

impl Driver {
    /// Returns the path of a pod's cgroup.
    pub fn pod(self, qos: Qos, uid: &str) -> PathBuf {
        let class = match qos {
            Qos::Guaranteed => None,
            Qos::Burstable => Some("burstable"),
            Qos::BestEffort => Some("besteffort"),
        };
        match (self, class) {
            (Self::Cgroupfs, None) => format!("kubepods/pod{uid}"),
            (Self::Cgroupfs, Some(class)) => format!("kubepods/{class}/pod{uid}"),
            (Self::Systemd, None) => {
                format!("kubepods.slice/kubepods-pod{}.slice", uid.replace('-', "_"))
            }
            (Self::Systemd, Some(class)) => format!(
                "kubepods.slice/kubepods-{class}.slice/kubepods-{class}-pod{}.slice",
                uid.replace('-', "_")
            ),
        }
        .into()
    }

    /// Returns the name of a container's cgroup below its pod's.
    pub fn container(self, id: &str) -> String {
        match self {
            Self::Cgroupfs => id.to_owned(),
            Self::Systemd => format!("cri-containerd-{id}.scope"),
        }
    }
}

/// Returns a pod UID that differs for each `n`.
pub fn pod_uid(n: u64) -> String {
    format!("5ca1ab1e-0000-4000-8000-{n:012x}")
}

/// Returns a container ID, 64 hexadecimal digits, that differs for each `n`.
pub fn container_id(n: u64) -> String {
    format!("{:064x}", (u128::from(n) << 64) | 0xc0ffee)
}
