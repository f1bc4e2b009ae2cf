//! The kubectl plugin for krew: an archive, and a manifest that contains its name and its checksum.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::setup::{self, Need};
use crate::shell;

const SCRIPT: &str = "deploy/kubectl-plugin/kubectl-eviction_agent";
const MANIFEST: &str = "deploy/kubectl-plugin/eviction-agent.yaml";
/// The names of the files in target/dist. krew requires that the manifest is named after the plugin.
pub(crate) const ARCHIVE: &str = "kubectl-eviction_agent.tar.gz";
pub(crate) const NAME: &str = "eviction-agent.yaml";

/// Writes both files into a folder, and lets krew install them.
pub(crate) fn pack(dist: &Path, url: &str) -> Result<()> {
    write(dist, url)?;
    check(dist)
}

fn write(dist: &Path, url: &str) -> Result<()> {
    let root = shell::root();
    let (script, archive) = (root.join(SCRIPT), dist.join(ARCHIVE));
    let folder = script.parent().context("the plugin is in a folder")?;
    // The same files give the same bytes.
    let mut tar = Command::new("tar");
    tar.args([
        "--create",
        "--gzip",
        "--mtime=@0",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mode=a+rX,go-w",
    ]);
    tar.arg("--file").arg(&archive).arg("--directory").arg(folder).arg("kubectl-eviction_agent");
    tar.arg("--directory").arg(root).arg("LICENSE");
    shell::read(&mut tar)?;
    let template =
        std::fs::read_to_string(root.join(MANIFEST)).with_context(|| format!("read {MANIFEST}"))?;
    let bytes = std::fs::read(&archive).with_context(|| format!("read {}", archive.display()))?;
    let manifest = template
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"))
        .replace("@URI@", &format!("{}/{ARCHIVE}", url.trim_end_matches('/')))
        .replace("@SHA256@", &crate::image::sha256(&bytes));
    std::fs::write(dist.join(NAME), manifest).with_context(|| format!("write {NAME}"))
}

/// Checks the manifest against krew's rules, and installs the plugin into a folder that is removed again.
fn check(dist: &Path) -> Result<()> {
    let krew = setup::ensure(&[Need::Krew])?.krew.context("krew is installed")?;
    let mut validate = Command::new(krew.join("validate-krew-manifest"));
    shell::read(validate.args(["-skip-install", "-manifest", NAME]).current_dir(dist))?;
    let home = dist.join("krew");
    let mut install = Command::new(krew.join("krew"));
    install.args(["install", &format!("--manifest={NAME}"), &format!("--archive={ARCHIVE}")]);
    shell::read(install.current_dir(dist).env("KREW_ROOT", &home))?;
    let help = shell::read(Command::new(home.join("bin/kubectl-eviction_agent")).arg("--help"));
    std::fs::remove_dir_all(&home).with_context(|| format!("remove {}", home.display()))?;
    help.map(drop)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// The rules are those of krew.sigs.k8s.io/docs/developer-guide/develop/plugins and plugins/naming-guide.
    /// `cargo xtask dist` runs the checks of krew itself.
    #[test]
    fn manifest_follows_the_rules_of_krew() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "https://a.example/v1/").unwrap();
        let text = std::fs::read_to_string(folder.path().join(NAME)).unwrap();
        let manifest: Value = serde_yaml_ng::from_str(&text).unwrap();
        assert_eq!(manifest["apiVersion"], "krew.googlecontainertools.github.com/v1alpha2");
        assert_eq!(manifest["kind"], "Plugin");
        let name = manifest["metadata"]["name"].as_str().unwrap();
        assert_eq!(format!("{name}.yaml"), NAME);
        assert!(!name.starts_with("kube") && name.chars().all(|it| it.is_ascii_lowercase() || it == '-'));
        let spec = &manifest["spec"];
        assert_eq!(spec["version"], concat!("v", env!("CARGO_PKG_VERSION")));
        let short = spec["shortDescription"].as_str().unwrap();
        assert!(short.len() <= 50 && !short.ends_with('.') && !short.contains("kubectl"), "{short}");
        assert!(spec["description"].as_str().unwrap().lines().all(|line| line.len() <= 80));
        let [platform] = &spec["platforms"].as_array().unwrap()[..] else { panic!("{text}") };
        assert_eq!(platform["uri"], format!("https://a.example/v1/{ARCHIVE}"));
        let archive = std::fs::read(folder.path().join(ARCHIVE)).unwrap();
        assert_eq!(platform["sha256"], crate::image::sha256(&archive));
        assert_eq!(platform["bin"], format!("kubectl-{}", name.replace('-', "_")));
        let froms: Vec<_> = platform["files"].as_array().unwrap().iter().map(|file| &file["from"]).collect();
        assert_eq!(froms, [&platform["bin"], &Value::from("LICENSE")]);
        write(folder.path(), "https://a.example/v1/").unwrap();
        assert_eq!(std::fs::read(folder.path().join(ARCHIVE)).unwrap(), archive, "the same bytes each time");
    }
}
