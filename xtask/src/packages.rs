//! The agent as a .deb and as an .rpm, with the systemd unit: built by dpkg-deb and rpmbuild from the same
//! files.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::build::Platform;
use crate::dist::LICENCES;
use crate::shell;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The configuration, which is kept if an administrator has changed it.
const CONFIG: &str = "etc/eviction-agent/agent.yaml";
const UNIT: &str = "usr/lib/systemd/system/eviction-agent.service";

/// Writes both packages of that agent into a folder, and returns their names.
pub(crate) fn pack(agent: &Path, platform: Platform, dist: &Path) -> Result<Vec<String>> {
    let work = dist.join("work");
    let root = work.join("root");
    stage(agent, platform, &root)?;
    let packages = vec![deb(&root, platform, dist, VERSION)?, rpm(&work, platform, dist)?];
    fs::remove_dir_all(&work).with_context(|| format!("remove {}", work.display()))?;
    Ok(packages)
}

/// Copies the files to where they are installed, below `root`.
fn stage(agent: &Path, platform: Platform, root: &Path) -> Result<()> {
    let source = shell::root();
    let mut files = vec![
        (agent.to_owned(), "usr/bin/eviction-agent".to_owned()),
        (source.join("deploy/systemd/eviction-agent.service"), UNIT.to_owned()),
        (source.join("deploy/systemd/agent.yaml"), CONFIG.to_owned()),
    ];
    for name in ["deploy/packages/copyright", "CHANGELOG.md"].iter().chain(LICENCES) {
        let file = name.rsplit('/').next().unwrap_or(name);
        files.push((source.join(name), format!("usr/share/doc/eviction-agent/{file}")));
    }
    for (from, to) in &files {
        let mode = if to.starts_with("usr/bin/") { 0o755 } else { 0o644 };
        write(&root.join(to), &fs::read(from).with_context(|| format!("read {}", from.display()))?, mode)?;
    }
    let pages = shell::create_folder(root.join("usr/share/man/man1"))?;
    shell::read(platform.command(agent).arg("man").arg(&pages))?;
    shell::read(Command::new("sh").args(["-c", "gzip -9n \"$0\"/*"]).arg(&pages))?;
    for (shell, file) in [
        ("bash", "usr/share/bash-completion/completions/eviction-agent"),
        ("fish", "usr/share/fish/vendor_completions.d/eviction-agent.fish"),
        // Debian's folder; the .rpm has Fedora's.
        ("zsh", "usr/share/zsh/vendor-completions/_eviction-agent"),
    ] {
        let script = shell::read(platform.command(agent).args(["completion", shell]))?;
        write(&root.join(file), script.as_bytes(), 0o644)?;
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(path, bytes));
    let written = written.and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)));
    written.with_context(|| format!("write {}", path.display()))
}

fn template(name: &str) -> Result<String> {
    let path = shell::root().join("deploy/packages").join(name);
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// Limits the times in a package to that of the commit, so that the same commit gives the same bytes.
fn with_commit_time(command: &mut Command) -> &mut Command {
    let time =
        shell::read(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(shell::root()));
    command.env("SOURCE_DATE_EPOCH", time.as_deref().map_or("0", str::trim))
}

fn deb(root: &Path, platform: Platform, dist: &Path, version: &str) -> Result<String> {
    let control = root.join("DEBIAN");
    let size = shell::read(Command::new("du").args(["-sk", "--apparent-size"]).arg(root))?;
    let size = size.split_whitespace().next().unwrap_or("0").to_owned();
    let text = template("control")?
        .replace("@VERSION@", version)
        .replace("@ARCHITECTURE@", platform.arch())
        .replace("@SIZE@", &size);
    write(&control.join("control"), text.as_bytes(), 0o644)?;
    write(&control.join("conffiles"), format!("/{CONFIG}\n").as_bytes(), 0o644)?;
    for script in ["postinst", "prerm"] {
        write(&control.join(script), template(script)?.as_bytes(), 0o755)?;
    }
    let name = format!("eviction-agent_{version}-1_{}.deb", platform.arch());
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "--build"]).arg(root).arg(dist.join(&name));
    shell::read(with_commit_time(&mut build))?;
    fs::remove_dir_all(&control).with_context(|| format!("remove {}", control.display()))?;
    Ok(name)
}

fn rpm(work: &Path, platform: Platform, dist: &Path) -> Result<String> {
    let root = work.join("root");
    let spec = template("eviction-agent.spec")?
        .replace("@VERSION@", VERSION)
        .replace("@ROOT@", &root.display().to_string())
        .replace("@POSTINST@", template("postinst")?.trim_start_matches("#!/bin/sh\n"))
        .replace("@PRERM@", template("prerm")?.trim_start_matches("#!/bin/sh\n"));
    let file = work.join("eviction-agent.spec");
    write(&file, spec.as_bytes(), 0o644)?;
    let mut build = Command::new("rpmbuild");
    build.args(["-bb", "--quiet", "--target", platform.rpm_arch()]);
    let top = work.join("rpm").display().to_string();
    for (name, value) in [
        ("_topdir", top.as_str()),
        ("_rpmdir", &dist.display().to_string()),
        ("_build_name_fmt", "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm"),
        ("_buildhost", "localhost"),
        ("use_source_date_epoch_as_buildtime", "1"),
        ("clamp_mtime_to_source_date_epoch", "1"),
    ] {
        build.args(["--define", &format!("{name} {value}")]);
    }
    shell::read(with_commit_time(&mut build).arg(&file))?;
    Ok(format!("eviction-agent-{VERSION}-1.{}.rpm", platform.rpm_arch()))
}

