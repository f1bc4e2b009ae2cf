//! What the agent is configured with: the kubelet's files, its own, and the command line.

use std::path::PathBuf;

use super::failure::Failure;
use crate::config::{
    AgentConfiguration, HookPreferences, KubeletConfiguration, Problems, Setting, load_agent, load_kubelet,
};
use crate::core::policy::Policy;
use crate::core::preferences::Profile;

/// Where the configuration is.
#[derive(Clone, Debug, Default)]
pub struct ConfigurationFiles {
    /// KubeletConfiguration; absent: the kubelet's defaults.
    pub kubelet: Option<PathBuf>,
    /// Folder with drop-in files over it.
    pub kubelet_drop_ins: Option<PathBuf>,
    /// AgentConfiguration; absent: the agent's defaults.
    pub agent: Option<PathBuf>,
    /// Profile in the place of that of the AgentConfiguration.
    pub profile: Option<Profile>,
}

/// A configuration without errors.
#[derive(Clone, Debug)]
pub(crate) struct Configuration {
    /// What the engine decides by.
    pub(crate) policy: Policy,
    /// Whose decisions.
    pub(crate) profile: Profile,
    /// When hooks for a time are attached.
    pub(crate) hooks: HookPreferences,
    /// Every value of the agent's configuration, then of the kubelet's.
    pub(crate) settings: Vec<Setting>,
    /// What is accepted but will surprise, each with its file.
    pub(crate) notes: Vec<String>,
}

impl ConfigurationFiles {
    /// Reads all of it.
    ///
    /// # Errors
    /// Everything that is wrong with any of the files.
    pub(crate) fn load(&self) -> Result<Configuration, Failure> {
        let Self { kubelet, kubelet_drop_ins, agent, profile } = self;
        let kubelet = load_kubelet(kubelet.as_deref(), kubelet_drop_ins.as_deref());
        let agent = load_agent(agent.as_deref());
        let (kubelet, agent) = match (kubelet, agent) {
            (Ok(kubelet), Ok(agent)) => (kubelet, agent),
            (kubelet, agent) => {
                let mut causes = Vec::new();
                causes.extend(kubelet.err().into_iter().flat_map(|it| problems("kubelet", it)));
                causes.extend(agent.err().into_iter().flat_map(|it| problems("agent", it)));
                return Err(Failure::all(causes));
            }
        };
        let agent = match profile {
            Some(profile) => agent.with_profile(*profile),
            None => agent,
        };
        let KubeletConfiguration { policy, settings, notes, .. } = kubelet;
        let policy = agent.over(policy);
        let AgentConfiguration {
            file: _,
            profile,
            policy: _,
            hooks,
            reflex: _,
            settings: own,
            notes: own_notes,
            hands: _,
        } = agent;
        Ok(Configuration {
            policy,
            profile,
            hooks,
            settings: own.into_iter().chain(settings).collect(),
            notes: own_notes.iter().chain(&notes).map(ToString::to_string).collect(),
        })
    }
}

impl Configuration {
    /// Logs what counts, and what may surprise.
    pub(crate) fn log(&self) {
        let Self { policy: _, profile, hooks: _, settings, notes } = self;
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
