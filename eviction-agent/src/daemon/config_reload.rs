//! Reads the configuration again at SIGHUP, when its file changes, and now and then from the kubelet; and saves it once it is
//! in force.

use std::path::{Path, PathBuf};
use std::time::Duration;

use eviction_config::Effective;
use eviction_core::policy::Policy;
use eviction_core::policy::preferences::Profile;
use eviction_kube::KubeletEndpoint;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::daemon::configuration::{Configuration, ConfigurationFiles, KubeletSource, Service};
use crate::daemon::kubelet_api::{KubeletAnswer, KubeletClient};
use crate::daemon::state::StateFile;
use crate::error::{Failure, chain};
use eviction_node::file_watch::FileWatch;

/// Why the configuration is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReloadReason {
    /// SIGHUP.
    Signal,
    /// Its file was changed.
    Changed,
    /// The configuration of the kubelet may have changed.
    Kubelet,
}

/// How often the configuration of the kubelet is requested: it changes only when the kubelet is restarted.
const ASK_AGAIN: Duration = Duration::from_secs(600);
/// How often while the kubelet does not respond.
const TRY_AGAIN: Duration = Duration::from_secs(30);

/// The parts of the last configuration that the next one is compared with.
fn baseline(configuration: &Configuration) -> (Policy, Profile, Service) {
    let Configuration { policy, profile, service, kubelet: _, settings: _, notes: _ } = configuration;
    (policy.clone(), *profile, service.clone())
}

/// When the configuration of the kubelet is requested again, if it is at all.
fn ask_again(kubelet: &KubeletSource) -> Option<Instant> {
    let pause = if kubelet.is_stand_in { TRY_AGAIN } else { ASK_AGAIN };
    kubelet.is_asked.then(|| Instant::now() + pause)
}

/// The file in a state directory.
pub(crate) const CONFIG_FILE: &str = "config.json";

/// The configuration in force, persisted over a restart: a start may bring a change as well, and one that reaches every node
/// at the same time. Unlike the state it outlives the boot.
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
    fn of(in_force: &Configuration) -> Self {
        let Configuration { policy, profile, kubelet, .. } = in_force;
        Self { profile: *profile, policy: policy.clone(), configz: kubelet.effective.clone() }
    }

    /// Reads the file of the agent before; `None` without one.
    ///
    /// # Errors
    /// The file and the cause, if it cannot be used.
    pub(crate) fn read(state_dir: &Path) -> Result<Option<Self>, String> {
        StateFile::at(state_dir.join(CONFIG_FILE)).read_json()
    }

    /// A disk that is full or read-only costs this and nothing else.
    fn write(&self, state_dir: &Path) -> std::io::Result<()> {
        StateFile::at(state_dir.join(CONFIG_FILE)).write_json(self)
    }
}

/// Reads the configuration again, on a thread for blocking work.
pub(crate) struct Reload {
    files: ConfigurationFiles,
    hangup: Signal,
    watch: FileWatch,
    reading: Option<(ReloadReason, JoinHandle<Result<Configuration, Failure>>)>,
    /// The last configuration; `None` after an invalid one.
    known: Option<(Policy, Profile, Service)>,
    ask_again: Option<Instant>,
    /// The kubelet did not respond to the last request.
    is_silent: bool,
    state_dir: Option<PathBuf>,
    /// What takes effect at a start alone, as it was then.
    service: Service,
    /// The configuration of the files at the start, which is to be proposed.
    unsaid: Option<Configuration>,
    /// What was proposed last.
    proposed: Option<Configuration>,
}

impl Reload {
    /// The configuration to start with, and what finds its changes: the first may be what the files are since the
    /// agent before ended. The watch was begun before the files were read. Needs a tokio runtime.
    ///
    /// # Errors
    /// If SIGHUP cannot be watched.
    pub(crate) fn start(
        files: ConfigurationFiles,
        state_dir: Option<PathBuf>,
        configured: Configuration,
        watch: FileWatch,
        accept: bool,
    ) -> Result<(Configuration, Self), Failure> {
        let hangup =
            signal(SignalKind::hangup()).map_err(|error| Failure::because("watch for signals", &error))?;
        let mut it = Self {
            files,
            hangup,
            watch,
            reading: None,
            known: Some(baseline(&configured)),
            ask_again: None,
            is_silent: false,
            state_dir,
            service: configured.service.clone(),
            unsaid: None,
            proposed: None,
        };
        it.note_source(&configured.kubelet);
        Ok(match it.former(&configured, accept) {
            Some(former) => {
                it.unsaid = Some(configured);
                (former, it)
            }
            None => (configured, it),
        })
    }