/// Installs the .deb of that name into a folder, changes its configuration, upgrades it to one with another
/// default, and removes it. Checks the contents of the .rpm with rpm.
pub(crate) fn check(agent: &Path, platform: Platform, dist: &Path, names: &[String]) -> Result<()> {
    let [deb_name, rpm_name] = names else { anyhow::bail!("a .deb and an .rpm are checked") };
    let work = dist.join("work");
    check_deb(agent, platform, &dist.join(deb_name), &work)?;
    fs::remove_dir_all(&work).with_context(|| format!("remove {}", work.display()))?;
    let query = |options: &[&str]| shell::read(Command::new("rpm").args(options).arg(dist.join(rpm_name)));
    let listed = query(&["-qpl"])?;
    let page = "usr/share/man/man1/eviction-agent-run.1.gz";
    for file in ["usr/bin/eviction-agent", UNIT, CONFIG, page, "usr/share/zsh/site-functions/_eviction-agent"]
    {
        ensure!(listed.lines().any(|line| line == format!("/{file}")), "{rpm_name} has no {file}: {listed}");
    }
    // The file is configuration, and is not replaced once it was changed.
    let flags = query(&["-qp", "--queryformat", "[%{FILEFLAGS:fflags} %{FILENAMES}\n]"])?;
    ensure!(
        flags.lines().any(|line| line == format!("cn /{CONFIG}")),
        "{rpm_name} replaces {CONFIG}: {flags}"
    );
    let header = query(&["-qp", "--queryformat", "%{NAME} %{VERSION} %{ARCH}"])?;
    ensure!(header == format!("eviction-agent {VERSION} {}", platform.rpm_arch()), "{rpm_name}: {header}");
    Ok(())
}

fn check_deb(agent: &Path, platform: Platform, deb: &Path, work: &Path) -> Result<()> {
    let (target, next) = (work.join("target"), work.join("next"));
    for folder in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers"] {
        shell::create_folder(target.join(folder))?;
    }
    write(&target.join("var/lib/dpkg/status"), b"", 0o644)?;
    let dpkg = |arguments: &[&str], file: &Path| {
        let mut command = Command::new("dpkg");
        command.arg("--root").arg(&target).args(["--force-script-chrootless", "--force-architecture"]);
        // A changed configuration is kept without a question.
        command.args(["--force-confold", "--log=/dev/null"]).args(arguments).arg(file);
        shell::read(&mut command)
    };
    let config = target.join(CONFIG);
    let read = || fs::read_to_string(&config).with_context(|| format!("read {}", config.display()));
    dpkg(&["--install"], deb)?;
    let installed = target.join("usr/bin/eviction-agent");
    let version = shell::read(platform.command(&installed).arg("--version"))?;
    ensure!(version.contains(VERSION), "the installed agent says {version}");
    let default_config = read()?;
    write(&config, b"changed: by hand\n", 0o644)?;

    stage(agent, platform, &next)?;
    write(&next.join(CONFIG), format!("{default_config}# another default\n").as_bytes(), 0o644)?;
    let later = self::deb(&next, platform, work, "999.0.0")?;
    dpkg(&["--install"], &work.join(later))?;
    ensure!(read()? == "changed: by hand\n", "an upgrade has replaced a changed {CONFIG}");
    let package = Path::new("eviction-agent");
    dpkg(&["--remove"], package)?;
    ensure!(!installed.exists() && config.exists(), "removing keeps the configuration only");
    dpkg(&["--purge"], package)?;
    ensure!(!config.exists(), "purging removes {CONFIG}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A script that answers the commands that are run while an agent is packed.
    const AGENT: &str = "#!/bin/sh\ncase $1 in\nman) echo page > \"$2/eviction-agent-run.1\" ;;\n\
        completion) echo \"for $2\" ;;\n*) echo eviction-agent 0.1.0 ;;\nesac\n";

    #[test]
    fn a_deb_is_installed_upgraded_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let agent = folder.path().join("agent");
        write(&agent, AGENT.as_bytes(), 0o755).unwrap();
        let root = folder.path().join("root");
        stage(&agent, Platform::HOST, &root).unwrap();
        let name = deb(&root, Platform::HOST, folder.path(), VERSION).unwrap();
        let built = fs::read(folder.path().join(&name)).unwrap();
        check_deb(&agent, Platform::HOST, &folder.path().join(&name), &folder.path().join("work")).unwrap();
        // The same files give the same bytes.
        deb(&root, Platform::HOST, folder.path(), VERSION).unwrap();
        assert_eq!(fs::read(folder.path().join(&name)).unwrap(), built);
        let listed =
            shell::read(Command::new("dpkg-deb").arg("--contents").arg(folder.path().join(&name))).unwrap();
        for line in [
            "-rwxr-xr-x root/root",
            "./usr/bin/eviction-agent",
            "./usr/share/man/man1/eviction-agent-run.1.gz",
            "./usr/share/doc/eviction-agent/LICENSE-GPL2",
            "./usr/share/bash-completion/completions/eviction-agent",
            "./usr/share/zsh/vendor-completions/_eviction-agent",
        ] {
            assert!(listed.contains(line), "{line}: {listed}");
        }
    }
}
