//! Programs from Debian's packages. Some packages are installed, others only unpacked.

use std::path::PathBuf;

use super::machine::Machine;
use super::{Need, Step};

/// Returns the programs of a need that Debian's packages contain, each with its packages.
fn packages_of(need: Need) -> &'static [(&'static str, &'static str)] {
    match need {
        // The compiler's headers are in a separate package.
        Need::Arm64 => &[
            ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"),
            ("qemu-aarch64-static", "qemu-user-static"),
        ],
        Need::Packages => &[("dpkg-deb", "dpkg"), ("rpmbuild", "rpm")],
        Need::Guests => &[
            ("qemu-system-x86_64", "qemu-system-x86"),
            ("busybox", "busybox-static"),
            ("mkfs.ext4", "e2fsprogs"),
            ("strip", "binutils"),
        ],
        Need::Arm64Guests => &[("qemu-system-aarch64", "qemu-system-arm")],
        // The interpreter of nohang.
        Need::Competitors => &[("python3", "python3")],
        // stress-ng has no daemon, so it can be installed.
        Need::Stressors => &[("stress-ng", "stress-ng")],
        // The program of the images of a node's pods.
        Need::Node => &[("busybox", "busybox-static")],
        Need::FileSystems => {
            &[("mkfs.ext4", "e2fsprogs"), ("mkfs.xfs", "xfsprogs"), ("mkfs.btrfs", "btrfs-progs")]
        }
        Need::Browser => &[("chromium", "chromium"), ("node", "nodejs"), ("npm", "npm")],
        Need::Bpf
        | Need::Musl
        | Need::Lints
        | Need::Deny
        | Need::Fuzz
        | Need::Promtool
        | Need::Helm
        | Need::Krew => &[],
    }
}

/// Returns a step that installs the missing packages of a need, if there are any.
pub(super) fn install(machine: &Machine, need: Need) -> Option<Step> {
    let is_installed = |(program, package): &(&str, &str)| match *package {
        // A guest does not have the libraries of a dynamic program.
        "busybox-static" => machine.is_static(program),
        _ => machine.is_on_path(program),
    };
    let missing: Vec<_> = packages_of(need).iter().filter(|it| !is_installed(it)).collect();
    let packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    let install = "apt-get -qq update && apt-get -qq install --yes --no-install-recommends";
    (!missing.is_empty()).then(|| Step::new(packages.join(", "), format!("{install} {}", packages.join(" "))))
}

/// Debian's packages, each with a file that shows that it is there.
pub(super) const COMPETITORS: [(&str, &str); 3] = [
    ("earlyoom", "usr/bin/earlyoom"),
    ("nohang", "usr/sbin/nohang"),
    ("prometheus-node-exporter", "usr/bin/prometheus-node-exporter"),
];

/// The programs that run the pods of a node.
pub(super) const NODE: [(&str, &str); 3] = [
    ("containerd", "usr/bin/containerd"),
    ("runc", "usr/sbin/runc"),
    ("containernetworking-plugins", "usr/lib/cni/ptp"),
];

/// The package has the server and promtool.
pub(super) const PROMETHEUS: [(&str, &str); 1] = [("prometheus", "usr/bin/promtool")];

/// Unpacks packages instead of installing them: an installed package starts its daemon, and a daemon that kills
/// processes or runs containers may not be wanted on this machine.
pub(super) fn unpack(
    machine: &Machine,
    name: &str,
    packages: &[(&str, &str)],
    found: &mut Option<PathBuf>,
) -> Option<Step> {
    let folder = machine.own.join(name);
    let missing: Vec<_> = packages
        .iter()
        .filter(|(_, file)| !folder.join(file).is_file())
        .map(|(package, _)| *package)
        .collect();
    if missing.is_empty() {
        *found = Some(folder);
        return None;
    }
    let (packages, folder) = (missing.join(" "), folder.display());
    let line = format!(
        "mkdir -p '{folder}'; cd '{folder}'; apt-get -qq update; apt-get -qq download {packages}; \
         for package in *.deb; do dpkg-deb -x \"$package\" .; done; rm -- *.deb"
    );
    Some(Step::new(missing.join(", "), line))
}
