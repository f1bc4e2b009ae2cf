//! What the agent is configured with: the kubelet's settings, its own file, and the command line.

mod kubelet;

use std::net::SocketAddr;
use std::path::PathBuf;

use super::capacities::NodeFacts;
use super::configz::Caller;
use crate::error::Failure;
use eviction_config::{
    Action, ActionSettings, AgentConfiguration, DryRun, Effective, EvictionRequests, KubeletConfiguration,
    MarginMode, MemoryLimits, MetricsSettings, Probes, Problems, Server, Setting, ThresholdSource,
    load_agent,
};
use eviction_core::policy::Policy;
use eviction_core::policy::preferences::Profile;
use kubelet::Kubelet;
pub(crate) use kubelet::KubeletSaid;

/// Where the configuration is, and what the command line says in its place.
#[derive(Clone, Debug, Default)]
pub struct ConfigurationFiles {
    /// KubeletConfiguration; absent: what the AgentConfiguration says, else the kubelet's defaults.
    pub kubelet: Option<PathBuf>,
    /// Folder with drop-in files over it.
    pub kubelet_drop_ins: Option<PathBuf>,
    /// Whether and how the kubelet itself is asked, in the place of what the AgentConfiguration says.
    pub configz: AskConfigz,
    /// Who asks it.
    pub caller: Caller,
    /// What it said last to this agent.
    pub last_heard: Option<Effective>,
    /// What it said last, as it is remembered over a restart.
    pub last_said: Option<PathBuf>,
    /// These are copies, of what was in force: nobody is asked.
    pub are_copies: bool,
    /// AgentConfiguration; absent: the agent's defaults.
    pub agent: Option<PathBuf>,
    /// Profile in the place of that of the AgentConfiguration.
    pub profile: Option<Profile>,
    /// Action in the place of that of the AgentConfiguration.
    pub action: Option<Action>,
    /// Dry run in the place of that of the AgentConfiguration.
    pub dry_run: Option<DryRun>,
    /// Where HTTP is served, in the place of what it says.
    pub listen_address: Option<SocketAddr>,
    /// What the node has, and whether a kubelet acts on it as well.
    pub node: NodeFacts,
}

/// What the command line says of asking the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AskConfigz {
    /// It is to be asked, whatever the source is in the file.
    pub ask: bool,
    /// File with those who vouch for its serving certificate.
    pub certificate_authority: Option<PathBuf>,
    /// Any certificate will do.
    pub insecure: bool,
}

/// A configuration without errors.
#[derive(Clone, Debug)]
pub(crate) struct Configuration {
    /// What the engine decides by.
    pub(crate) policy: Policy,
    /// Whose decisions.
    pub(crate) profile: Profile,
    /// What takes effect at a start alone.
    pub(crate) service: Service,
    /// Where the kubelet's settings were found.
    pub(crate) kubelet: KubeletSaid,
    /// Every value of the agent's configuration, then of the kubelet's.
    pub(crate) settings: Vec<Setting>,
    /// What is accepted but will surprise, each with its file.
    pub(crate) notes: Vec<String>,
}

/// What takes effect at a start alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Service {
    pub(crate) action: ActionSettings,
    pub(crate) eviction_requests: EvictionRequests,
    pub(crate) memory_limits: MemoryLimits,
    pub(crate) metrics: MetricsSettings,
    pub(crate) server: Server,
    pub(crate) probes: Probes,
}

impl Service {
    /// The fields of the AgentConfiguration in which another one differs.
    pub(crate) fn changed(&self, other: &Self) -> Vec<&'static str> {
        let Self {
            action: ActionSettings { action, dry_run },
            eviction_requests,
            memory_limits,
            metrics,
            server,
            probes,
        } = self;
        let differs = [
            ("action", *action != other.action.action),
            ("dryRun", *dry_run != other.action.dry_run),
            ("evictionRequests", *eviction_requests != other.eviction_requests),
            ("memoryLimits", *memory_limits != other.memory_limits),
            ("metrics", *metrics != other.metrics),
            ("server", *server != other.server),
            ("probes", *probes != other.probes),
        ];
        differs.into_iter().filter_map(|(field, differs)| differs.then_some(field)).collect()
    }
}

