//! The configuration in force, kept over a restart: what a start brings along may be a change
//! as well, and one that reaches every node at the same time.
//!
//! Kept are copies of the files, in a folder that is exchanged as a whole. A disk that is full
//! or read-only costs the memory and nothing else.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::configuration::{AskConfigz, Configuration, ConfigurationFiles, KubeletSaid};
use crate::error::Failure;
use eviction_config::{KubeletFiles, drop_in_files};
use eviction_core::policy::preferences::Profile;

const KUBELET: &str = "kubelet.yaml";
const DROP_INS: &str = "kubelet.d";
const AGENT: &str = "agent.yaml";
const PROFILE: &str = "profile";
const SAID: &str = "configz.json";

/// Where the configuration in force is kept.
#[derive(Clone, Debug)]
pub(crate) struct SavedConfigFile {
    folder: PathBuf,
}

/// What came of remembering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SaveResult {
    /// The copies say what is in force.
    Yes,
    /// The files were changed since they were read; what was remembered before stays.
    ChangedSince,
}

impl SavedConfigFile {
    /// In a folder of the agent's own, which need not be there.
    pub(crate) fn within(state: &Path) -> Self {
        Self { folder: state.join("configuration") }
    }

    /// Where it is kept what the kubelet said of itself, if it is that which was in force.
    pub(crate) fn said(&self) -> PathBuf {
        self.folder.join(SAID)
    }

    /// What was in force when the agent ended, on the node as it is now. None if nothing was
    /// remembered.
    pub(crate) fn load(&self, files: &ConfigurationFiles) -> Option<Result<Configuration, Failure>> {
        self.folder.is_dir().then(|| copies(&self.folder, files)?.load())
    }

    /// Remembers files, if they still say what is in force.
    pub(crate) fn keep(
        &self,
        files: &ConfigurationFiles,
        in_force: &Configuration,
    ) -> io::Result<SaveResult> {
        let new = self.folder.with_extension("new");
        let old = self.folder.with_extension("old");
        for left_over in [&new, &old] {
            remove(left_over)?;
        }
        copy(files, in_force, &new)?;
        let says_the_same = copies(&new, files)
            .and_then(|copies| copies.load())
            .is_ok_and(|read| read.policy == in_force.policy && read.profile == in_force.profile);
        if !says_the_same {
            remove(&new)?;
            return Ok(SaveResult::ChangedSince);
        }
        if self.folder.exists() {
            fs::rename(&self.folder, &old)?;
        }
        fs::rename(&new, &self.folder)?;
        fs::File::open(&self.folder)?.sync_all()?;
        remove(&old)?;
        Ok(SaveResult::Yes)
    }
}

fn copy(files: &ConfigurationFiles, in_force: &Configuration, into: &Path) -> io::Result<()> {
    // The other fields are those of each start.
    let ConfigurationFiles { agent, profile, .. } = files;
    let KubeletSaid { files, effective, is_asked: _, is_stand_in: _ } = &in_force.kubelet;
    let KubeletFiles { config: kubelet, config_dir: kubelet_drop_ins } = files;
    fs::create_dir_all(into)?;
    for (file, name) in [(kubelet, KUBELET), (agent, AGENT)] {
        if let Some(file) = file {
            fs::copy(file, into.join(name))?;
        }
    }
    if let Some(folder) = kubelet_drop_ins {
        let copies = into.join(DROP_INS);
        fs::create_dir(&copies)?;
        for file in drop_in_files(folder)? {
            let copied = copies.join(file.strip_prefix(folder).map_err(io::Error::other)?);
            fs::create_dir_all(copied.parent().unwrap_or(&copies))?;
            // Through links: that is how a mounted ConfigMap holds its files.
            fs::copy(file, copied)?;
        }
    }
    if let Some(effective) = effective {
        fs::write(into.join(SAID), serde_json::to_vec(effective)?)?;
    }
    match profile {
        Some(profile) => fs::write(into.join(PROFILE), profile.name()),
        None => Ok(()),
    }
}

