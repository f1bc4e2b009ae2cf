//! Builds the BPF programs for their own target and hands the object to the crate,
//! so that the agent is one file that carries its kernel side.

use anyhow::Context as _;
use aya_build::Toolchain;

fn main() -> anyhow::Result<()> {
    let package = aya_build::Package {
        name: "eviction-ebpf",
        root_dir: concat!(env!("CARGO_MANIFEST_DIR"), "/../eviction-ebpf"),
        ..Default::default()
    };
    aya_build::build_ebpf([package], Toolchain::Nightly)
        .context("the BPF programs need a nightly toolchain with rust-src, and bpf-linker; `cargo xtask setup` installs them")
}
