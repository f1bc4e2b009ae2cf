//! The configuration of the agent: the kubelet's settings, the agent's file and the command line.

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use eviction_config::{
    Action, ActionSettings, AgentConfiguration, Capacities, Effective, KubeletConfiguration, KubeletFiles,
    MarginMode, PodStorageSource, Problems, Setting, ThresholdSource, load_agent, load_kubelet,
};
use eviction_core::policy::preferences::Profile;
use eviction_core::policy::{Policy, Threshold};
use eviction_core::units::{GoDuration, ThresholdValue};
use eviction_node::backend::BackendSelection;
use eviction_node::fs::FsPaths;
use serde::Serialize;
use serde_json::Value;

use crate::daemon::kubelet_api::{self, KubeletClient};
use crate::daemon::saved_config::SavedConfig;
use crate::error::Failure;

/// The files of the configuration, and the options that override them.
#[derive(Clone, Debug, Default)]
pub struct ConfigurationFiles {
    /// KubeletConfiguration file; absent: the settings of the AgentConfiguration, else the kubelet's defaults.
    pub kubelet: Option<PathBuf>,
    /// Folder with drop-in files for the KubeletConfiguration.
    pub kubelet_drop_ins: Option<PathBuf>,
    /// Kubeconfig for the API server and the kubelet; absent: the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// The name of the node's object.
    pub node_name: Option<String>,
    /// An address of the node, for requests to the kubelet.
    pub node_ip: Option<String>,
    /// The last response of `/configz`, to this agent or the previous one.
    pub last_configz: Option<Effective>,
    /// AgentConfiguration file; absent: the agent's defaults.
    pub agent: Option<PathBuf>,
    /// The fields of the AgentConfiguration that options set, such as `server.listenAddress`, with their values.
    pub overrides: Vec<(&'static str, Value)>,
    /// File with the CA certificates for the kubelet's serving certificate; overrides the AgentConfiguration.
    pub kubelet_certificate_authority: Option<PathBuf>,
    /// Directory of recordings; overrides that of the AgentConfiguration.
    pub recorder_directory: Option<PathBuf>,
    /// Whether pods come from the API server: then a kubelet acts on the same thresholds.
    pub in_cluster: bool,
    /// The capacities of the node.
    pub capacities: Capacities,
}

/// A valid configuration.
#[derive(Clone, Debug)]
pub(crate) struct Configuration {
    /// The policy of the engine.
    pub(crate) policy: Policy,
    /// The agent's settings, with the kubelet's CRI socket if the agent has none. Its list of settings has those of
    /// the kubelet as well.
    pub(crate) agent: AgentConfiguration,
    /// The kubelet's `imageMinimumGCAge`.
    pub(crate) min_image_age: GoDuration,
    /// The kubelet, if it is the source of the pods' disk usage.
    pub(crate) stats_summary: Option<KubeletClient>,
    /// The response of `/configz` of the kubelet, if that is the source of its settings and has ever responded.
    pub(crate) configz: Option<Effective>,
    /// Whether `/configz` is the source and did not respond, so that its last response or the kubelet's files are used.
    pub(crate) is_fallback: bool,
    /// Warnings: settings that are accepted but may surprise, each with its file.
    pub(crate) notes: Vec<String>,
}

impl ConfigurationFiles {
    /// Reads all files, and requests the configuration of the kubelet if that is the source. Blocks; not to be
    /// called on a runtime's thread.
    ///
    /// # Errors
    /// Everything that is wrong with the configuration.
    pub(crate) fn load(&self) -> Result<Configuration, Failure> {
        let mut agent = self.load_agent().map_err(|wrong| {
            // Problems of the other files are reported as well.
            let read = load_kubelet(self.kubelet.as_deref(), self.kubelet_drop_ins.as_deref());
            let of_files = read.err().into_iter().flat_map(|wrong| problems("kubelet", wrong));
            Failure::all(of_files.chain(problems("agent", wrong)).collect())
        })?;
        let mut fallback_notes = Vec::new();
        let (configuration, configz) = self.find_kubelet_settings(&agent, &mut fallback_notes)?;
        let KubeletConfiguration {
            mut policy,
            container_runtime_endpoint,
            image_minimum_gc_age,
            settings,
            notes,
        } = configuration;
        if agent.thresholds.source != ThresholdSource::Inline {
            policy.kubelet_thresholds = policy.thresholds.clone();
        }
        if raises_thresholds(&agent, self.in_cluster) {
            let raised = agent.threshold_margin.apply(policy.thresholds, self.capacities);
            policy.thresholds = raised.map_err(|Problems(wrong)| {
                let wrong = wrong.into_iter().map(|problem| problem.in_file(agent.file.as_deref()));
                failure_of("agent", Problems(wrong.collect()))
            })?;
        }
        let policy = agent.over(policy);
        agent.reclaim.cri_socket = agent.reclaim.cri_socket.or(container_runtime_endpoint);
        agent.settings.extend(settings);
        let notes = agent.notes.iter().chain(&notes).map(ToString::to_string);
        let is_summary = agent.pod_storage.source == PodStorageSource::Summary;
        Ok(Configuration {
            policy,
            min_image_age: image_minimum_gc_age,
            stats_summary: is_summary.then(|| self.kubelet_client(&agent)),
            configz,
            is_fallback: !fallback_notes.is_empty(),
            notes: fallback_notes.into_iter().chain(notes).collect(),
            agent,
        })
    }

