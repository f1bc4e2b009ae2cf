//! The programs of Kubernetes, built from their modules (`tests/kubernetes/go.mod`) and kept in a cache outside
//! the target folder, with a folder for each pair of versions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::shell;

/// The environment variable with their folder for the tests; as in `tests/src/cluster/binaries.rs`.
pub(crate) const FOLDER: &str = "EVICTION_AGENT_KUBERNETES";

/// The programs to build, in this order, and their packages. The API server is first, since it brings most
/// dependencies.
const PROGRAMS: [(&str, &str); 6] = [
    ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    ("etcd", ETCD),
];
const KUBERNETES: &str = "k8s.io/kubernetes";
const ETCD: &str = "go.etcd.io/etcd/server/v3";

/// Returns the folder of the programs, if all are there.
pub(crate) fn cached() -> Result<Option<PathBuf>> {
    let folder = Versions::read()?.folder()?;
    Ok(PROGRAMS.iter().all(|(name, _)| folder.join(name).is_file()).then_some(folder))
}

/// Builds the programs that are missing, and returns their folder.
pub(crate) fn ensure() -> Result<PathBuf> {
    let versions = Versions::read()?;
    let folder = shell::create_folder(versions.folder()?)?;
    let missing: Vec<_> = PROGRAMS.iter().filter(|(name, _)| !folder.join(name).is_file()).collect();
    if !missing.is_empty() {
        eprintln!(
            "kubernetes: building {} programs into {}, which takes ten minutes the first time",
            missing.len(),
            folder.display()
        );
    }
    for (name, package) in missing {
        versions.build(name, package, &folder)?;
    }
    Ok(folder)
}

fn module() -> PathBuf {
    shell::root().join("tests/kubernetes")
}

/// The versions to build.
#[derive(Debug, PartialEq, Eq)]
struct Versions {
    kubernetes: String,
    etcd: String,
}

impl Versions {
    fn read() -> Result<Self> {
        let path = module().join("go.mod");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Self::parse(&text)
            .with_context(|| format!("{} does not require {KUBERNETES} and {ETCD}", path.display()))
    }

    fn parse(text: &str) -> Option<Self> {
        let of = |module: &str| {
            text.lines().find_map(|line| {
                let line = line.trim_start().trim_start_matches("require ");
                let rest = line.strip_prefix(module)?.strip_prefix(' ')?;
                rest.split_whitespace().next().map(str::to_owned)
            })
        };
        Some(Self { kubernetes: of(KUBERNETES)?, etcd: of(ETCD)? })
    }

    fn folder(&self) -> Result<PathBuf> {
        let name = format!("{}-etcd-{}", self.kubernetes, self.etcd);
        Ok(shell::cache_folder()?.join("kubernetes").join(name))
    }

    /// Returns the linker flags of Kubernetes' own scripts, so that the programs print the right version.
    fn linker_flags(&self) -> Result<String> {
        let numbers = self.kubernetes.trim_start_matches('v');
        let mut parts = numbers.split('.');
        let (Some(major), Some(minor)) = (parts.next(), parts.next()) else {
            bail!("`{}` is no version", self.kubernetes);
        };
        let version = "k8s.io/component-base/version.git";
        Ok(format!(
            "-s -w -X {version}Version={} -X {version}Major={major} -X {version}Minor={minor}",
            self.kubernetes
        ))
    }

    fn build(&self, name: &str, package: &str, folder: &Path) -> Result<()> {
        // Another build may do the same at this time, so the program is renamed when it is complete.
        let (done, new) = (folder.join(name), folder.join(format!("{name}.{}", std::process::id())));
        let mut go = Command::new("go");
        go.current_dir(module())
            .env("CGO_ENABLED", "0")
            .args(["build", "-trimpath", "-ldflags", &self.linker_flags()?, "-o"])
            .arg(&new)
            .arg(package);
        let built = shell::run(&mut go)
            .with_context(|| format!("kubernetes: build {name} (it takes Go and the network)"));
        if built.is_err() {
            // There may be nothing to remove.
            let _ = fs::remove_file(&new);
        }
        built?;
        fs::rename(&new, &done).with_context(|| format!("write {}", done.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_require_lines() {
        let text = "require k8s.io/kubernetes v1.36.3 // indirect\nrequire (\n\tgo.etcd.io/etcd/server/v3 v3.6.8 // indirect\n)\n\
            replace k8s.io/kubernetes/x => y\n";
        let versions = Versions::parse(text).unwrap();
        assert_eq!((versions.kubernetes.as_str(), versions.etcd.as_str()), ("v1.36.3", "v3.6.8"));
        assert!(
            versions
                .linker_flags()
                .unwrap()
                .ends_with("gitMajor=1 -X k8s.io/component-base/version.gitMinor=36")
        );
        assert_eq!(Versions::parse("require k8s.io/kubernetes v1.36.3\n"), None);
    }

    #[test]
    fn go_mod_requires_kubernetes_and_etcd() {
        Versions::read().unwrap();
    }
}
