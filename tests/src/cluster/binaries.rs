//! Where Kubernetes' own programs are: `cargo xtask e2e` builds them.

use std::path::{Path, PathBuf};

/// The module that they are built from.
const MODULE: &str = include_str!("../../kubernetes/go.mod");

/// Tells the folder, where it is not the usual one.
pub const FOLDER: &str = "EVICTION_AGENT_KUBERNETES";

/// The programs of a control plane and a node.
#[derive(Clone, Debug)]
pub struct Binaries(PathBuf);

impl Binaries {
    /// Finds them in the folder that [`FOLDER`] names, else in the cache that `cargo xtask e2e` fills.
    ///
    /// # Errors
    /// Why they are not there, as a sentence.
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

    /// The file of a program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Where they lie.
    pub fn folder(&self) -> &Path {
        &self.0
    }
}

/// `~/.cache/eviction-agent/kubernetes/<versions>`, as the task has it.
fn cached() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(std::env::home_dir()?.join(".cache")))?;
    let versions =
        format!("{}-etcd-{}", version_of("k8s.io/kubernetes")?, version_of("go.etcd.io/etcd/server/v3")?);
    Some(base.join("eviction-agent/kubernetes").join(versions))
}

/// The version of Kubernetes that stories run with, `v1.36.3`.
pub fn kubernetes_version() -> Option<&'static str> {
    version_of("k8s.io/kubernetes")
}

/// The version that the module requires of another one.
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
    fn versions_are_those_that_are_built() {
        for module in ["k8s.io/kubernetes", "go.etcd.io/etcd/server/v3"] {
            let version = version_of(module).expect(module);
            assert!(version.starts_with('v') && version.len() > 4, "{module}: {version}");
        }
        assert_eq!(version_of("k8s.io/kubernete"), None);
    }
}
