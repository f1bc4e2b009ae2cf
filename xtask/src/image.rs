//! `cargo xtask image`: packs an OCI image of the static binary and its licences, as an archive for `ctr images
//! import`, `podman load` and `skopeo copy oci-archive:`. Docker is not needed, and the same files give the
//! same bytes.
//!
//! The archive is an image layout (image-spec v1.1, image-layout.md) in a tar file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::build::{self, Platform};
use crate::shell;
use crate::{dist, sbom};

/// Arguments of the task.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Pack an agent for this platform (repeatable)
    #[arg(long, value_enum, default_values = ["linux/amd64"])]
    platform: Vec<Platform>,
    /// Pack this file instead of an agent that is built for the (one) platform
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
    /// Where the archive goes; default: target/image
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The name in deploy/manifests/40-daemonset.yaml, in the form that containerd uses.
const NAME: &str = "docker.io/library/eviction-agent";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The name of the archive.
pub(crate) const ARCHIVE: &str = concat!("eviction-agent-", env!("CARGO_PKG_VERSION"), ".oci.tar");
/// The program that is run.
const ENTRYPOINT: &str = "/eviction-agent";

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let Args { platform, agent, output } = args;
    let agents = match (agent, platform.as_slice()) {
        (Some(agent), &[platform]) => vec![(platform, agent.clone())],
        (Some(_), _) => bail!("image: --agent is for one platform"),
        (None, platforms) => {
            let built = platforms.iter().map(|&platform| Ok((platform, build::agent_for(platform, true)?)));
            built.collect::<Result<_>>()?
        }
    };
    let path = match output {
        Some(path) => path.clone(),
        None => shell::create_folder(shell::target_folder()?.join("image"))?.join(ARCHIVE),
    };
    pack(&agents, &path)?;
    let bytes = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    println!("{} ({}, sha256:{})", path.display(), build::mib(bytes.len() as u64), sha256(&bytes));
    println!("{NAME}:{VERSION}");
    Ok(ExitCode::SUCCESS)
}

/// Packs these agents, with an SBOM each, into an archive.
pub(crate) fn pack(agents: &[(Platform, PathBuf)], archive: &Path) -> Result<()> {
    let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("read {}", path.display()));
    let mut images = Vec::new();
    for (platform, agent) in agents {
        let bytes = read(agent)?;
        let bill = sbom::generate(&bytes, *platform)?;
        let mut files = vec![File { path: ENTRYPOINT[1..].to_owned(), mode: 0o755, bytes }];
        for licence in dist::LICENCES {
            let name = licence.rsplit('/').next().unwrap_or(licence);
            let bytes = read(&shell::root().join(licence))?;
            files.push(File { path: format!("licenses/{name}"), mode: 0o644, bytes });
        }
        images.push(Image { platform: *platform, files, bill });
    }
    let bytes = pack_images(&images)?;
    std::fs::write(archive, bytes).with_context(|| format!("write {}", archive.display()))
}

/// The contents of the image of a platform.
struct Image {
    platform: Platform,
    /// The files; the first one is run.
    files: Vec<File>,
    /// The SBOM, in the format of CycloneDX.
    bill: Vec<u8>,
}

/// A file of an archive.
struct File {
    path: String,
    mode: u32,
    bytes: Vec<u8>,
}

