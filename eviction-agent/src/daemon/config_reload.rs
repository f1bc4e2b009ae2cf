//! Reloads the configuration at SIGHUP, when its file changes, and periodically from the kubelet. Saves it once
//! it is in force.

use std::path::{Path, PathBuf};
use std::time::Duration;

use eviction_config::Effective;
use eviction_core::policy::Policy;
use eviction_core::policy::eviction_settings::NodeReclaim;
use eviction_core::policy::preferences::Profile;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{Signal, SignalKind};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::daemon::configuration::{Configuration, ConfigurationFiles, KubeletSource, Options};
use crate::daemon::state::StateFile;
use crate::daemon::watch_signal;
use crate::error::{Failure, chain};
use eviction_node::file_watch::FileWatch;

/// The reason for a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReloadReason {
    /// SIGHUP.
    Signal,
    /// The configuration file was changed.
    Changed,
    /// The configuration of the kubelet may have changed.
    Kubelet,
}

/// How often the configuration of the kubelet is requested. It changes only when the kubelet is restarted.
const CONFIGZ_INTERVAL: Duration = Duration::from_secs(600);
/// How often it is requested while the kubelet does not respond.
const CONFIGZ_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// A configuration file is written in several steps, and nothing waits for it.
const FILE_DEBOUNCE: Duration = Duration::from_millis(200);

/// The name of the file in the state directory.
pub(crate) const CONFIG_FILE: &str = "config.json";

/// The configuration in force, persisted across restarts: a start may bring a change as well, and one that
/// reaches every node at the same time. Unlike the state, it is kept across reboots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SavedConfig {
    profile: Profile,
    policy: Policy,
    /// The last response of the kubelet, if that is the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) configz: Option<Effective>,
}

impl SavedConfig {
    /// Returns this policy, with the last response of the kubelet.
    fn new(policy: &Policy, configuration: &Configuration) -> Self {
        let (profile, policy) = (policy.rules.profile(), policy.clone());
        Self { profile, policy, configz: configuration.kubelet.effective.clone() }
    }

    fn of(configuration: &Configuration) -> Self {
        Self::new(&configuration.policy, configuration)
    }

    /// Reads the file of the previous agent; `None` if there is none.
    ///
    /// # Errors
    /// The file and the cause, if it cannot be used.
    pub(crate) fn read(state_dir: &Path) -> Result<Option<Self>, String> {
        StateFile::at(state_dir.join(CONFIG_FILE)).read_json()
    }

    /// Writes the file again if it has this policy, but another configuration of the kubelet.
    fn update(&self, state_dir: &Path) {
        if let Ok(Some(saved)) = Self::read(state_dir)
            && saved.policy == self.policy
            && saved != *self
        {
            self.save(state_dir);
        }
    }

    /// Writes the file. If the disk is full or read-only, nothing else is affected.
    fn save(&self, state_dir: &Path) {
        if let Err(error) = StateFile::at(state_dir.join(CONFIG_FILE)).write_json(self) {
            tracing::warn!(error = chain(&error), "the configuration in force cannot be saved for a restart");
        }
    }
}

/// Returns the policy that was in force when the previous agent ended, if the files differ from it now. Without a
/// saved configuration there is nothing to compare the files with. With `accept` the files count at once.
fn previous_policy(state_dir: &Path, configured: &Configuration, accept: bool) -> Option<Policy> {
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

/// Returns the fields whose changes take effect when the agent is restarted. `has_reclaimed` tells whether node
/// reclaim was configured at the start.
fn fields_awaiting_restart(
    started: &Configuration,
    has_reclaimed: bool,
    configured: &Configuration,
) -> Vec<&'static str> {
    let mut fields = started.changed_at_start(configured);
    if reclaims(&configured.policy) && !has_reclaimed {
        fields.push("eviction.nodeReclaim");
    }
    fields
}

/// Returns whether a policy has the agent remove images and containers.
pub(super) fn reclaims(policy: &Policy) -> bool {
    policy.eviction.node_reclaim == NodeReclaim::Cri
}

