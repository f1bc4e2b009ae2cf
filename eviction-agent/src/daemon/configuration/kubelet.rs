//! The kubelet's settings, from where the AgentConfiguration says that they come.

use std::path::PathBuf;

use eviction_config::{
    AgentConfiguration, Effective, KubeletConfiguration, KubeletFiles, Problems, ThresholdSource,
    load_kubelet,
};

use super::{ConfigurationFiles, problems};
use crate::daemon::config_reload;
use crate::daemon::kubelet_api::KubeletClient;
use crate::error::Failure;

/// The kubelet's settings.
pub(super) struct Kubelet {
    pub(super) configuration: KubeletConfiguration,
    pub(super) source: KubeletSource,
    /// Differences from the configured source.
    pub(super) notes: Vec<String>,
}

/// Where the kubelet's settings were found.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct KubeletSource {
    /// The response of the kubelet, if that is the source.
    pub(crate) effective: Option<Effective>,
    /// The source is `/configz` of the kubelet.
    pub(crate) is_asked: bool,
    /// It did not respond, and something else counts instead.
    pub(crate) is_stand_in: bool,
}

impl Kubelet {
    /// # Errors
    /// Everything that is wrong with them, or why there are none.
    pub(super) fn find(given: &ConfigurationFiles, agent: &AgentConfiguration) -> Result<Self, Failure> {
        let files = files(given, agent);
        match agent.thresholds.source {
            ThresholdSource::Files => of_files(&files),
            ThresholdSource::Inline => {
                let configuration = agent.resolve_inline().map_err(|wrong| all("agent", wrong))?;
                Ok(Self { configuration, source: KubeletSource::default(), notes: Vec::new() })
            }
            ThresholdSource::Configz => Self::asked(given, agent, files),
        }
    }

    /// The kubelet's own answer, else its last one, else its files.
    fn asked(
        given: &ConfigurationFiles,
        agent: &AgentConfiguration,
        files: KubeletFiles,
    ) -> Result<Self, Failure> {
        let kubelet =
            KubeletClient { caller: given.caller.clone(), configz: agent.thresholds.configz.clone() };
        let why = match config_reload::read(&kubelet) {
            Ok(effective) => return of_answer(effective, false, Vec::new()),
            Err(why) => why,
        };
        if let Some(last) = &given.last_heard {
            return of_answer(last.clone(), true, noted(why, "what it said last counts"));
        }
        if files == KubeletFiles::default() {
            return Err(why);
        }
        let found = of_files(&files)?;
        let source = KubeletSource { is_asked: true, is_stand_in: true, ..found.source };
        Ok(Self { source, notes: noted(why, "its files count, without its command line"), ..found })
    }
}

fn noted(why: Failure, counts: &str) -> Vec<String> {
    why.into_causes().into_iter().map(|cause| format!("{cause}; {counts}")).collect()
}

fn of_answer(effective: Effective, is_stand_in: bool, notes: Vec<String>) -> Result<Kubelet, Failure> {
    let configuration = effective.resolve().map_err(|wrong| all("kubelet", wrong))?;
    let source = KubeletSource { effective: Some(effective), is_asked: true, is_stand_in };
    Ok(Kubelet { configuration, source, notes })
}

fn of_files(files: &KubeletFiles) -> Result<Kubelet, Failure> {
    let KubeletFiles { config, config_dir } = files;
    let configuration =
        load_kubelet(config.as_deref(), config_dir.as_deref()).map_err(|wrong| all("kubelet", wrong))?;
    Ok(Kubelet { configuration, source: KubeletSource::default(), notes: Vec::new() })
}

/// The command line names them before the AgentConfiguration.
fn files(given: &ConfigurationFiles, agent: &AgentConfiguration) -> KubeletFiles {
    let KubeletFiles { config, config_dir } = &agent.thresholds.files;
    let first = |one: &Option<PathBuf>, other: &Option<PathBuf>| one.clone().or_else(|| other.clone());
    KubeletFiles {
        config: first(&given.kubelet, config),
        config_dir: first(&given.kubelet_drop_ins, config_dir),
    }
}

/// What is wrong with the files that the command line names.
pub(super) fn problems_of_files(given: &ConfigurationFiles) -> Vec<String> {
    let read = load_kubelet(given.kubelet.as_deref(), given.kubelet_drop_ins.as_deref());
    read.err().into_iter().flat_map(|wrong| problems("kubelet", wrong)).collect()
}

fn all(whose: &str, wrong: Problems) -> Failure {
    Failure::all(problems(whose, wrong).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::super::super::kubelet_api::Caller;
    use super::super::AskConfigz;
    use super::*;

    #[test]
    fn what_a_kubelet_said_counts_while_it_says_nothing_and_before_any_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kubelet.yaml");
        let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        fs::write(&file, format!("{text}evictionHard: {{memory.available: 3Gi}}\n")).unwrap();
        let answered = |line: &str| {
            let answer = json!({"kubeletconfig": {"evictionHard": {"memory.available": line}}});
            Effective::parse(answer.to_string().as_bytes(), "https://node:10250/configz").unwrap()
        };
        let mut files = ConfigurationFiles {
            kubelet: Some(file),
            configz: AskConfigz { ask: true, ..AskConfigz::default() },
            // Nobody can be asked.
            caller: Caller { kubeconfig: Some(folder.path().join("none")), ..Caller::default() },
            ..ConfigurationFiles::default()
        };
        let line = |files: &ConfigurationFiles| {
            let found = files.load().unwrap();
            assert!(found.kubelet.is_stand_in && found.kubelet.is_asked, "{:?}", found.kubelet);
            assert!(found.notes.iter().any(|note| note.contains("count")), "{:?}", found.notes);
            found.policy.thresholds[0].value.quantity(0).to_string()
        };
        assert_eq!(line(&files), "3Gi");
        files.last_heard = Some(answered("1Gi"));
        assert_eq!(line(&files), "1Gi");
    }
}
