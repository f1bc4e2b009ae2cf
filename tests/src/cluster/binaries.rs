//! The programs of Kubernetes, which `cargo xtask e2e` builds.

use std::path::{Path, PathBuf};

use crate::folder::cache;

/// The module from which they are built.
const MODULE: &str = include_str!("../../kubernetes/go.mod");

/// The environment variable with the folder, if it is not the usual one.
pub const FOLDER: &str = "EVICTION_AGENT_KUBERNETES";

/// The programs of a control plane and a node.
#[derive(Clone, Debug)]
pub struct Binaries(PathBuf);

impl Binaries {
    /// Finds the programs in the folder that [`FOLDER`] names, else in the cache that `cargo xtask e2e` fills.
    ///
    /// # Errors
    /// Why they are missing, as a sentence.
    pub fn find() -> Result<Self, String> {
        let folder = match std::env::var_os(FOLDER) {
            Some(folder) => PathBuf::from(folder),
            None => cached().ok_or("there is no home folder, and so no cache of Kubernetes' programs")?,
        };
        let found = Self(folder);
        for name in ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
            if !found.program(name).is_file() {
                let folder = found.0.display();
                return Err(format!("there is no {name} in {folder}: `cargo xtask e2e` builds it"));
            }
        }
        Ok(found)
    }

    /// Returns the file of a program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns the folder of the programs.
    pub fn folder(&self) -> &Path {
        &self.0
    }
}

/// Returns `~/.cache/eviction-agent/kubernetes/<versions>`, which the task fills.
fn cached() -> Option<PathBuf> {
    let versions =
        format!("{}-etcd-{}", version_of("k8s.io/kubernetes")?, version_of("go.etcd.io/etcd/server/v3")?);
    Some(cache()?.join("kubernetes").join(versions))
}

/// Returns the version of Kubernetes that tests run with, such as `v1.36.3`.
pub fn kubernetes_version() -> Option<&'static str> {
    version_of("k8s.io/kubernetes")
}

/// Returns the version that the module requires of another one.
fn version_of(module: &str) -> Option<&'static str> {
    MODULE.lines().find_map(|line| {
        let line = line.trim_start().trim_start_matches("require ");
        line.strip_prefix(module)?.strip_prefix(' ')?.split_whitespace().next()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_go_mod() {
        for module in ["k8s.io/kubernetes", "go.etcd.io/etcd/server/v3"] {
            let version = version_of(module).expect(module);
            assert!(version.starts_with('v') && version.len() > 4, "{module}: {version}");
        }
        assert_eq!(version_of("k8s.io/kubernete"), None);
    }
}
