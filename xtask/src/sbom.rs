//! The software bill of materials (SBOM) of an agent, as CycloneDX 1.5: every crate in the binary, including
//! those of the BPF programs. The same sources give the same bytes.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::build::Platform;
use crate::image::sha256;
use crate::shell;

pub(crate) const MEDIA_TYPE: &str = "application/vnd.cyclonedx+json";

/// Returns the SBOM of an agent with these bytes.
pub(crate) fn generate(agent: &[u8], platform: Platform) -> Result<Vec<u8>> {
    let mut cargo = shell::cargo();
    cargo.args([
        "tree",
        "--offline",
        "--quiet",
        "--edges=normal,no-proc-macro",
        "--prefix=none",
        "--format={p}|{l}",
    ]);
    cargo.args(["--package=eviction-agent", "--package=eviction-ebpf", "--target", platform.target()]);
    let tree = shell::read(&mut cargo)?;
    let lock = std::fs::read_to_string(shell::root().join("Cargo.lock")).context("read Cargo.lock")?;
    let sums = checksums(&lock);
    let components: BTreeMap<_, _> = tree.lines().filter_map(|line| component(line, &sums)).collect();
    let version = env!("CARGO_PKG_VERSION");
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {
            "type": "application",
            "bom-ref": "eviction-agent",
            "name": "eviction-agent",
            "version": version,
            "description": format!("The static binary for linux/{}", platform.arch()),
            "licenses": [{"expression": "Apache-2.0 AND (MIT OR GPL-2.0-only)"}],
            "hashes": [{"alg": "SHA-256", "content": sha256(agent)}],
        }},
        "components": components.into_values().collect::<Vec<_>>(),
    });
    Ok(serde_json::to_vec_pretty(&document)?)
}

/// Returns the checksums of Cargo.lock, by name and version. The workspace's own packages have none.
fn checksums(lock: &str) -> BTreeMap<(&str, &str), &str> {
    let packages = lock.split("[[package]]").skip(1).filter_map(|package| {
        let value = |key: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""))?;
            line.strip_suffix('"')
        };
        Some(((value("name")?, value("version")?), value("checksum")?))
    });
    packages.collect()
}

/// Parses a line of `cargo tree`: `serde v1.0.228|MIT OR Apache-2.0`, with the folder for one of the
/// workspace's own packages.
fn component(line: &str, sums: &BTreeMap<(&str, &str), &str>) -> Option<(String, Value)> {
    let (package, licence) = line.split_once('|')?;
    let mut words = package.split(' ');
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    let purl = format!("pkg:cargo/{name}@{version}");
    let mut component = json!({
        "type": "library", "bom-ref": purl, "name": name, "version": version, "scope": "required",
    });
    // For a package that was listed already, `(*)` follows the licence.
    let licence = licence.trim_end_matches(" (*)").replace('/', " OR ");
    if !licence.is_empty() {
        component["licenses"] = json!([{"expression": licence}]);
    }
    if let Some(sum) = sums.get(&(name, version)) {
        component["purl"] = json!(purl);
        component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
    }
    Some((purl, component))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sbom_lists_crates_of_the_agent_with_licence_and_checksum() {
        let text = generate(b"agent", Platform::Amd64).unwrap();
        let document: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(document["metadata"]["component"]["hashes"][0]["content"], sha256(b"agent"));
        let components = document["components"].as_array().unwrap();
        let of_name = |name: &str| components.iter().find(|it| it["name"] == name);
        for name in ["aya", "aya-ebpf", "kube", "ring", "eviction-core", "ratatui"] {
            let component = of_name(name).unwrap_or_else(|| panic!("no {name}"));
            let is_own = name.starts_with("eviction");
            assert_eq!(
                component["hashes"][0]["content"].as_str().map(str::len),
                (!is_own).then_some(64),
                "{name}"
            );
        }
        // These are used only for building and testing, and by macros.
        for name in ["aya-build", "proptest", "syn", "xtask", "tests"] {
            assert!(of_name(name).is_none(), "{name}");
        }
        for component in components {
            let licence = component["licenses"][0]["expression"].as_str().unwrap_or_default();
            assert!(!licence.is_empty() && !licence.contains('/') && !licence.contains('*'), "{component}");
        }
        assert_eq!(generate(b"agent", Platform::Amd64).unwrap(), text, "the same bytes each time");
    }
}