    /// Reads the AgentConfiguration, applies the overrides of the command line, and checks the result.
    fn load_agent(&self) -> Result<AgentConfiguration, Problems> {
        let mut agent = load_agent(self.agent.as_deref())?;
        for (field, value) in &self.overrides {
            agent.override_setting(field, value.clone())?;
        }
        // Paths come last: those that are not UTF-8 cannot be in the form in which other fields are set.
        if let Some(file) = &self.kubelet_certificate_authority {
            let path = "thresholds.configz.certificateAuthority";
            agent.override_path(path, file, |it| &mut it.thresholds.configz.certificate_authority);
        }
        if let Some(directory) = &self.recorder_directory {
            agent.override_path("recorder.directory", directory, |it| &mut it.recorder.directory);
        }
        agent.action().check().map_err(|problem| problem.in_file(agent.file.as_deref()))?;
        Ok(agent)
    }

    /// Returns the kubelet's settings from the source that the AgentConfiguration names. If that is `/configz`, they are
    /// those of its response, which is returned as well; else of its last response, else of the kubelet's files. Adds
    /// a warning to `notes` if another source than the configured one is used.
    ///
    /// # Errors
    /// Everything that is wrong with the settings, or why there are none.
    fn find_kubelet_settings(
        &self,
        agent: &AgentConfiguration,
        notes: &mut Vec<String>,
    ) -> Result<(KubeletConfiguration, Option<Effective>), Failure> {
        let files = self.kubelet_files(agent);
        match agent.thresholds.source {
            ThresholdSource::Files => return Ok((from_files(&files)?, None)),
            ThresholdSource::Inline => {
                let configuration = agent.resolve_inline().map_err(|wrong| failure_of("agent", wrong))?;
                return Ok((configuration, None));
            }
            ThresholdSource::Configz => {}
        }
        let mut warn = |why: Failure, counts| {
            notes.extend(why.into_causes().into_iter().map(|cause| format!("{cause}; {counts}")));
        };
        let effective = match (kubelet_api::read_configz(&self.kubelet_client(agent)), &self.last_configz) {
            (Ok(effective), _) => effective,
            (Err(why), Some(last)) => {
                warn(why, "what it said last counts");
                last.clone()
            }
            (Err(why), None) if files == KubeletFiles::default() => return Err(why),
            (Err(why), None) => {
                warn(why, "its files count, without its command line");
                return Ok((from_files(&files)?, None));
            }
        };
        let configuration = effective.resolve().map_err(|wrong| failure_of("kubelet", wrong))?;
        Ok((configuration, Some(effective)))
    }

