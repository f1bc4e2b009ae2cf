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

/// Fields of these types are left out: the agent does not read them.
const UNREAD: [&str; 8] = [
    "ContainerResources",
    "ContainerUser",
    "LinuxPodSandboxStatus",
    "Mount",
    "PodSandboxNetworkStatus",
    "RuntimeFeatures",
    "RuntimeHandler",
    "Signal",
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
    prost_build::Config::new().btree_map(["."]).out_dir(&out).compile_fds(set)?;
    let code = std::fs::read_to_string(out.join("runtime.v1.rs"))?;
    std::fs::write(path, format!("{HEAD}{code}"))?;
    Ok(())
}

/// Keeps the methods of [`METHODS`], and those parts of their messages that are read.
fn keep_used(file: &mut FileDescriptorProto) {
    // Comments are removed, since they are numbered by the original positions.
    file.source_code_info = None;
    let unread = UNREAD.map(full_name);
    for message in &mut file.message_type {
        message.field.retain(|field| !unread.iter().any(|name| name == field.type_name()));
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
