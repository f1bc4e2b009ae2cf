//! Reloads the configuration at SIGHUP, when its file changes, and periodically from the kubelet.

use std::sync::Arc;
use std::time::Duration;

use eviction_core::policy::Policy;
use eviction_core::policy::eviction_settings::NodeReclaim;
use tokio::signal::unix::{Signal, SignalKind};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::daemon::configuration::{Configuration, ConfigurationFiles, Options};
use crate::daemon::saved_config::ConfigWriter;
use crate::daemon::watch_signal;
use crate::error::Failure;
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
    config_writer: ConfigWriter,
}

impl Reload {
    /// Returns the channel with the policy in force ([`ConfigWriter::start`]), and the `Reload` that finds the changes
    /// of the configuration. If the files changed since the previous agent ended, they are the first change; only the
    /// settings that take effect at a start are those of the files. Needs a tokio runtime.
    ///
    /// # Errors
    /// Everything that is wrong with the configuration, or if SIGHUP cannot be watched.
    pub(crate) fn start(options: &Options) -> Result<(watch::Sender<Arc<Policy>>, Self), Failure> {
        let last_configz = options.saved_kubelet_config();
        let files = ConfigurationFiles { last_configz, ..options.configuration.clone() };
        // Before the files are read, so that no change is missed.
        let watch = FileWatch::of(files.agent.as_deref(), FILE_DEBOUNCE);
        let last = files.load()?;
        let hangup = watch_signal(SignalKind::hangup())?;
        let state_dir = options.persistent_dir(last.agent.action());
        let (config_writer, policy_in_force) =
            ConfigWriter::start(state_dir, &last, options.apply_config_now);
        let in_force = Arc::clone(&policy_in_force.borrow());
        let is_unproposed = *in_force != last.policy;
        match is_unproposed {
            // Settings and notes are those of the files, which are not in force yet.
            true => tracing::info!(profile = in_force.rules.profile().name(), "configuration"),
            false => last.log(),
        }
        let mut it = Self {
            files,
            hangup,
            watch,
            reading: None,
            started: last.clone(),
            has_reclaimed: reclaims(&last.policy) || reclaims(&in_force),
            is_unproposed,
            is_invalid: false,
            next_request: None,
            config_writer,
            last,
        };
        it.record_source();
        Ok((policy_in_force, it))
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
                    let is_changed = now.policy != before.policy || !before.changed_at_start(now).is_empty();
                    let is_new_fallback = now.is_fallback && !before.is_fallback;
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
        let Configuration { configz, is_fallback, .. } = &self.last;
        let pause = if *is_fallback { CONFIGZ_RETRY_INTERVAL } else { CONFIGZ_INTERVAL };
        let is_source = configz.is_some() || *is_fallback;
        self.next_request = is_source.then(|| Instant::now() + pause);
        if configz.is_some() {
            self.files.last_configz.clone_from(configz);
        }
        self.config_writer.set_configz(configz.as_ref());
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

    /// Waits until the last configuration is saved.
    pub(crate) async fn saved(self) {
        self.config_writer.finish().await;
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
    use eviction_core::policy::preferences::Profile;

    use super::*;
    use crate::daemon::saved_config::tests::configuration;

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
}
