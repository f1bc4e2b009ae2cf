//! Debian's cloud kernels, fetched by apt from more suites than the machine's own, and kept in a cache outside
//! the target folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::build::Platform;
use crate::shell;

/// A kernel that can be booted.
#[derive(Debug)]
pub(super) struct Kernel {
    /// The name of its package, which contains the version.
    pub(super) version: String,
    /// Its image.
    pub(super) image: PathBuf,
    /// The folder `lib` with the modules that guests load.
    pub(super) modules: PathBuf,
}

/// The cache of the kernels of a platform.
#[derive(Debug)]
pub(super) struct Cache {
    folder: PathBuf,
    platform: Platform,
}

/// The suites that have 5.10, 6.1, 6.12 and 7.2. The security updates of the oldest are in a separate suite.
const SUITES: [&str; 4] = ["bullseye", "bookworm", "trixie", "sid"];
const SECURITY: &str = "bullseye-security";

const BINARY: &str = "linux-binary";

/// Copies the modules for loop devices, btrfs, xfs, overlays, FUSE and project quotas, with the modules that
/// they need. The first argument is the folder of a package, the second gets `lib/modules`.
const COPY_MODULES: &str = "\
for all in \"$1\"/lib/modules/* \"$1\"/usr/lib/modules/*; do
    if ! [ -d \"$all/kernel\" ]; then continue; fi
    release=$(basename \"$all\"); to=$2/lib/modules/$release
    mkdir -p \"$to\"; cd \"$all\"
    for part in modules.builtin* modules.order kernel/lib kernel/crypto kernel/arch/*/crypto \
        kernel/drivers/block/loop.* kernel/fs/btrfs kernel/fs/fuse kernel/fs/overlayfs kernel/fs/quota \
        kernel/fs/xfs; do
        if [ -e \"$part\" ]; then cp -r --parents \"$part\" \"$to\"; fi
    done
    find \"$to\" -name '*.xz' -exec xz -d {} +
    busybox depmod -b \"$2\" \"$release\"
done";

impl Cache {
    pub(super) fn open(platform: Platform) -> Result<Self> {
        let name = match platform {
            Platform::HOST => "vm".to_owned(),
            _ => format!("vm-{}", platform.arch()),
        };
        Ok(Self { folder: shell::create_folder(shell::cache_folder()?.join(name))?, platform })
    }

    /// Returns a static busybox: this machine's, or Debian's for another platform.
    pub(super) fn busybox(&self) -> Result<PathBuf> {
        if self.platform == Platform::HOST {
            return Ok(PathBuf::from("/bin/busybox"));
        }
        let cached = self.folder.join("busybox");
        if !cached.exists() {
            let tree = self.extract("busybox-static/bookworm")?;
            // Older packages have it in /bin.
            let found = ["usr/bin/busybox", "bin/busybox"].map(|path| tree.path().join(path));
            let found = found.iter().find(|path| path.exists());
            copy_complete(found.context("vm: busybox-static has no busybox")?, &cached)?;
        }
        Ok(cached)
    }

    /// Returns files of a package, `name/suite`, all from one version of it. They are cached in `folder`.
    pub(super) fn package_files(&self, package: &str, paths: &[&str], folder: &Path) -> Result<Vec<PathBuf>> {
        let names = paths.iter().filter_map(|path| Path::new(path).file_name());
        let files: Vec<_> = names.map(|name| folder.join(name)).collect();
        if !files.iter().all(|file| file.exists()) {
            let tree = self.extract(package)?;
            paths
                .iter()
                .zip(&files)
                .try_for_each(|(path, file)| copy_complete(&tree.path().join(path), file))?;
        }
        Ok(files)
    }

    /// Returns the newest kernel of that series, and fetches it if it is missing.
    pub(super) fn kernel(&self, series: &str) -> Result<Kernel> {
        let cached = self.folder(&format!("kernels/{series}"))?;
        let (image, version, modules) = (cached.join("vmlinuz"), cached.join("version"), cached.join("lib"));
        let copied_by = cached.join("copied-by");
        // Modules that were copied by another list are copied again.
        if let Some(version) = cached_version(&image, &version)
            && modules.is_dir()
            && fs::read_to_string(&copied_by).is_ok_and(|list| list == COPY_MODULES)
        {
            return Ok(Kernel { version, image, modules });
        }
        let mut package = self.package(series)?;
        let tree = match self.extract(&package) {
            Ok(tree) => tree,
            Err(error) => {
                // The version is in the package's name: the indices, which were read again meanwhile, may have
                // the next one.
                let before = std::mem::replace(&mut package, self.package(series)?);
                ensure!(package != before, error);
                self.extract(&package)?
            }
        };
        let found = find_image(tree.path()).with_context(|| format!("vm: {package} has no kernel image"))?;
        shell::copy(&found, &image)?;
        if modules.is_dir() {
            fs::remove_dir_all(&modules).with_context(|| format!("remove {}", modules.display()))?;
        }
        copy_modules(tree.path(), &cached)?;
        if package.starts_with(BINARY) {
            drop(tree);
            copy_modules(self.extract(&package.replacen(BINARY, "linux-modules", 1))?.path(), &cached)?;
        }
        let size = fs::metadata(&image).with_context(|| format!("read {}", image.display()))?.len();
        for (file, text) in [(&copied_by, COPY_MODULES), (&version, &format!("{package} {size}\n"))] {
            fs::write(file, text).with_context(|| format!("write {}", file.display()))?;
        }
        Ok(Kernel { version: package, image, modules })
    }

    /// Returns a folder of the cache, and creates it if it is missing.
    pub(super) fn folder(&self, name: &str) -> Result<PathBuf> {
        shell::create_folder(self.folder.join(name))
    }

    /// Fetches a package, `name` or `name/suite`, and unpacks it into a folder that is removed when it is dropped.
    pub(super) fn extract(&self, package: &str) -> Result<TempDir> {
        self.update()?;
        let work = TempDir::new_in(&self.folder).context("make a folder for a package")?;
        // apt compares what it downloads with the hash in the signed index.
        let download = || {
            shell::run(shell::stdout_to_stderr(
                self.apt("apt-get").args(["download", package]).current_dir(&work),
            ))
        };
        if download().is_err() {
            // The indices are old: a suite no longer has what they name.
            self.remove_indices()?;
            self.update()?;
            download()?;
        }
        let tree = TempDir::new_in(&self.folder).context("make a folder for the files of a package")?;
        shell::run(Command::new("dpkg-deb").arg("--extract").arg(only_file(work.path())?).arg(tree.path()))?;
        Ok(tree)
    }

    /// Returns the name of the newest package with an image of that series.
    fn package(&self, series: &str) -> Result<String> {
        self.update()?;
        // From 7.2 on, the image and the modules are in separate packages.
        for kind in [BINARY, "linux-image"] {
            let (escaped, arch) = (series.replace('.', "[.]"), self.platform.arch());
            let pattern = format!("^{kind}-{escaped}[.0-9].*-cloud-{arch}$");
            let found = shell::read(self.apt("apt-cache").args(["search", "--names-only", &pattern]))?;
            if let Some(newest) = newest_package(&found, series) {
                return Ok(newest);
            }
        }
        bail!("vm: no suite of {} has a cloud kernel {series}", SUITES.join(", "))
    }

    fn remove_indices(&self) -> Result<()> {
        let done = self.folder.join("apt/updated");
        fs::remove_file(&done).with_context(|| format!("remove {}", done.display()))
    }

    /// Fetches the indices once; they are kept.
    fn update(&self) -> Result<()> {
        let sources = self.folder.join("apt/debian.sources");
        let done = self.folder.join("apt/updated");
        if done.exists() {
            return Ok(());
        }
        for folder in ["state/lists/partial", "cache/archives/partial"] {
            self.folder(&format!("apt/{folder}"))?;
        }
        let installed = installed_sources()?;
        fs::write(&sources, with_kernel_suites(&installed)?)
            .with_context(|| format!("write {}", sources.display()))?;
        shell::run(shell::stdout_to_stderr(self.apt("apt-get").args(["--quiet=2", "update"])))?;
        fs::write(&done, "").with_context(|| format!("write {}", done.display()))
    }

    /// Returns a command of apt with its own folders: the machine's apt stays as it is.
    fn apt(&self, program: &str) -> Command {
        let apt = self.folder.join("apt");
        let mut command = Command::new(program);
        for (key, value) in [
            ("Dir::Etc::SourceList", apt.join("debian.sources")),
            ("Dir::Etc::SourceParts", PathBuf::from("/dev/null")),
            ("Dir::State", apt.join("state")),
            ("Dir::State::status", PathBuf::from("/var/lib/dpkg/status")),
            ("Dir::Cache", apt.join("cache")),
            ("APT::Sandbox::User", PathBuf::from("root")),
            ("APT::Architecture", PathBuf::from(self.platform.arch())),
            ("APT::Architectures", PathBuf::from(self.platform.arch())),
        ] {
            command.arg("-o").arg(format!("{key}={}", value.display()));
        }
        command
    }
}

fn copy_modules(tree: &Path, to: &Path) -> Result<()> {
    shell::run(Command::new("sh").args(["-ec", COPY_MODULES, "modules"]).arg(tree).arg(to))
}

/// Returns the version in the cache, unless its image was cut off.
fn cached_version(image: &Path, version: &Path) -> Option<String> {
    let text = fs::read_to_string(version).ok()?;
    let (name, size) = text.trim().split_once(' ')?;
    (fs::metadata(image).ok()?.len() == size.parse::<u64>().ok()?).then(|| name.to_owned())
}

/// Returns the package with the greatest version of that series in the output of `apt-cache search`. The
/// version is in its name.
fn newest_package(found: &str, series: &str) -> Option<String> {
    let numbers = |name: &str| -> Option<Vec<u64>> {
        let version = name.split('-').skip(2).collect::<Vec<_>>().join("-");
        let rest = version.strip_prefix(series)?;
        // 6.1 does not match 6.12. A package without more of a version has no kernel, and backports are marked
        // as those of other releases.
        if !rest.starts_with('.') || rest.contains("deb11") || rest.contains("bpo") {
            return None;
        }
        Some(rest.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect())
    };
    let names = found.lines().filter_map(|line| line.split_whitespace().next());
    let numbered = names.filter_map(|name| Some((numbers(name)?, name)));
    numbered.max().map(|(_, name)| name.to_owned())
}

/// The sources where the machine has none.
const DEBIAN: &str = "\
Types: deb
URIs: http://deb.debian.org/debian
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://deb.debian.org/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
";

/// Returns the deb822 sources of this machine, if they are Debian's, and else those of Debian's own servers.
fn installed_sources() -> Result<String> {
    let folder = Path::new("/etc/apt/sources.list.d");
    let files = fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<_> = files.flatten().map(|file| file.path()).collect();
    paths.sort();
    for path in paths.iter().filter(|path| path.extension().is_some_and(|end| end == "sources")) {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        if text.contains("debian-archive-keyring") {
            return Ok(text);
        }
    }
    // Debian's installer writes the older format, and other machines have no Debian sources at all.
    Ok(DEBIAN.to_owned())
}

/// Returns the same sources, with the suites that have the kernels.
fn with_kernel_suites(installed: &str) -> Result<String> {
    let stanzas: Vec<_> = installed
        .split("\n\n")
        .filter(|stanza| stanza.lines().any(|line| line.starts_with("URIs:")))
        .map(|stanza| {
            let is_security = stanza.contains("security");
            let suites = if is_security { SECURITY.to_owned() } else { SUITES.join(" ") };
            let lines = stanza.lines().filter(|line| !line.starts_with('#')).map(|line| {
                if line.starts_with("Suites:") { format!("Suites: {suites}") } else { line.to_owned() }
            });
            lines.collect::<Vec<_>>().join("\n")
        })
        .collect();
    if stanzas.is_empty() {
        bail!("vm: the machine's sources of packages have no URIs");
    }
    Ok(stanzas.join("\n\n") + "\n")
}

fn only_file(folder: &Path) -> Result<PathBuf> {
    let mut files = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?.flatten();
    let file = files.next().context("vm: apt downloaded nothing")?;
    Ok(file.path())
}

/// Copies a file, which gets its name when it is complete.
fn copy_complete(from: &Path, to: &Path) -> Result<()> {
    let partial = to.with_extension("partial");
    shell::copy(from, &partial)?;
    fs::rename(&partial, to).with_context(|| format!("rename to {}", to.display()))
}

/// Finds `boot/vmlinuz-*`, from 7.2 on `usr/lib/modules/*/vmlinuz`.
fn find_image(tree: &Path) -> Option<PathBuf> {
    let entries = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten().map(|it| it.path());
    let is_image =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz"));
    let modules = ["usr/lib/modules", "lib/modules"].map(|folder| tree.join(folder));
    entries(tree.join("boot"))
        .find(is_image)
        .or_else(|| modules.into_iter().flat_map(entries).flat_map(entries).find(is_image))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_kernel_of_the_requested_series_is_chosen() {
        let found = "linux-image-6.1.0-47-cloud-amd64 - Linux 6.1\n\
            linux-image-6.12.107+deb13-cloud-amd64 - Linux 6.12\n\
            linux-image-6.12.94+deb13-cloud-amd64 - Linux 6.12\n\
            linux-image-6.1.0-50-cloud-amd64 - Linux 6.1\n\
            linux-image-6.1.0-0.deb11.52-cloud-amd64 - Linux 6.1 for another release\n\
            linux-image-6.1-cloud-amd64 - no kernel, but what needs one\n";
        assert_eq!(newest_package(found, "6.1").as_deref(), Some("linux-image-6.1.0-50-cloud-amd64"));
        assert_eq!(newest_package(found, "6.12").as_deref(), Some("linux-image-6.12.107+deb13-cloud-amd64"));
        assert_eq!(newest_package(found, "7.2"), None);
    }

    #[test]
    fn package_sources_keep_their_uris_and_get_the_kernel_suites() {
        let installed = "Types: deb\n# a note\nURIs: http://mirror/debian\nSuites: bookworm bookworm-updates\n\n\
            Types: deb\nURIs: http://mirror/debian-security\nSuites: bookworm-security\n";
        let widened = with_kernel_suites(installed).unwrap();
        assert!(widened.contains("Suites: bullseye bookworm trixie sid"), "{widened}");
        assert!(
            widened.contains("URIs: http://mirror/debian-security\nSuites: bullseye-security"),
            "{widened}"
        );
        assert!(!widened.contains('#'), "{widened}");
        assert!(with_kernel_suites("Types: deb\n").is_err());
        let without = with_kernel_suites(DEBIAN).unwrap();
        assert!(
            without.contains("bullseye bookworm trixie sid\n") && without.contains("bullseye-security"),
            "{without}"
        );
    }

    #[test]
    fn truncated_kernel_image_is_not_used_from_the_cache() {
        let folder = tempfile::tempdir().unwrap();
        let (image, version) = (folder.path().join("vmlinuz"), folder.path().join("version"));
        assert_eq!(cached_version(&image, &version), None);
        fs::write(&image, "12345").unwrap();
        fs::write(&version, "linux-image-6.1 5\n").unwrap();
        assert_eq!(cached_version(&image, &version).as_deref(), Some("linux-image-6.1"));
        fs::write(&image, "123").unwrap();
        assert_eq!(cached_version(&image, &version), None);
    }
}