/// The copies in a folder. What is done, and where, is as it is told now.
fn copies(folder: &Path, files: &ConfigurationFiles) -> Result<ConfigurationFiles, Failure> {
    let there = |name: &str| Some(folder.join(name)).filter(|path| path.exists());
    let profile = match there(PROFILE).map(fs::read_to_string) {
        None => None,
        Some(Ok(name)) => Some(Profile::named(name.trim()).ok_or_else(|| {
            Failure::failed(format!("read {}: there is no profile `{name}`", folder.join(PROFILE).display()))
        })?),
        Some(Err(error)) => {
            return Err(Failure::because(format!("read {}", folder.join(PROFILE).display()), &error));
        }
    };
    Ok(ConfigurationFiles {
        kubelet: there(KUBELET),
        kubelet_drop_ins: there(DROP_INS),
        agent: there(AGENT),
        profile,
        // It counted if it was kept, whatever is said of asking now.
        configz: AskConfigz { ask: there(SAID).is_some(), ..AskConfigz::default() },
        last_heard: None,
        last_said: there(SAID),
        are_copies: true,
        ..files.clone()
    })
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with configuration files, and where they are remembered.
    fn node(agent: &str, drop_in: &str) -> (tempfile::TempDir, ConfigurationFiles, SavedConfigFile) {
        let folder = tempfile::tempdir().unwrap();
        let within = |name: &str| folder.path().join(name);
        fs::create_dir(within("drop-ins")).unwrap();
        fs::write(within("drop-ins/10-lines.conf"), drop_in).unwrap();
        fs::write(within("own.yaml"), agent).unwrap();
        let files = ConfigurationFiles {
            kubelet: None,
            kubelet_drop_ins: Some(within("drop-ins")),
            agent: Some(within("own.yaml")),
            profile: Some(Profile::Enhanced),
            ..ConfigurationFiles::default()
        };
        let remembered = SavedConfigFile::within(&within("state"));
        (folder, files, remembered)
    }

    const OWN: &str = "apiVersion: eviction-agent.io/v1alpha1\nkind: AgentConfiguration\n";

    fn drop_in(line: &str) -> String {
        format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
             evictionHard: {{memory.available: {line}}}\n"
        )
    }

    #[test]
    fn what_was_in_force_is_there_again() {
        let (_folder, files, remembered) = node(OWN, &drop_in("200Mi"));
        assert!(remembered.load(&files).is_none(), "nothing yet");
        let first = files.load().unwrap();
        for _ in 0..2 {
            assert_eq!(remembered.keep(&files, &first).unwrap(), SaveResult::Yes);
            let again = remembered.load(&files).unwrap().unwrap();
            assert_eq!((again.policy, again.profile), (first.policy.clone(), Profile::Enhanced));
        }
    }

    #[test]
    fn drop_ins_in_folders_of_their_own_are_remembered_too() {
        let (folder, files, remembered) = node(OWN, &drop_in("200Mi"));
        let below = folder.path().join("drop-ins/20-more/deep");
        fs::create_dir_all(&below).unwrap();
        fs::write(below.join("10-lines.conf"), drop_in("300Mi")).unwrap();
        fs::write(below.join("README"), "no configuration").unwrap();
        let first = files.load().unwrap();
        assert_eq!(remembered.keep(&files, &first).unwrap(), SaveResult::Yes);
        fs::remove_dir_all(folder.path().join("drop-ins")).unwrap();
        assert_eq!(remembered.load(&files).unwrap().unwrap().policy, first.policy);
    }

    #[test]
    fn files_that_were_changed_since_are_not_remembered() {
        let (folder, files, remembered) = node(OWN, &drop_in("200Mi"));
        let first = files.load().unwrap();
        remembered.keep(&files, &first).unwrap();
        fs::write(folder.path().join("drop-ins/10-lines.conf"), drop_in("2Gi")).unwrap();
        assert_eq!(remembered.keep(&files, &first).unwrap(), SaveResult::ChangedSince);
        assert_eq!(remembered.load(&files).unwrap().unwrap().policy, first.policy, "the former stays");
        fs::write(folder.path().join("own.yaml"), "nonsense").unwrap();
        assert_eq!(remembered.keep(&files, &first).unwrap(), SaveResult::ChangedSince);
        fs::remove_file(folder.path().join("own.yaml")).unwrap();
        assert!(remembered.keep(&files, &first).is_err());
        assert_eq!(remembered.load(&files).unwrap().unwrap().policy, first.policy);
    }

    #[test]
    fn what_was_spoiled_is_an_error_with_its_file() {
        let (folder, files, remembered) = node(OWN, &drop_in("200Mi"));
        remembered.keep(&files, &files.load().unwrap()).unwrap();
        fs::write(folder.path().join("state/configuration/agent.yaml"), "{").unwrap();
        let causes = remembered.load(&files).unwrap().unwrap_err().into_causes();
        assert!(causes[0].contains("agent.yaml"), "{causes:?}");
        fs::write(folder.path().join("state/configuration/profile"), "fast").unwrap();
        let causes = remembered.load(&files).unwrap().unwrap_err().into_causes();
        assert!(causes[0].contains("no profile `fast`"), "{causes:?}");
    }
}
