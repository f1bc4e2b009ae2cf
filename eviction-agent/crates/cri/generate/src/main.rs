//! Writes `src/api.rs`: the messages of the methods of the CRI that the agent calls.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;

use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};

/// The methods that the agent calls.
const METHODS: [&str; 11] = [
    "ContainerStatus",
    "ImageFsInfo",
    "ImageStatus",
    "ListContainers",
    "ListImages",
    "ListPodSandbox",
    "PodSandboxStatus",
    "RemoveContainer",
    "RemoveImage",
    "Status",
    "Version",
];

/// The fields that the agent reads or writes, by message. Other fields and messages are left out.
const FIELDS: [(&str, &[&str]); 25] = [
    (
        "Container",
        &[
            "id",
            "pod_sandbox_id",
            "metadata",
            "image",
            "image_ref",
            "state",
            "created_at",
            "labels",
            "image_id",
        ],
    ),
    ("ContainerMetadata", &["name", "attempt"]),
    ("ContainerStatus", &["state"]),
    ("ContainerStatusRequest", &["container_id", "verbose"]),
    ("ContainerStatusResponse", &["status"]),
    ("FilesystemIdentifier", &["mountpoint"]),
    ("FilesystemUsage", &["fs_id"]),
    ("Image", &["id", "repo_tags", "repo_digests", "size", "pinned"]),
    ("ImageFsInfoResponse", &["image_filesystems", "container_filesystems"]),
    ("ImageSpec", &["image", "user_specified_image", "image_ref"]),
    ("ImageStatusRequest", &["image", "verbose"]),
    ("ImageStatusResponse", &["image"]),
    ("ListContainersResponse", &["containers"]),
    ("ListImagesResponse", &["images"]),
    ("ListPodSandboxResponse", &["items"]),
    ("PodSandbox", &["id", "state"]),
    ("PodSandboxStatusRequest", &["pod_sandbox_id", "verbose"]),
    ("PodSandboxStatusResponse", &["info"]),
    ("RemoveContainerRequest", &["container_id"]),
    ("RemoveImageRequest", &["image"]),
    // The CRI proxy passes the conditions on.
    ("RuntimeCondition", &["type", "status", "reason", "message"]),
    ("RuntimeStatus", &["conditions"]),
    ("StatusRequest", &["verbose"]),
    ("StatusResponse", &["status", "info"]),
    ("VersionResponse", &["runtime_name", "runtime_version"]),
];

const HEAD: &str = "//! The messages of the CRI that the agent uses, generated from `proto/api.proto` by
//! `cargo run --manifest-path eviction-agent/crates/cri/generate/Cargo.toml` and `cargo fmt`.

";

fn main() -> Result<(), Box<dyn Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let proto = here.join("../proto");
    let mut set = protox::Compiler::new([&proto])?.open_file("api.proto")?.file_descriptor_set();
    set.file.iter_mut().for_each(keep_used);
    write(set, &here.join("../src/api.rs"))
}

/// Writes the messages. `src/client.rs` calls the methods by their names.
fn write(set: FileDescriptorSet, path: &Path) -> Result<(), Box<dyn Error>> {
    let out = std::env::temp_dir().join(format!("eviction-cri-{}", std::process::id()));
    std::fs::create_dir_all(&out)?;
    let mut config = prost_build::Config::new();
    config.btree_map(["."]).out_dir(&out);
    // A message without used fields is `()`.
    for message in set.file.iter().flat_map(|file| &file.message_type).filter(|it| it.field.is_empty()) {
        config.extern_path(full_name(message.name()), "()");
    }
    config.compile_fds(set)?;
    let code = std::fs::read_to_string(out.join("runtime.v1.rs"))?;
    std::fs::write(path, format!("{HEAD}{code}"))?;
    Ok(())
}

/// Keeps the methods of [`METHODS`], and those parts of their messages that are read.
fn keep_used(file: &mut FileDescriptorProto) {
    // Comments are removed, since they are numbered by the original positions.
    file.source_code_info = None;
    for message in &mut file.message_type {
        let fields =
            FIELDS.iter().find(|(name, _)| *name == message.name()).map_or(&[][..], |(_, fields)| fields);
        message.field.retain(|field| fields.contains(&field.name()));
    }
    let methods = file.service.drain(..).flat_map(|service| service.method);
    let methods = methods.filter(|method| METHODS.contains(&method.name()));
    let mut waiting: Vec<String> =
        methods.flat_map(|method| [method.input_type, method.output_type]).flatten().collect();
    let mut used = BTreeSet::new();
    while let Some(name) = waiting.pop() {
        if !used.insert(name.clone()) {
            continue;
        }
        let message = file.message_type.iter().find(|message| full_name(message.name()) == name);
        waiting.extend(message.map(types_of).unwrap_or_default());
    }
    file.message_type.retain(|message| used.contains(&full_name(message.name())));
    file.enum_type.retain(|it| used.contains(&full_name(it.name())));
}

fn types_of(message: &DescriptorProto) -> Vec<String> {
    let own = message.field.iter().filter_map(|field| field.type_name.clone());
    own.chain(message.nested_type.iter().flat_map(types_of)).collect()
}

fn full_name(name: &str) -> String {
    format!(".runtime.v1.{name}")
}
