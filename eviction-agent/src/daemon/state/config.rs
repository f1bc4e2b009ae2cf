//! The configuration in force, kept over a restart: what a start brings along may be a change as well, and
//! one that reaches every node at the same time. Unlike the state it outlives the boot.
//!
//! A disk that is full or read-only costs this and nothing else.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::file::StateFile;
use crate::daemon::configuration::Configuration;
use eviction_config::Effective;
use eviction_core::policy::Policy;
use eviction_core::policy::preferences::Profile;

/// The file in a state directory.
const FILE: &str = "config.json";

/// What was in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SavedConfig {
    pub(crate) profile: Profile,
    pub(crate) policy: Policy,
    /// What the kubelet reported of itself, if that counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) configz: Option<Effective>,
}

impl SavedConfig {
    pub(crate) fn of(in_force: &Configuration) -> Self {
        let Configuration { policy, profile, kubelet, .. } = in_force;
        Self { profile: *profile, policy: policy.clone(), configz: kubelet.effective.clone() }
    }

    /// Reads what the former agent has saved; nothing if that is nothing.
    ///
    /// # Errors
    /// The file and the cause, if it cannot be used.
    pub(crate) fn read(state_dir: &Path) -> Result<Option<Self>, String> {
        let file = StateFile::at(&state_dir.join(FILE));
        let failed = |why: &dyn std::fmt::Display| format!("read {}: {why}", file.path().display());
        let Some(bytes) = file.read().map_err(|error| failed(&error))? else { return Ok(None) };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| failed(&error))
    }

    /// Saves it for the next agent.
    pub(crate) fn write(&self, state_dir: &Path) -> io::Result<()> {
        StateFile::at(&state_dir.join(FILE)).write(&serde_json::to_vec(self)?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::daemon::check::NodeFacts;
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

    fn configuration(folder: &Path, profile: Profile) -> Configuration {
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).unwrap();
            Some(path)
        };
        let files = ConfigurationFiles {
            kubelet: write("kubelet.yaml", KUBELET),
            agent: write("agent.yaml", AGENT),
            profile: Some(profile),
            node: NodeFacts { in_cluster: true, ..NodeFacts::default() },
            ..ConfigurationFiles::default()
        };
        files.load().unwrap()
    }

    #[test]
    fn what_was_in_force_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        assert_eq!(SavedConfig::read(&state), Ok(None));
        for profile in [Profile::Kubelet, Profile::Enhanced] {
            let mut saved = SavedConfig::of(&configuration(folder.path(), profile));
            let answer = r#"{"kubeletconfig": {"evictionHard": {"memory.available": "1Gi"}}}"#;
            saved.configz = Some(Effective::parse(answer.as_bytes(), "https://node:10250/configz").unwrap());
            saved.write(&state).unwrap();
            assert_eq!(SavedConfig::read(&state), Ok(Some(saved)));
        }
    }

    #[test]
    fn what_was_spoiled_is_an_error_with_its_file() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["{", "[]", r#"{"profile": "Fast"}"#] {
            fs::write(folder.path().join("config.json"), text).unwrap();
            let error = SavedConfig::read(folder.path()).unwrap_err();
            assert!(error.contains("config.json: "), "{error}");
        }
    }
}
