//! The configuration in force, saved for the next start of the agent.

use std::path::{Path, PathBuf};

use eviction_config::Effective;
use eviction_core::policy::Policy;
use eviction_core::policy::preferences::Profile;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::daemon::configuration::Configuration;
use crate::daemon::state::StateFile;
use crate::error::chain;

/// The name of the file in the state directory.
pub(super) const CONFIG_FILE: &str = "config.json";

/// The configuration in force, persisted across restarts: a start may bring a change as well, and one that
/// reaches every node at the same time. Unlike the state, it is kept across reboots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SavedConfig {
    profile: Profile,
    policy: Policy,
    /// The last response of the kubelet, if that is the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) configz: Option<Effective>,
}

impl SavedConfig {
    /// Returns this policy, with the last response of the kubelet.
    pub(super) fn new(policy: &Policy, configuration: &Configuration) -> Self {
        let (profile, policy) = (policy.rules.profile(), policy.clone());
        Self { profile, policy, configz: configuration.kubelet.effective.clone() }
    }

    /// Returns the policy of this configuration, with the last response of the kubelet.
    pub(super) fn of(configuration: &Configuration) -> Self {
        Self::new(&configuration.policy, configuration)
    }

    /// Reads the file of the previous agent; `None` if there is none.
    ///
    /// # Errors
    /// The file and the cause, if it cannot be used.
    pub(super) fn read(state_dir: &Path) -> Result<Option<Self>, String> {
        StateFile::at(state_dir.join(CONFIG_FILE)).read_json()
    }

    /// Writes the file again if it has this policy, but another configuration of the kubelet.
    pub(super) fn update(&self, state_dir: &Path) {
        if let Ok(Some(saved)) = Self::read(state_dir)
            && saved.policy == self.policy
            && saved != *self
        {
            self.save(state_dir);
        }
    }

    /// Writes the file. If the disk is full or read-only, nothing else is affected.
    pub(super) fn save(&self, state_dir: &Path) {
        if let Err(error) = StateFile::at(state_dir.join(CONFIG_FILE)).write_json(self) {
            tracing::warn!(error = chain(&error), "the configuration in force cannot be saved for a restart");
        }
    }
}

/// Writes the file in the background, in the order of the calls.
pub(super) struct SavedConfigWriter {
    /// `None` if nothing is persisted.
    state_dir: Option<PathBuf>,
    /// The last write. The next one begins when it has ended.
    last_write: Option<JoinHandle<()>>,
}

impl SavedConfigWriter {
    pub(super) fn new(state_dir: Option<PathBuf>) -> Self {
        Self { state_dir, last_write: None }
    }

    /// Starts to write the file with `write`, which logs its own failure. Needs a tokio runtime.
    pub(super) fn write(&mut self, config: SavedConfig, write: fn(&SavedConfig, &Path)) {
        let Some(dir) = self.state_dir.clone() else { return };
        let before = self.last_write.take();
        self.last_write = Some(tokio::spawn(async move {
            if let Some(before) = before {
                drop(before.await);
            }
            drop(tokio::task::spawn_blocking(move || write(&config, &dir)).await);
        }));
    }

    /// Waits until the last write has ended.
    pub(super) async fn finish(self) {
        if let Some(write) = self.last_write {
            drop(write.await);
        }
    }
}