/// Returns the archive of these images. An index of them by platform has the name, and each SBOM refers to its
/// image (image-spec v1.1, manifest.md, `subject`).
fn pack_images(images: &[Image]) -> Result<Vec<u8>> {
    let mut blobs = Vec::new();
    let (mut manifests, mut referrers) = (Vec::new(), Vec::new());
    for Image { platform, files, bill } in images {
        let layer = tar(files).context("pack the layer")?;
        let architecture = platform.arch();
        let labels = annotations();
        let config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": {"Entrypoint": [ENTRYPOINT], "Labels": labels},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", sha256(&layer))]},
        });
        let config = config.to_string().into_bytes();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer)],
            "annotations": labels,
        });
        let manifest = manifest.to_string().into_bytes();
        let mut image_descriptor = descriptor(MANIFEST, &manifest);
        let empty = b"{}".to_vec();
        let referrer = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": sbom::MEDIA_TYPE,
            "config": descriptor("application/vnd.oci.empty.v1+json", &empty),
            "layers": [descriptor(sbom::MEDIA_TYPE, bill)],
            "subject": image_descriptor,
        });
        let referrer = referrer.to_string().into_bytes();
        let mut sbom_descriptor = descriptor(MANIFEST, &referrer);
        sbom_descriptor["artifactType"] = json!(sbom::MEDIA_TYPE);
        referrers.push(sbom_descriptor);
        image_descriptor["platform"] = json!({"architecture": architecture, "os": "linux"});
        manifests.push(image_descriptor);
        blobs.extend([manifest, config, layer, referrer, empty, bill.clone()]);
    }
    let index = json!({
        "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests, "annotations": annotations(),
    });
    let index = index.to_string().into_bytes();
    let mut index_descriptor = descriptor(INDEX, &index);
    index_descriptor["annotations"] = json!({
        "io.containerd.image.name": format!("{NAME}:{VERSION}"),
        "org.opencontainers.image.ref.name": VERSION,
    });
    blobs.push(index);
    let all = [vec![index_descriptor], referrers].concat();
    let layout = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": all});
    let mut members = vec![
        File::of("oci-layout", json!({"imageLayoutVersion": "1.0.0"}).to_string().into_bytes()),
        File::of("index.json", layout.to_string().into_bytes()),
    ];
    let blobs: BTreeMap<String, Vec<u8>> = blobs.into_iter().map(|blob| (sha256(&blob), blob)).collect();
    members.extend(blobs.into_iter().map(|(digest, blob)| File::of(format!("blobs/sha256/{digest}"), blob)));
    tar(&members).context("pack the image")
}

/// Returns the annotations of an image that registries show (image-spec v1.1, annotations.md).
fn annotations() -> Value {
    json!({
        "org.opencontainers.image.title": "eviction-agent",
        "org.opencontainers.image.description": "A node pressure monitor and eviction agent for Kubernetes",
        "org.opencontainers.image.version": VERSION,
        "org.opencontainers.image.vendor": "The eviction-agent authors",
        "org.opencontainers.image.licenses": "Apache-2.0 AND (MIT OR GPL-2.0-only)",
    })
}

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

impl File {
    fn of(path: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self { path: path.into(), mode: 0o644, bytes }
    }
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": format!("sha256:{}", sha256(bytes)), "size": bytes.len()})
}

/// Packs files with their folders, owned by root and without times.
fn tar(files: &[File]) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut folders: Vec<&str> = Vec::new();
    for File { path, mode, bytes } in files {
        for (end, _) in path.match_indices('/') {
            let folder = &path[..=end];
            if !folders.contains(&folder) {
                folders.push(folder);
                let mut header = header(tar::EntryType::Directory, 0o755, 0);
                archive.append_data(&mut header, folder, std::io::empty())?;
            }
        }
        let mut header = header(tar::EntryType::Regular, *mode, bytes.len() as u64);
        archive.append_data(&mut header, path, bytes.as_slice())?;
    }
    Ok(archive.into_inner()?)
}

fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// Returns the digest in hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// Returns the contents of an archive: mode and content by path.
    fn unpacked(archive: &[u8]) -> BTreeMap<String, (u32, Vec<u8>)> {
        let mut archive = tar::Archive::new(archive);
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            let path = entry.path().unwrap().display().to_string();
            (path, (entry.header().mode().unwrap(), bytes))
        });
        entries.collect()
    }

    fn json(files: &BTreeMap<String, (u32, Vec<u8>)>, path: &str) -> Value {
        serde_json::from_slice(&files[path].1).unwrap()
    }

    /// Returns the blob of a descriptor, after checking its size and its digest.
    fn blob<'a>(files: &'a BTreeMap<String, (u32, Vec<u8>)>, descriptor: &Value) -> &'a [u8] {
        let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        let bytes = &files[&format!("blobs/sha256/{digest}")].1;
        assert_eq!(
            (descriptor["size"].as_u64(), sha256(bytes)),
            (Some(bytes.len() as u64), digest.to_owned())
        );
        bytes
    }

    #[test]
    fn image_contains_the_binary_and_entrypoint_of_each_platform() {
        let folder = tempfile::tempdir().unwrap();
        let agents = [(Platform::Amd64, "amd64"), (Platform::Arm64, "arm64")].map(|(platform, text)| {
            let agent = folder.path().join(text);
            std::fs::write(&agent, text).unwrap();
            (platform, agent)
        });
        let archive = folder.path().join("image.tar");
        pack(&agents, &archive).unwrap();
        let files = unpacked(&std::fs::read(archive).unwrap());
        assert_eq!(json(&files, "oci-layout")["imageLayoutVersion"], "1.0.0");
        let layout = json(&files, "index.json");
        let index_descriptor = &layout["manifests"][0];
        assert_eq!(index_descriptor["annotations"]["io.containerd.image.name"], format!("{NAME}:{VERSION}"));
        let parse =
            |descriptor: &Value| -> Value { serde_json::from_slice(blob(&files, descriptor)).unwrap() };
        let index = parse(index_descriptor);
        for (number, architecture) in ["amd64", "arm64"].into_iter().enumerate() {
            let descriptor = &index["manifests"][number];
            assert_eq!(descriptor["platform"], json!({"architecture": architecture, "os": "linux"}));
            let manifest = parse(descriptor);
            let config = parse(&manifest["config"]);
            assert_eq!(config["architecture"], architecture);
            let layer = blob(&files, &manifest["layers"][0]);
            assert_eq!(config["rootfs"]["diff_ids"], json!([format!("sha256:{}", sha256(layer))]));
            assert_eq!(config["config"]["Entrypoint"], json!(["/eviction-agent"]));
            assert_eq!(config["config"]["Labels"]["org.opencontainers.image.version"], VERSION);
            let content = unpacked(layer);
            assert_eq!(content["eviction-agent"], (0o755, architecture.as_bytes().to_vec()));
            let names: Vec<&str> = content.keys().map(String::as_str).collect();
            let licences = ["licenses/LICENSE", "licenses/LICENSE-GPL2", "licenses/LICENSE-MIT"];
            assert_eq!(names, [&["eviction-agent", "licenses/"][..], &licences].concat());

            let referrer = &layout["manifests"][number + 1];
            assert_eq!(referrer["artifactType"], sbom::MEDIA_TYPE);
            let referrer = parse(referrer);
            assert_eq!(referrer["subject"]["digest"], descriptor["digest"]);
            let bill = parse(&referrer["layers"][0]);
            let agent = &bill["metadata"]["component"]["hashes"][0]["content"];
            assert_eq!(*agent, sha256(architecture.as_bytes()));
            parse(&referrer["config"]);
        }
    }

    #[test]
    fn same_files_give_identical_archives() {
        let images = |byte| {
            let files = vec![File { path: "bin/x".to_owned(), mode: 0o755, bytes: vec![byte; 1000] }];
            [Image { platform: Platform::Amd64, files, bill: b"{}".to_vec() }]
        };
        let first = pack_images(&images(7)).unwrap();
        // Times are in whole seconds.
        std::thread::sleep(std::time::Duration::from_millis(1100));
        assert_eq!(pack_images(&images(7)).unwrap(), first);
        assert_ne!(pack_images(&images(8)).unwrap(), first);
    }

    #[test]
    fn error_names_the_missing_agent() {
        let error =
            pack(&[(Platform::Amd64, "/nowhere/agent".into())], Path::new("/nowhere/image")).unwrap_err();
        assert_eq!(error.to_string(), "read /nowhere/agent");
    }
}