    /// The configuration that was in force when the agent before ended, if the files say something else now. Where
    /// nothing is saved, there is nothing to hold them against.
    fn former(&self, configured: &Configuration, accept: bool) -> Option<Configuration> {
        let dir = self.state_dir.as_deref()?;
        let former = SavedConfig::read(dir).unwrap_or_else(|cause| {
            tracing::warn!(cause, "the saved configuration cannot be used; the files count at once");
            None
        });
        let Some(SavedConfig { profile, policy, configz: _ }) = former.filter(|_| !accept) else {
            save(dir, configured);
            return None;
        };
        if policy == configured.policy {
            return None;
        }
        tracing::warn!("the configuration was changed since the agent ended; it is held against the present");
        let (service, kubelet) = (configured.service.clone(), configured.kubelet.clone());
        let (settings, notes) = Default::default();
        Some(Configuration { policy, profile, service, kubelet, settings, notes })
    }

    /// Waits for the next change; what the configuration is then, or everything that is wrong with it.
    /// May be cancelled.
    pub(crate) async fn changed(&mut self) -> Result<Policy, Vec<String>> {
        loop {
            if let Some(configuration) = self.unsaid.take() {
                return Ok(self.propose(configuration));
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
                    let was_silent = self.is_silent;
                    self.note_source(&configuration.kubelet);
                    let known = Some(baseline(&configuration));
                    let is_news = std::mem::replace(&mut self.known, known) != self.known;
                    // After SIGHUP the result is reported in any case.
                    if is_news || why == ReloadReason::Signal {
                        return Ok(self.propose(configuration));
                    }
                    if self.is_silent && !was_silent {
                        configuration.notes.iter().for_each(|note| tracing::warn!(note, "configuration"));
                    }
                }
                Ok(Err(failure)) if why == ReloadReason::Kubelet => {
                    self.ask_again = Some(Instant::now() + TRY_AGAIN);
                    for cause in failure.into_causes() {
                        tracing::warn!(cause, "the kubelet's configuration stays as it was");
                    }
                }
                Ok(Err(failure)) => {
                    self.known = None;
                    return Err(failure.into_causes());
                }
                Err(error) => return Err(vec![format!("read the configuration: {error}")]),
            }
        }
    }

    /// Notes the source of the settings of the kubelet. Its last response counts until there is another one.
    fn note_source(&mut self, kubelet: &KubeletSource) {
        self.ask_again = ask_again(kubelet);
        self.is_silent = kubelet.is_stand_in;
        if let Some(effective) = &kubelet.effective {
            self.files.last_heard = Some(effective.clone());
        }
    }

    /// Waits for a reason to read it.
    async fn next(&mut self) -> ReloadReason {
        let Self { hangup, watch, ask_again, .. } = self;
        let asked = async {
            match ask_again {
                Some(at) => sleep_until(*at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(()) = hangup.recv() => ReloadReason::Signal,
            () = watch.changed() => ReloadReason::Changed,
            () = asked => ReloadReason::Kubelet,
            else => std::future::pending().await,
        }
    }

    /// What was proposed last is in force.
    pub(crate) fn save(&mut self) {
        if let (Some(dir), Some(in_force)) = (self.state_dir.clone(), self.proposed.take()) {
            tokio::task::spawn_blocking(move || save(&dir, &in_force));
        }
    }

    fn propose(&mut self, configuration: Configuration) -> Policy {
        configuration.log();
        let waiting = self.service.changed(&configuration.service);
        if !waiting.is_empty() {
            let fields = waiting.join(", ");
            tracing::warn!(fields, "what was changed there takes effect when the agent is started again");
        }
        let policy = configuration.policy.clone();
        self.proposed = Some(configuration);
        policy
    }
}

fn save(state_dir: &Path, in_force: &Configuration) {
    if let Err(error) = SavedConfig::of(in_force).write(state_dir) {
        tracing::warn!(error = chain(&error), "the configuration in force cannot be saved for a restart");
    }
}

/// Requests the configuration of the kubelet. Blocks; not to be called on a runtime's thread.
///
/// # Errors
/// Why there is none, with what can be done about it.
pub(crate) fn read(kubelet: &KubeletClient) -> Result<Effective, Failure> {
    let runtime = crate::daemon::start_runtime()?;
    let KubeletAnswer { operation, url, body } = runtime.block_on(kubelet.get(KubeletEndpoint::Configz))?;
    Effective::parse(&body, &url).map_err(|why| Failure::failed(format!("{operation}: {why}")))
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
