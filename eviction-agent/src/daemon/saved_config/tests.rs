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

pub(crate) fn configuration(folder: &Path, profile: Profile) -> Configuration {
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        Some(path)
    };
    let files = ConfigurationFiles {
        kubelet: write("kubelet.yaml", KUBELET),
        agent: write("agent.yaml", AGENT),
        overrides: vec![("profile", serde_json::json!(profile))],
        in_cluster: true,
        ..ConfigurationFiles::default()
    };
    files.load().unwrap()
}

fn configz(field: &str, value: &str) -> Option<Effective> {
    let answer = format!(r#"{{"kubeletconfig": {{"{field}": {value}}}}}"#);
    Some(Effective::parse(answer.as_bytes(), "https://node:10250/configz").unwrap())
}

fn saved(policy: &Policy, configz: Option<&Effective>) -> Result<Option<SavedConfig>, String> {
    Ok(Some(SavedConfig::new(policy, configz)))
}

#[test]
fn a_saved_configuration_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    assert_eq!(SavedConfig::read(&state), Ok(None));
    for profile in [Profile::Kubelet, Profile::Enhanced] {
        let configz = configz("evictionHard", r#"{"memory.available": "1Gi"}"#);
        let config = SavedConfig::new(&configuration(folder.path(), profile).policy, configz.as_ref());
        config.save(&state);
        assert_eq!(SavedConfig::read(&state), Ok(Some(config)));
    }
}

#[tokio::test]
async fn the_last_configuration_is_saved() {
    let folder = tempfile::tempdir().unwrap();
    let state_dir = folder.path().join("state");
    let [first, last] =
        [Profile::Kubelet, Profile::Enhanced].map(|profile| configuration(folder.path(), profile));
    for _ in 0..20 {
        let (writer, policy_in_force) = ConfigWriter::start(Some(state_dir.clone()), &first, true);
        for config in [&last, &first, &last] {
            policy_in_force.send_replace(Arc::new(config.policy.clone()));
            tokio::task::yield_now().await;
        }
        drop(policy_in_force);
        writer.finish().await;
        assert_eq!(SavedConfig::read(&state_dir), saved(&last.policy, None));
    }
}

#[tokio::test]
async fn at_a_start_only_another_policy_is_held_back() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let [mut before, mut after] =
        [Profile::Kubelet, Profile::Enhanced].map(|profile| configuration(folder.path(), profile));
    let start = async |configured: &Configuration, accept| {
        let (writer, policy_in_force) = ConfigWriter::start(Some(state.clone()), configured, accept);
        let policy = policy_in_force.borrow().rules.profile().name();
        drop(policy_in_force);
        writer.finish().await;
        policy
    };
    let saved_now = || SavedConfig::read(&state);
    assert_eq!(start(&before, false).await, "Kubelet", "there is no saved configuration");
    assert_eq!(start(&after, false).await, "Kubelet");
    // A response of the kubelet is saved, whether or not it makes another policy.
    before.configz = configz("imageMinimumGCAge", r#""1h""#);
    assert_eq!(start(&before, false).await, "Kubelet");
    assert_eq!(saved_now(), saved(&before.policy, before.configz.as_ref()));
    after.configz = configz("imageMinimumGCAge", r#""2h""#);
    assert_eq!(start(&after, false).await, "Kubelet");
    assert_eq!(saved_now(), saved(&before.policy, after.configz.as_ref()));
    assert_eq!(start(&after, true).await, "Enhanced", "--apply-config-now");
    assert_eq!(saved_now(), saved(&after.policy, after.configz.as_ref()));
}

#[tokio::test]
async fn a_response_of_the_kubelet_is_saved_while_another_policy_is_pending() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let in_force = configuration(folder.path(), Profile::Kubelet);
    let (writer, policy_in_force) = ConfigWriter::start(Some(state.clone()), &in_force, false);
    let pending = configz("evictionHard", r#"{"memory.available": "2Gi"}"#);
    writer.set_configz(pending.as_ref());
    drop(policy_in_force);
    writer.finish().await;
    assert_eq!(SavedConfig::read(&state), saved(&in_force.policy, pending.as_ref()));
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
