//! The kubelet's settings, from the source that the AgentConfiguration names.

use eviction_config::{
    AgentConfiguration, Effective, KubeletConfiguration, KubeletFiles, ThresholdSource, load_kubelet,
};

use super::{ConfigurationFiles, failure_of, problems};
use crate::daemon::kubelet_api::{self, KubeletClient};
use crate::error::Failure;

/// The source of the kubelet's settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct KubeletSource {
    /// The response of `/configz` of the kubelet, if that is the source and has ever responded.
    pub(crate) effective: Option<Effective>,
    /// Whether the kubelet is the source and did not respond, so that its last response or its files are used.
    pub(crate) is_fallback: bool,
    /// Warnings if another source than the configured one is used.
    pub(super) notes: Vec<String>,
}

/// Returns the kubelet's settings and their source.
///
/// # Errors
/// Everything that is wrong with the settings, or why there are none.
pub(super) fn find(
    given: &ConfigurationFiles,
    agent: &AgentConfiguration,
) -> Result<(KubeletConfiguration, KubeletSource), Failure> {
    let files = files(given, agent);
    match agent.thresholds.source {
        ThresholdSource::Files => Ok((from_files(&files)?, KubeletSource::default())),
        ThresholdSource::Inline => {
            let configuration = agent.resolve_inline().map_err(|wrong| failure_of("agent", wrong))?;
            Ok((configuration, KubeletSource::default()))
        }
        ThresholdSource::Configz => from_configz(given, agent, &files),
    }
}

/// Returns the settings of the kubelet's response, else of its last one, else of its files.
fn from_configz(
    given: &ConfigurationFiles,
    agent: &AgentConfiguration,
    files: &KubeletFiles,
) -> Result<(KubeletConfiguration, KubeletSource), Failure> {
    let kubelet = KubeletClient { caller: given.caller.clone(), configz: agent.thresholds.configz.clone() };
    let (effective, notes) = match (kubelet_api::read_configz(&kubelet), &given.last_configz) {
        (Ok(effective), _) => (effective, None),
        (Err(why), Some(last)) => (last.clone(), Some(warnings(why, "what it said last counts"))),
        (Err(why), None) if *files == KubeletFiles::default() => return Err(why),
        (Err(why), None) => {
            let notes = warnings(why, "its files count, without its command line");
            return Ok((from_files(files)?, KubeletSource { effective: None, is_fallback: true, notes }));
        }
    };
    let configuration = effective.resolve().map_err(|wrong| failure_of("kubelet", wrong))?;
    let (is_fallback, notes) = (notes.is_some(), notes.unwrap_or_default());
    Ok((configuration, KubeletSource { effective: Some(effective), is_fallback, notes }))
}

fn warnings(why: Failure, counts: &str) -> Vec<String> {
    why.into_causes().into_iter().map(|cause| format!("{cause}; {counts}")).collect()
}

fn from_files(KubeletFiles { config, config_dir }: &KubeletFiles) -> Result<KubeletConfiguration, Failure> {
    load_kubelet(config.as_deref(), config_dir.as_deref()).map_err(|wrong| failure_of("kubelet", wrong))
}

/// Returns the kubelet's files. The command line overrides the AgentConfiguration.
fn files(given: &ConfigurationFiles, agent: &AgentConfiguration) -> KubeletFiles {
    let KubeletFiles { config, config_dir } = &agent.thresholds.files;
    KubeletFiles {
        config: given.kubelet.as_ref().or(config.as_ref()).cloned(),
        config_dir: given.kubelet_drop_ins.as_ref().or(config_dir.as_ref()).cloned(),
    }
}

/// Returns the problems of the files that the command line names.
pub(super) fn problems_of_files(given: &ConfigurationFiles) -> Vec<String> {
    let read = load_kubelet(given.kubelet.as_deref(), given.kubelet_drop_ins.as_deref());
    read.err().into_iter().flat_map(|wrong| problems("kubelet", wrong)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::super::super::kubelet_api::Caller;
    use super::*;

    #[test]
    fn without_a_response_the_last_one_is_used_before_files() {
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
            overrides: vec![("thresholds.source", json!("Configz"))],
            // Without a kubeconfig no request can be sent.
            caller: Caller { kubeconfig: Some(folder.path().join("none")), ..Caller::default() },
            ..ConfigurationFiles::default()
        };
        let line = |files: &ConfigurationFiles| {
            let found = files.load().unwrap();
            assert!(found.kubelet.is_fallback, "{:?}", found.kubelet);
            assert!(found.notes.iter().any(|note| note.contains("count")), "{:?}", found.notes);
            found.policy.thresholds[0].value.quantity(0).to_string()
        };
        assert_eq!(line(&files), "3Gi");
        files.last_configz = Some(answered("1Gi"));
        assert_eq!(line(&files), "1Gi");
    }
}
