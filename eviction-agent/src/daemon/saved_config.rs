//! The configuration in force, saved for the next start of the agent.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use eviction_config::Effective;
use eviction_core::policy::Policy;
use eviction_core::policy::preferences::Profile;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
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
    fn new(policy: &Policy, configz: Option<&Effective>) -> Self {
        Self { profile: policy.rules.profile(), policy: policy.clone(), configz: configz.cloned() }
    }

    /// Reads the file of the previous agent; `None` if there is none.
    ///
    /// # Errors
    /// The file and the cause, if it cannot be used.
    pub(super) fn read(state_dir: &Path) -> Result<Option<Self>, String> {
        StateFile::at(state_dir.join(CONFIG_FILE)).read_json()
    }

    /// Writes the file. If the disk is full or read-only, nothing else is affected.
    fn save(&self, state_dir: &Path) {
        if let Err(error) = StateFile::at(state_dir.join(CONFIG_FILE)).write_json(self) {
            tracing::warn!(error = chain(&error), "the configuration in force cannot be saved for a restart");
        }
    }
}

/// Writes the configuration in force to the file whenever it differs from the file, in the background. While the disk
/// hangs, only the latest configuration waits.
pub(super) struct ConfigWriter {
    /// The last response of the kubelet.
    configz: watch::Sender<Option<Effective>>,
    /// `None` if nothing is persisted.
    writes: Option<JoinHandle<()>>,
}

impl ConfigWriter {
    /// Returns the writer, and the channel to which each policy that comes into force is sent. It begins with the policy
    /// of the previous agent if the files differ from it now, else with that of the files. Without a saved configuration
    /// there is nothing to compare the files with. With `apply_config_now` the files count at once. Needs a tokio
    /// runtime.
    pub(super) fn start(
        state_dir: Option<PathBuf>,
        configured: &Configuration,
        apply_config_now: bool,
    ) -> (Self, watch::Sender<Arc<Policy>>) {
        let saved = state_dir.as_deref().map_or(Ok(None), SavedConfig::read).unwrap_or_else(|cause| {
            tracing::warn!(cause, "the saved configuration cannot be used; the files count at once");
            None
        });
        let previous = saved.as_ref().map(|saved| &saved.policy).filter(|_| !apply_config_now);
        let policy = Arc::new(previous.unwrap_or(&configured.policy).clone());
        if *policy != configured.policy {
            tracing::warn!(
                "the configuration was changed since the agent ended; it is held against the present"
            );
        }
        let (policy_in_force, policies) = watch::channel(policy);
        let (configz, responses) = watch::channel(configured.configz.clone());
        let writes = state_dir.map(|dir| tokio::spawn(write_changes(dir, saved, policies, responses)));
        (Self { configz, writes }, policy_in_force)
    }

    /// Changes the last response of the kubelet.
    pub(super) fn set_configz(&self, configz: Option<&Effective>) {
        self.configz.send_replace(configz.cloned());
    }

    /// Waits until the last configuration is written. The sender of policies must have been dropped.
    pub(super) async fn finish(self) {
        drop(self.configz);
        if let Some(writes) = self.writes {
            drop(writes.await);
        }
    }
}

/// Writes the file whenever the policy in force or the last response of the kubelet differs from it, until both senders
/// are dropped.
async fn write_changes(
    state_dir: PathBuf,
    mut saved: Option<SavedConfig>,
    mut policies: watch::Receiver<Arc<Policy>>,
    mut responses: watch::Receiver<Option<Effective>>,
) {
    loop {
        let policy = Arc::clone(&policies.borrow_and_update());
        let config = SavedConfig::new(&policy, responses.borrow_and_update().as_ref());
        if saved.as_ref() != Some(&config) {
            saved = Some(config.clone());
            let dir = state_dir.clone();
            // `save` logs its failures.
            drop(tokio::task::spawn_blocking(move || config.save(&dir)).await);
        }
        tokio::select! {
            Ok(()) = policies.changed() => {}
            Ok(()) = responses.changed() => {}
            else => return,
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
