//! Simulated machines: folders as rustup and cargo create them, and tools that print a version.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use tempfile::TempDir;

use super::*;

const HOST: &str = "x86_64-unknown-linux-gnu";
const ALL: &[Need] = &[Need::Bpf, Need::Musl, Need::Lints, Need::Deny];

struct Fake {
    dir: TempDir,
    machine: Machine,
}

impl Fake {
    /// Creates a machine with rustup, a stable toolchain, clippy and rustfmt, and nothing else.
    fn fresh() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let machine = Machine {
            rustup_home: root.join("rustup"),
            sysroot: root.join("rustup/toolchains").join(format!("stable-{HOST}")),
            host: HOST.to_owned(),
            path: vec![root.join("usr"), root.join("cargo/bin")],
            own: root.join("own"),
        };
        let fake = Self { dir, machine };
        for program in ["rustfmt", "cargo-clippy"] {
            fake.file(&format!("rustup/toolchains/stable-{HOST}/bin/{program}"));
        }
        fake
    }

    fn file(&self, path: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    fn nightly(&self, name: &str, llvm: u32) -> &Self {
        self.file(&format!("rustup/toolchains/{name}-{HOST}/lib/libLLVM.so.{llvm}.1-rust-nightly"));
        self.file(&format!("rustup/toolchains/{name}-{HOST}/bin/cargo-clippy"));
        self
    }

    fn source(&self, name: &str) -> &Self {
        self.file(&format!("rustup/toolchains/{name}-{HOST}/lib/rustlib/src/rust/library/core/Cargo.toml"));
        self
    }

    fn musl(&self) -> &Self {
        let target = crate::build::TARGET;
        self.file(&format!("rustup/toolchains/stable-{HOST}/lib/rustlib/{target}/lib/libstd.rlib"));
        self
    }

    fn tool(&self, folder: &str, tool: &str, version: &str) -> &Self {
        let path = self.dir.path().join(folder).join(tool);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\necho {tool} {version}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    /// Returns the command that would be run next for all needs.
    fn next(&self) -> String {
        match find_tools(&self.machine, ALL) {
            Err(step) => step.line.replace(&self.dir.path().display().to_string(), "~"),
            Ok(_) => "ready".to_owned(),
        }
    }

    fn ready(&self) -> Tools {
        match find_tools(&self.machine, ALL) {
            Ok(tools) => tools,
            Err(step) => panic!("{step:?}"),
        }
    }
}

#[test]
fn machine_with_only_stable_rust_gets_all_tools_one_by_one() {
    let fake = Fake::fresh();
    assert_eq!(
        fake.next(),
        "rustup toolchain install nightly-2026-05-20 --profile=minimal --component=rust-src --no-self-update"
    );
    fake.file(&format!("rustup/toolchains/{DATED_NIGHTLY}-{HOST}/lib/libLLVM.so.22.1-rust"));
    fake.source(DATED_NIGHTLY);
    assert_eq!(fake.next(), "cargo install bpf-linker@0.10.3 --locked --quiet");
    fake.tool("cargo/bin", "bpf-linker", "0.10.3");
    assert_eq!(fake.next(), "rustup target add x86_64-unknown-linux-musl");
    fake.musl();
    assert_eq!(fake.next(), "rustup component add clippy --toolchain nightly-2026-05-20");
    fake.file(&format!("rustup/toolchains/{DATED_NIGHTLY}-{HOST}/bin/cargo-clippy"));
    assert_eq!(fake.next(), "cargo install cargo-deny@0.20.2 --locked --quiet --debug --root='~/own'");
    fake.tool("own/bin", "cargo-deny", "0.20.2");
    assert_eq!(fake.ready().bpf_toolchain, DATED_NIGHTLY);
}

#[test]
fn nightly_without_rust_src_gets_rust_src() {
    let fake = Fake::fresh();
    fake.nightly("nightly", LLVM);
    assert_eq!(fake.next(), "rustup component add rust-src --toolchain nightly");
    fake.source("nightly").tool("usr", "bpf-linker", BPF_LINKER).musl();
    fake.tool("usr", "cargo-deny", "0.21.0");
    let tools = fake.ready();
    assert_eq!(tools.bpf_toolchain, "nightly");
    assert!(tools.cargo_deny.unwrap().ends_with("usr/cargo-deny"));
    let mut cargo = Command::new("cargo");
    Tools { cargo_deny: None, ..fake.ready() }.apply(&mut cargo);
    assert_eq!(cargo.get_envs().count(), 0, "plain cargo must find the same build");
}

#[test]
fn nightly_with_another_llvm_is_not_used() {
    let fake = Fake::fresh();
    fake.nightly("nightly", LLVM + 1).source("nightly");
    assert!(fake.next().starts_with("rustup toolchain install nightly-2026-05-20"));
}

#[test]
fn linker_of_another_version_is_kept_and_ours_installed_beside_it() {
    let fake = Fake::fresh();
    fake.nightly("nightly", LLVM).source("nightly").musl();
    fake.tool("cargo/bin", "bpf-linker", "0.11.0").tool("usr", "cargo-deny", "0.20.0");
    assert_eq!(fake.next(), "cargo install bpf-linker@0.10.3 --locked --quiet --root='~/own'");
    fake.tool("own/bin", "bpf-linker", BPF_LINKER);
    let mut cargo = Command::new("cargo");
    fake.ready().apply(&mut cargo);
    let linker = fake.dir.path().join("own/bin/bpf-linker");
    let envs: Vec<_> = cargo.get_envs().collect();
    let name = std::ffi::OsStr::new("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER");
    assert_eq!(envs, [(name, Some(linker.as_os_str()))]);
}

#[test]
fn old_cargo_deny_is_not_used() {
    let fake = Fake::fresh();
    fake.nightly("nightly", LLVM).source("nightly").musl();
    fake.tool("usr", "bpf-linker", BPF_LINKER).tool("usr", "cargo-deny", "0.14.2");
    assert!(fake.next().starts_with("cargo install cargo-deny@0.20.2"));
}

#[test]
fn error_of_a_failed_step_names_the_missing_tool() {
    let step = Step::new("bpf-linker 0.0.0", "false");
    let error = format!("{:#}", step.run().unwrap_err());
    assert_eq!(
        error,
        "setup: install bpf-linker 0.0.0 (the network is needed): `sh -ec false` ended with exit status: 1"
    );
}

#[test]
fn error_of_a_step_names_its_missing_program() {
    let error = format!("{:#}", Step::new("rust-src", "rustup-is-not-here").run().unwrap_err());
    assert!(error.contains("`sh -ec rustup-is-not-here` ended with exit status: 127"), "{error}");
}

#[test]
fn competitors_are_unpacked_in_the_projects_own_folder_and_not_installed() {
    let fake = Fake::fresh();
    let next = |fake: &Fake| match find_tools(&fake.machine, &[Need::Competitors]) {
        Err(step) => (step.missing, step.line),
        Ok(tools) => (String::new(), tools.competitors.unwrap().display().to_string()),
    };
    assert_eq!(next(&fake).0, "python3");
    fake.file("usr/python3");
    let (missing, command) = next(&fake);
    assert_eq!(missing, "earlyoom, nohang, prometheus-node-exporter");
    assert!(
        command.contains("apt-get -qq download earlyoom nohang") && !command.contains("install"),
        "{command}"
    );
    for file in ["usr/bin/earlyoom", "usr/sbin/nohang"] {
        fake.file(&format!("own/competitors/{file}"));
    }
    assert_eq!(next(&fake).0, "prometheus-node-exporter");
    fake.file("own/competitors/usr/bin/prometheus-node-exporter");
    assert!(next(&fake).1.ends_with("own/competitors"));
}

#[test]
fn prometheus_is_unpacked_and_not_installed() {
    let fake = Fake::fresh();
    let next = |fake: &Fake| match find_tools(&fake.machine, &[Need::Promtool]) {
        Err(step) => step.line,
        Ok(tools) => tools.prometheus.unwrap().display().to_string(),
    };
    let command = next(&fake);
    assert!(
        command.contains("apt-get -qq download prometheus;") && !command.contains("install"),
        "{command}"
    );
    fake.file("own/prometheus/usr/bin/promtool");
    assert!(next(&fake).ends_with("own/prometheus"));
}

#[test]
fn stressors_are_installed() {
    let fake = Fake::fresh();
    let next = |fake: &Fake| match find_tools(&fake.machine, &[Need::Stressors]) {
        Err(step) => step.line,
        Ok(_) => String::new(),
    };
    assert!(next(&fake).ends_with("install --yes --no-install-recommends stress-ng"));
    fake.file("usr/stress-ng");
    assert_eq!(next(&fake), "");
}

#[test]
fn dynamic_busybox_counts_as_missing() {
    let fake = Fake::fresh();
    let next = |fake: &Fake| match find_tools(&fake.machine, &[Need::Node]) {
        Err(step) => step.missing,
        Ok(_) => String::new(),
    };
    fake.file("usr/busybox");
    assert_eq!(next(&fake), "busybox-static");
    // The file has no section and no program header, so it needs no loader.
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(0x40, 0);
    elf[0x14] = 1;
    fs::write(fake.dir.path().join("usr/busybox"), elf).unwrap();
    assert_ne!(next(&fake), "busybox-static");
}

#[test]
fn helm_is_built_and_its_validator_installed_in_folders_of_their_versions() {
    let fake = Fake::fresh();
    let next = || match find_tools(&fake.machine, &[Need::Helm]) {
        Err(step) => Err(step.missing),
        Ok(tools) => Ok((tools.helm.unwrap(), tools.kubernetes_validate.unwrap())),
    };
    assert_eq!(next().unwrap_err(), format!("helm {HELM}"));
    fake.file(&format!("own/helm-{HELM}/helm"));
    assert_eq!(next().unwrap_err(), format!("kubernetes-validate {KUBERNETES_VALIDATE}"));
    fake.file(&format!("own/kubernetes-validate-{KUBERNETES_VALIDATE}/bin/kubernetes-validate"));
    let (helm, validate) = next().unwrap();
    assert!(helm.is_file() && validate.is_file());
}