/// Reloads the configuration on a blocking thread.
pub(crate) struct Reload {
    files: ConfigurationFiles,
    hangup: Signal,
    watch: FileWatch,
    reading: Option<(ReloadReason, JoinHandle<Result<Configuration, Failure>>)>,
    /// The configuration that the agent was started with. A restart is needed to change some of its settings.
    started: Configuration,
    /// Whether node reclaim was configured at the start. Its thread is started with the agent.
    has_reclaimed: bool,
    /// The last valid configuration of the files. It is in force or was proposed, unless `is_unproposed`.
    last: Configuration,
    /// Whether `last` is still to be proposed.
    is_unproposed: bool,
    /// Whether the files have become invalid since `last`.
    is_invalid: bool,
    /// When the configuration of the kubelet is requested again; `None` if it is not the source.
    next_request: Option<Instant>,
    state_dir: Option<PathBuf>,
    /// The last write of the saved configuration. The next one begins when it has ended.
    last_write: Option<JoinHandle<()>>,
}

impl Reload {
    /// Returns the policy to start with and the `Reload` that finds the changes of the configuration. If the files
    /// changed since the previous agent ended, they are the first change; only the settings that take effect at a
    /// start are those of the files. Needs a tokio runtime.
    ///
    /// # Errors
    /// Everything that is wrong with the configuration, or if SIGHUP cannot be watched.
    pub(crate) fn start(options: &Options) -> Result<(Policy, Self), Failure> {
        let last_configz = options.saved_kubelet_config();
        let files = ConfigurationFiles { last_configz, ..options.configuration.clone() };
        // Before the files are read, so that no change is missed.
        let watch = FileWatch::of(files.agent.as_deref(), FILE_DEBOUNCE);
        let last = files.load()?;
        let hangup = watch_signal(SignalKind::hangup())?;
        let state_dir = options.persistent_dir(last.agent.action());
        let previous =
            state_dir.as_deref().and_then(|dir| previous_policy(dir, &last, options.apply_config_now));
        match &previous {
            // Settings and notes are those of the files, which are not in force yet.
            Some(policy) => tracing::info!(profile = policy.rules.profile().name(), "configuration"),
            None => last.log(),
        }
        let mut it = Self {
            files,
            hangup,
            watch,
            reading: None,
            started: last.clone(),
            has_reclaimed: reclaims(&last.policy) || previous.as_ref().is_some_and(reclaims),
            is_unproposed: previous.is_some(),
            is_invalid: false,
            next_request: None,
            state_dir,
            last_write: None,
            last,
        };
        it.record_source();
        Ok((previous.unwrap_or_else(|| it.last.policy.clone()), it))
    }

    /// Returns the last valid configuration of the files, which may not be in force yet.
    pub(crate) fn configuration(&self) -> &Configuration {
        &self.last
    }

    /// Waits for the next change. Returns the new policy, or everything that is wrong with the configuration.
    /// May be cancelled.
    pub(crate) async fn changed(&mut self) -> Result<Policy, Vec<String>> {
        loop {
            if std::mem::take(&mut self.is_unproposed) {
                return Ok(self.propose());
            }
            let Some((why, reading)) = &mut self.reading else {
                let why = self.next().await;
                let files = self.files.clone();
                self.reading = Some((why, tokio::task::spawn_blocking(move || files.load())));
                continue;
            };
            let (why, read) = (*why, reading.await);
            self.reading = None;
            match read {
                Ok(Ok(configuration)) => {
                    let before = std::mem::replace(&mut self.last, configuration);
                    self.record_source();
                    let now = &self.last;
                    let is_same_policy = now.policy == before.policy;
                    let is_changed = !is_same_policy || !before.changed_at_start(now).is_empty();
                    let is_new_fallback = now.kubelet.is_fallback && !before.kubelet.is_fallback;
                    if is_same_policy && now.kubelet.effective != before.kubelet.effective {
                        // The engine does not apply the same policy again, so that `save` is not called.
                        self.write(SavedConfig::of(now), SavedConfig::update);
                    }
                    // After SIGHUP the result is reported in any case.
                    if std::mem::take(&mut self.is_invalid) || is_changed || why == ReloadReason::Signal {
                        return Ok(self.propose());
                    }
                    if is_new_fallback {
                        self.last.notes.iter().for_each(|note| tracing::warn!(note, "configuration"));
                    }
                }
                Ok(Err(failure)) if why == ReloadReason::Kubelet => {
                    self.next_request = Some(Instant::now() + CONFIGZ_RETRY_INTERVAL);
                    // The error may be in the agent's file as well. That was reported when the file changed.
                    for cause in failure.into_causes().into_iter().filter(|_| !self.is_invalid) {
                        tracing::warn!(
                            cause,
                            "cannot read the configuration: the previous one stays in force"
                        );
                    }
                }
                Ok(Err(failure)) => {
                    self.is_invalid = true;
                    return Err(failure.into_causes());
                }
                Err(error) => return Err(vec![format!("read the configuration: {error}")]),
            }
        }
    }