    /// Returns the kubelet's files. The command line overrides the AgentConfiguration.
    fn kubelet_files(&self, agent: &AgentConfiguration) -> KubeletFiles {
        let KubeletFiles { config, config_dir } = &agent.thresholds.files;
        KubeletFiles {
            config: self.kubelet.as_ref().or(config.as_ref()).cloned(),
            config_dir: self.kubelet_drop_ins.as_ref().or(config_dir.as_ref()).cloned(),
        }
    }

    fn kubelet_client(&self, agent: &AgentConfiguration) -> KubeletClient {
        KubeletClient {
            kubeconfig: self.kubeconfig.clone(),
            node_name: self.node_name.clone(),
            node_ip: self.node_ip.clone(),
            configz: agent.thresholds.configz.clone(),
        }
    }
}

fn from_files(KubeletFiles { config, config_dir }: &KubeletFiles) -> Result<KubeletConfiguration, Failure> {
    load_kubelet(config.as_deref(), config_dir.as_deref()).map_err(|wrong| failure_of("kubelet", wrong))
}

/// Returns whether the thresholds are raised: where a kubelet acts on them as well, the agent must act first.
fn raises_thresholds(agent: &AgentConfiguration, in_cluster: bool) -> bool {
    match agent.threshold_margin.mode {
        MarginMode::Always => true,
        MarginMode::Never => false,
        MarginMode::BesideKubelet => {
            let are_the_kubelets = agent.thresholds.source != ThresholdSource::Inline;
            are_the_kubelets && (in_cluster || agent.action == Action::Evict)
        }
    }
}

impl Configuration {
    /// Returns the fields of the AgentConfiguration that take effect only at a start, and in which `other` differs.
    pub(crate) fn changed_at_start(&self, other: &Self) -> Vec<&'static str> {
        let (agent, new) = (&self.agent, &other.agent);
        let is_reclaim_changed = agent.reclaim != new.reclaim || self.min_image_age != other.min_image_age;
        let differs = [
            ("action", agent.action != new.action),
            ("dryRun", agent.dry_run != new.dry_run),
            ("evictionRequests", agent.eviction_requests != new.eviction_requests),
            ("memoryLimits", agent.memory_limits != new.memory_limits),
            ("metrics", agent.metrics != new.metrics),
            ("server", agent.server != new.server),
            ("probes", agent.probes != new.probes),
            ("reclaim", is_reclaim_changed),
            ("podStorage", self.stats_summary != other.stats_summary),
            ("recorder", agent.recorder != new.recorder),
        ];
        differs.into_iter().filter_map(|(field, differs)| differs.then_some(field)).collect()
    }

    /// Logs the settings in effect and the warnings.
    pub(crate) fn log(&self) {
        tracing::info!(profile = self.policy.rules.profile().name(), "configuration");
        for setting in &self.agent.settings {
            match setting.origin.is_default() {
                true => tracing::debug!(%setting, "configuration"),
                false => tracing::info!(%setting, "configuration"),
            }
        }
        for note in &self.notes {
            tracing::warn!(note, "configuration");
        }
    }
}

fn problems(subject: &str, Problems(problems): Problems) -> impl Iterator<Item = String> {
    let start = format!("read {subject} configuration");
    problems.into_iter().map(move |problem| format!("{start}: {problem}"))
}

/// Returns the failure of reading an invalid configuration, with all problems.
pub(crate) fn failure_of(subject: &str, wrong: Problems) -> Failure {
    Failure::all(problems(subject, wrong).collect())
}

/// The effective configuration.
#[derive(Debug, Serialize)]
pub struct EffectiveConfig {
    /// The profile of the decisions.
    pub profile: Profile,
    /// The thresholds of the agent after all settings are applied.
    pub thresholds: Vec<EffectiveThreshold>,
    /// Every value, and where it came from.
    pub settings: Vec<Setting>,
    /// Warnings: settings that are accepted but may surprise.
    pub notes: Vec<String>,
}