impl ConfigurationFiles {
    /// Reads all of it, and asks the kubelet if that is wanted. Blocks; not to be called on a runtime's
    /// thread.
    ///
    /// # Errors
    /// Everything that is wrong with any of it.
    pub(crate) fn load(&self) -> Result<Configuration, Failure> {
        let agent = load_agent(self.agent.as_deref()).map(|agent| self.over(agent)).and_then(|agent| {
            let checked = agent.action().check().map_err(|problem| problem.in_file(agent.file.as_deref()));
            checked.map_err(Problems::from).map(|()| agent)
        });
        let (agent, kubelet) = match agent {
            Ok(agent) => {
                let kubelet = Kubelet::find(self, &agent)?;
                (agent, kubelet)
            }
            Err(wrong) => {
                // What is wrong with the other files is said with it.
                let mut causes = kubelet::problems_of_files(self);
                causes.extend(problems("agent", wrong));
                return Err(Failure::all(causes));
            }
        };
        let Kubelet { configuration, said, notes: asked } = kubelet;
        let KubeletConfiguration { mut policy, settings, notes, .. } = configuration;
        if agent.thresholds.source != ThresholdSource::Inline {
            policy.kubelet_thresholds = policy.thresholds.clone();
        }
        if acts_ahead(&agent, &self.node) {
            let raised = agent.threshold_margin.apply(policy.thresholds, self.node.capacities).map_err(
                |Problems(wrong)| {
                    let wrong = wrong.into_iter().map(|problem| problem.in_file(agent.file.as_deref()));
                    Failure::all(problems("agent", Problems(wrong.collect())).collect())
                },
            );
            policy.thresholds = raised?;
        }
        let policy = agent.over(policy);
        Ok(Configuration {
            policy,
            profile: agent.profile,
            service: Service {
                action: agent.action(),
                eviction_requests: agent.eviction_requests,
                memory_limits: agent.memory_limits,
                metrics: agent.metrics,
                server: agent.server,
                probes: agent.probes,
            },
            kubelet: said,
            settings: agent.settings.into_iter().chain(settings).collect(),
            notes: asked
                .into_iter()
                .chain(agent.notes.iter().chain(&notes).map(ToString::to_string))
                .collect(),
        })
    }

    /// The AgentConfiguration with what the command line says in its place.
    fn over(&self, mut agent: AgentConfiguration) -> AgentConfiguration {
        let AskConfigz { ask, certificate_authority, insecure } = &self.configz;
        if *ask {
            let source = ThresholdSource::Configz;
            agent.override_setting("thresholds.source", "Configz".to_owned(), |it| {
                it.thresholds.source = source
            });
        }
        if let Some(file) = certificate_authority {
            let path = "thresholds.configz.certificateAuthority";
            agent.override_setting(path, file.display().to_string(), |it| {
                it.thresholds.configz.certificate_authority = Some(file.clone());
            });
        }
        if *insecure {
            let path = "thresholds.configz.insecureSkipTLSVerify";
            agent.override_setting(path, "true".to_owned(), |it| {
                it.thresholds.configz.insecure_skip_tls_verify = true;
            });
        }
        if let Some(profile) = self.profile {
            agent.override_setting("profile", profile.name().to_owned(), |it| it.profile = profile);
        }
        if let Some(action) = self.action {
            agent.override_setting("action", format!("{action:?}"), |it| it.action = action);
        }
        if let Some(dry_run) = self.dry_run {
            agent.override_setting("dryRun", format!("{dry_run:?}"), |it| it.dry_run = dry_run);
        }
        if let Some(listen_address) = self.listen_address {
            agent.override_setting("server.listenAddress", listen_address.to_string(), |it| {
                it.server = Server { listen_address };
            });
        }
        agent
    }
}

/// Whether the thresholds are raised: where a kubelet acts on them itself, the agent is to be first.
fn acts_ahead(agent: &AgentConfiguration, node: &NodeFacts) -> bool {
    match agent.threshold_margin.mode {
        MarginMode::Always => true,
        MarginMode::Never => false,
        MarginMode::BesideKubelet => {
            let are_the_kubelets = agent.thresholds.source != ThresholdSource::Inline;
            are_the_kubelets && (node.in_cluster || agent.action == Action::Evict)
        }
    }
}

impl Configuration {
    /// Logs what counts, and what may surprise.
    pub(crate) fn log(&self) {
        let Self { policy: _, profile, service: _, kubelet: _, settings, notes } = self;
        tracing::info!(profile = profile.name(), "configuration");
        for setting in settings {
            match setting.origin.is_default() {
                true => tracing::debug!(%setting, "configuration"),
                false => tracing::info!(%setting, "configuration"),
            }
        }
        for note in notes {
            tracing::warn!(note, "configuration");
        }
    }
}

fn problems(whose: &str, Problems(problems): Problems) -> impl Iterator<Item = String> {
    let start = format!("read {whose} configuration");
    problems.into_iter().map(move |problem| format!("{start}: {problem}"))
}
