//! Images with one static program.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::process::run;

/// Returns the names of a containerd's images. `ctr` makes the command with arguments for it.
///
/// # Errors
/// If it does not answer.
pub(crate) fn list_images(ctr: impl Fn(&[&str]) -> Command) -> Result<Vec<String>> {
    let output = ctr(&["--namespace=k8s.io", "images", "ls", "-q"]).output().context("run ctr")?;
    ensure!(output.status.success(), "list images: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = text.lines().filter(|name| !name.starts_with("sha256:")).map(str::to_owned);
    Ok(names.collect())
}

/// An image to build.
#[derive(Clone, Debug)]
pub struct Image {
    name: &'static str,
    program: PathBuf,
    links: &'static [&'static str],
    entrypoint: Vec<String>,
}

/// The program of every pod's sandbox: it ends on SIGTERM.
const PAUSE: &str = "trap 'exit 0' TERM; while :; do sleep 3600 & wait; done";

impl Image {
    /// Creates an image with a static program as `/bin/<file name>`, which is its entrypoint.
    pub fn of(name: &'static str, program: &Path) -> Self {
        let file = program.file_name().unwrap_or_default().to_string_lossy();
        Self { name, program: program.to_owned(), links: &[], entrypoint: vec![format!("/bin/{file}")] }
    }

    /// Creates an image with busybox that runs a line of shell.
    pub fn shell(name: &'static str, busybox: &Path, line: &str) -> Self {
        let entrypoint = ["/bin/sh", "-c", line].map(str::to_owned).to_vec();
        Self { links: &["sh", "sleep", "dd", "tail"], entrypoint, ..Self::of(name, busybox) }
    }

    /// Creates an image with a file of so many MiB that do not compress. The file stays in the folder.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn random(name: &'static str, mib: u64, folder: &Path) -> Result<Self> {
        let file = folder.join(name);
        let mut random = fs::File::open("/dev/urandom").context("open /dev/urandom")?.take(mib << 20);
        let mut written = fs::File::create(&file).context("make the file of an image")?;
        std::io::copy(&mut random, &mut written).context("write the file of an image")?;
        Ok(Self::of(name, &file))
    }

    /// Creates the image of all sandboxes.
    pub fn pause(busybox: &Path) -> Self {
        Self::shell("pause", busybox, PAUSE)
    }

    /// Returns the name in manifests and settings.
    pub fn reference(&self) -> String {
        reference(self.name)
    }

    /// Packs the image as an archive, in the format of `docker save`.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub fn pack(&self, folder: &Path) -> Result<PathBuf> {
        let Self { name, program, links, entrypoint } = self;
        let work = folder.join(format!("image-{name}"));
        let bin = work.join("root/bin");
        fs::create_dir_all(&bin).with_context(|| format!("make {}", bin.display()))?;
        fs::create_dir_all(work.join("root/tmp")).context("make a folder of an image")?;
        let file = program.file_name().with_context(|| format!("{} is no program", program.display()))?;
        fs::copy(program, bin.join(file)).with_context(|| format!("copy {}", program.display()))?;
        for link in *links {
            symlink(file, bin.join(link)).with_context(|| format!("make {link} of an image"))?;
        }
        let tar = |archive: &str, base: &str, members: &[&str]| {
            let archive = work.join(archive);
            run(Command::new("tar").arg("-C").arg(work.join(base)).arg("-cf").arg(&archive).args(members))?;
            Ok::<_, anyhow::Error>(archive)
        };
        let layer = tar("layer.tar", "root", &["."])?;
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": {"Entrypoint": entrypoint, "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", sha256(&layer)?)]},
        });
        let manifest =
            json!([{"Config": "config.json", "RepoTags": [self.reference()], "Layers": ["layer.tar"]}]);
        for (name, value) in [("config.json", config), ("manifest.json", manifest)] {
            fs::write(work.join(name), value.to_string())
                .with_context(|| format!("write {name} of an image"))?;
        }
        tar("image.tar", "", &["manifest.json", "config.json", "layer.tar"])
    }
}

pub(super) fn reference(name: &str) -> String {
    format!("docker.io/local/{name}:1")
}

fn sha256(file: &Path) -> Result<String> {
    let output = Command::new("sha256sum").arg(file).output().context("run sha256sum")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let sum = text.split_whitespace().next().filter(|sum| sum.len() == 64);
    sum.map(str::to_owned).with_context(|| format!("the SHA-256 of {}", file.display()))
}