/// Returns the policy that was in force when the previous agent ended, if the files differ from it now. Without a
/// saved configuration there is nothing to compare the files with. With `accept` the files count at once.
pub(super) fn previous_policy(state_dir: &Path, configured: &Configuration, accept: bool) -> Option<Policy> {
    let saved = SavedConfig::read(state_dir).unwrap_or_else(|cause| {
        tracing::warn!(cause, "the saved configuration cannot be used; the files count at once");
        None
    });
    let in_force = SavedConfig::of(configured);
    match saved.filter(|_| !accept) {
        Some(saved) if saved.policy != in_force.policy => {
            tracing::warn!(
                "the configuration was changed since the agent ended; it is held against the present"
            );
            Some(saved.policy)
        }
        // The kubelet may have another configuration that makes the same policy.
        saved => {
            if saved.as_ref() != Some(&in_force) {
                in_force.save(state_dir);
            }
            None
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use super::*;
    use crate::daemon::configuration::ConfigurationFiles;

    const KUBELET: &str = "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
evictionHard: {memory.available: 7.3%, nodefs.available: 1500m, pid.available: '1e3'}
evictionSoft: {memory.available: 1.5Gi}
evictionSoftGracePeriod: {memory.available: 1m30s}
evictionMinimumReclaim: {memory.available: 0.1%}
";

    const AGENT: &str = "apiVersion: eviction-agent.io/v1alpha1
kind: AgentConfiguration
action: Evict
policy:
  signals: [{signal: pid.available, hard: 5%}]
  protection:
  - {namespaces: [shop], selector: {matchLabels: {app: web}}, order: Last}
  rateLimits: [{scope: Namespace, maxEvictions: 3, window: 10m}]
";

    pub(crate) fn configuration(folder: &Path, profile: Profile) -> Configuration {
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).unwrap();
            Some(path)
        };
        let files = ConfigurationFiles {
            kubelet: write("kubelet.yaml", KUBELET),
            agent: write("agent.yaml", AGENT),
            profile: Some(profile),
            in_cluster: true,
            ..ConfigurationFiles::default()
        };
        files.load().unwrap()
    }

    #[test]
    fn a_saved_configuration_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        assert_eq!(SavedConfig::read(&state), Ok(None));
        for profile in [Profile::Kubelet, Profile::Enhanced] {
            let mut saved = SavedConfig::of(&configuration(folder.path(), profile));
            let answer = r#"{"kubeletconfig": {"evictionHard": {"memory.available": "1Gi"}}}"#;
            saved.configz = Some(Effective::parse(answer.as_bytes(), "https://node:10250/configz").unwrap());
            saved.save(&state);
            assert_eq!(SavedConfig::read(&state), Ok(Some(saved)));
        }
    }

    #[tokio::test]
    async fn configurations_are_saved_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let state_dir = folder.path().join("state");
        let [first, last] = [Profile::Kubelet, Profile::Enhanced]
            .map(|profile| SavedConfig::of(&configuration(folder.path(), profile)));
        let mut writer = SavedConfigWriter::new(Some(state_dir.clone()));
        for _ in 0..20 {
            (0..9).for_each(|_| writer.write(first.clone(), SavedConfig::save));
            writer.write(last.clone(), SavedConfig::save);
            writer.last_write.take().unwrap().await.unwrap();
            assert_eq!(SavedConfig::read(&state_dir), Ok(Some(last.clone())));
        }
    }

    #[test]
    fn at_a_start_only_another_policy_is_held_back() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let [mut before, after] =
            [Profile::Kubelet, Profile::Enhanced].map(|profile| configuration(folder.path(), profile));
        assert_eq!(previous_policy(&state, &before, false), None, "there is no saved configuration");
        assert_eq!(previous_policy(&state, &after, false), Some(before.policy.clone()));
        // A response of the kubelet that makes the same policy is saved.
        let answer = r#"{"kubeletconfig": {"imageMinimumGCAge": "1h"}}"#;
        before.kubelet.effective = Some(Effective::parse(answer.as_bytes(), "https://node").unwrap());
        assert_eq!(previous_policy(&state, &before, false), None);
        assert_eq!(SavedConfig::read(&state), Ok(Some(SavedConfig::of(&before))));
        assert_eq!(previous_policy(&state, &after, true), None, "--apply-config-now");
        assert_eq!(SavedConfig::read(&state), Ok(Some(SavedConfig::of(&after))));
    }

    #[test]
    fn a_corrupt_saved_configuration_is_an_error_that_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["{", "[]", r#"{"profile": "Fast"}"#] {
            fs::write(folder.path().join("config.json"), text).unwrap();
            let error = SavedConfig::read(folder.path()).unwrap_err();
            assert!(error.contains("config.json: "), "{error}");
        }
    }
}