/// A threshold of the agent.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveThreshold {
    /// The name of the signal.
    pub signal: &'static str,
    /// Whether `run` watches the signal.
    pub watched: bool,
    /// The threshold value, a quantity or a percentage. The threshold is met when less is available.
    pub below: String,
    /// How long the threshold must be met; absent for a hard threshold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_period: Option<String>,
    /// How much more must be available before the threshold counts as resolved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_reclaim: Option<String>,
}

impl EffectiveConfig {
    pub(crate) fn of(configuration: Configuration) -> Self {
        let Configuration { policy, agent, notes, .. } = configuration;
        let thresholds = policy.thresholds.iter().map(effective_threshold).collect();
        Self { profile: policy.rules.profile(), thresholds, settings: agent.settings, notes }
    }
}

fn effective_threshold(threshold: &Threshold) -> EffectiveThreshold {
    let Threshold { signal, value, grace_period, min_reclaim } = threshold;
    EffectiveThreshold {
        signal: signal.name(),
        watched: true,
        below: format_value(value),
        grace_period: (!threshold.is_hard()).then(|| grace_period.to_string()),
        min_reclaim: min_reclaim.as_ref().map(format_value),
    }
}

fn format_value(value: &ThresholdValue) -> String {
    match value {
        ThresholdValue::Quantity(quantity) => quantity.to_string(),
        // Rounded to the precision of a 32-bit share.
        ThresholdValue::Percentage(share) => format!("{}%", (f64::from(*share) * 1e6).round() / 1e4),
    }
}

/// Options of `run`.
#[derive(Clone, Debug)]
pub struct Options {
    /// The files of the configuration.
    pub configuration: ConfigurationFiles,
    /// Directory for state that outlives the process: the state of this boot and the configuration in force.
    pub state_dir: Option<PathBuf>,
    /// Unix socket of the local API.
    pub socket: Option<PathBuf>,
    /// Whether changes of the configuration take effect at once.
    pub apply_config_now: bool,
    /// PodList file.
    pub pods_file: Option<PathBuf>,
    /// The cgroup that represents the node.
    pub cgroup_root: PathBuf,
    /// The memory of the node in bytes.
    pub memory_capacity: Option<u64>,
    /// The number of process ids of the node.
    pub pid_capacity: Option<u64>,
    /// The paths of the node's disks.
    pub disks: FsPaths,
    /// Whether event lines are JSON instead of text.
    pub json_lines: bool,
    /// Backends that are selected or disabled.
    pub choice: BackendSelection,
    /// Whether the debug messages of the BPF programs are logged.
    pub bpf_debug_log: bool,
}

/// The default state directory of an agent in a pod. It should be in memory: eviction requests wait until the
/// state is written.
pub(super) const STATE_DIR: &str = "/run/eviction-agent";

impl Options {
    /// Returns the state directory of an agent with this action, if it has one. The socket of the local API is
    /// there, in a dry run as well.
    pub(super) fn state_dir(&self, action: ActionSettings) -> Option<PathBuf> {
        let uses_server = self.configuration.in_cluster || action.requests_evictions();
        let in_pod = self.configuration.kubeconfig.is_none() && uses_server;
        self.state_dir.clone().or_else(|| in_pod.then(|| STATE_DIR.into()))
    }

    /// Returns the directory in which state is persisted; `None` if none is. A dry run persists nothing in the
    /// default directory: an acting agent on the same node may use it.
    pub(super) fn persistent_dir(&self, action: ActionSettings) -> Option<PathBuf> {
        self.state_dir(action).filter(|_| self.state_dir.is_some() || !action.is_dry())
    }

    /// Returns the configuration that the kubelet reported to the previous agent. The action is part of the
    /// configuration, and therefore not known yet.
    pub(super) fn saved_kubelet_config(&self) -> Option<Effective> {
        let dir = self.state_dir(ActionSettings::default())?;
        // An unusable file is reported where the policy is read.
        SavedConfig::read(&dir).ok()??.configz
    }
}