    /// Records the source of the kubelet's settings. The last response of the kubelet counts until there is
    /// another one.
    fn record_source(&mut self) {
        let KubeletSource { effective, is_fallback, .. } = &self.last.kubelet;
        let pause = if *is_fallback { CONFIGZ_RETRY_INTERVAL } else { CONFIGZ_INTERVAL };
        let is_configz = effective.is_some() || *is_fallback;
        self.next_request = is_configz.then(|| Instant::now() + pause);
        if effective.is_some() {
            self.files.last_configz.clone_from(effective);
        }
    }

    /// Waits for a reason to reload.
    async fn next(&mut self) -> ReloadReason {
        let Self { hangup, watch, next_request, .. } = self;
        let request_due = async {
            match next_request {
                Some(at) => sleep_until(*at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(()) = hangup.recv() => ReloadReason::Signal,
            () = watch.changed() => ReloadReason::Changed,
            () = request_due => ReloadReason::Kubelet,
            else => std::future::pending().await,
        }
    }

    /// Saves the policy that is in force now, with the last response of the kubelet. Another policy may have been
    /// proposed since.
    pub(crate) fn save(&mut self, in_force: &Policy) {
        self.write(SavedConfig::new(in_force, &self.last), SavedConfig::save);
    }

    fn write(&mut self, config: SavedConfig, write: fn(&SavedConfig, &Path)) {
        let Some(dir) = self.state_dir.clone() else { return };
        let before = self.last_write.take();
        self.last_write = Some(tokio::spawn(async move {
            if let Some(before) = before {
                drop(before.await);
            }
            drop(tokio::task::spawn_blocking(move || write(&config, &dir)).await);
        }));
    }

    /// Waits until the last configuration is saved.
    pub(crate) async fn saved(self) {
        if let Some(write) = self.last_write {
            drop(write.await);
        }
    }

    fn propose(&self) -> Policy {
        self.last.log();
        let waiting = fields_awaiting_restart(&self.started, self.has_reclaimed, &self.last);
        if !waiting.is_empty() {
            let fields = waiting.join(", ");
            tracing::warn!(fields, "these changes take effect when the agent is restarted");
        }
        self.last.policy.clone()
    }
}

#[cfg(test)]
mod tests {
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
        let [first, last] =
            [Profile::Kubelet, Profile::Enhanced].map(|profile| configuration(folder.path(), profile));
        let mut reload = Reload {
            files: ConfigurationFiles::default(),
            hangup: watch_signal(SignalKind::hangup()).unwrap(),
            watch: FileWatch::of(None, FILE_DEBOUNCE),
            reading: None,
            started: last.clone(),
            has_reclaimed: false,
            last: last.clone(),
            is_unproposed: false,
            is_invalid: false,
            next_request: None,
            state_dir: Some(state_dir.clone()),
            last_write: None,
        };
        for _ in 0..20 {
            (0..9).for_each(|_| reload.save(&first.policy));
            reload.save(&last.policy);
            reload.last_write.take().unwrap().await.unwrap();
            assert_eq!(SavedConfig::read(&state_dir), Ok(Some(SavedConfig::of(&last))));
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
    fn a_change_that_waits_for_a_restart_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let before = configuration(folder.path(), Profile::Kubelet);
        let fields = |has_reclaimed, configured| fields_awaiting_restart(&before, has_reclaimed, configured);
        assert_eq!(fields(false, &before), Vec::<&str>::new());
        let mut after = before.clone();
        after.policy.eviction.node_reclaim = NodeReclaim::Cri;
        after.agent.memory_limits.warn_percent += 1;
        assert_eq!(fields(false, &after), ["memoryLimits", "eviction.nodeReclaim"]);
        assert_eq!(fields(true, &after), ["memoryLimits"]);
        assert_eq!(fields(true, &before), Vec::<&str>::new(), "it is turned off at once");
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
