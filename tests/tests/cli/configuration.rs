//! Errors in configurations, and the report about valid ones.

use serde_json::Value;
use tests::cgroup::Subtree;
use tests::folder::Folder;

use super::{AGENT, GOOD, RunningAgent, agent_command, errors, in_subtree, output, stderr, write_file};

/// Returns the errors of `run` with this configuration of the kubelet (`--kubelet-config`) or the agent (`--config`).
fn errors_of(option: &str, text: &str) -> Vec<String> {
    let folder = Folder::below(&std::env::temp_dir(), "cli").unwrap();
    let path = write_file(&folder, "configuration.yaml", text);
    let output = output(agent_command(&["run", "--listen-address", "127.0.0.1:0", option, &path]));
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_eq!(output.stdout, b"", "nothing was begun");
    let errors = errors(&output);
    assert!(errors.iter().all(|error| error.contains(&path)), "each names the file: {errors:?}");
    errors
}

#[test]
fn a_configuration_that_is_not_yaml_is_refused() {
    let errors = errors_of("--kubelet-config", "evictionHard: [\n");
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("line"), "the place in the file: {errors:?}");
}

#[test]
fn a_configuration_of_another_kind_is_refused() {
    let errors =
        errors_of("--kubelet-config", "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: ConfigMap\n");
    assert!(errors.iter().any(|error| error.contains("kind")), "{errors:?}");
}

#[test]
fn all_errors_of_a_kubelet_configuration_are_reported_at_once() {
    let errors = errors_of(
        "--kubelet-config",
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         evictionHard:\n  memory.available: 10m%\n  memori.available: 64Mi\n\
         evictionSoft:\n  memory.available: 128Mi\n",
    );
    assert_errors(
        &errors,
        &[
            ("evictionHard[\"memory.available\"]", "10m"),
            ("evictionHard[\"memori.available\"]", "unsupported eviction signal"),
            ("memory.available", "grace period must be specified"),
        ],
    );
}

/// Asserts that there is one line of `found` for each line of `expected`, and that it has both texts.
fn assert_errors(found: &[String], expected: &[(&str, &str)]) {
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (place, cause) in expected {
        let is_there = found.iter().any(|error| error.contains(place) && error.contains(cause));
        assert!(is_there, "{place}: {cause} in {found:?}");
    }
}

#[test]
fn a_file_that_is_no_agent_configuration_is_refused() {
    let not_yaml = errors_of("--config", "policy: [\n");
    assert_errors(&not_yaml, &[("read agent configuration: ", "line")]);
    assert_errors(&errors_of("--config", ""), &[("configuration.yaml", "is empty")]);
    assert_errors(
        &errors_of("--config", "- a\n- b\n"),
        &[("configuration.yaml", "must be an object, got a list")],
    );
    assert_errors(
        &errors_of("--config", GOOD),
        &[
            (": apiVersion: ", "must be `eviction-agent.io/v1alpha1`, got `kubelet.config.k8s.io/v1beta1`"),
            (": kind: ", "must be `AgentConfiguration`, got `KubeletConfiguration`"),
        ],
    );
    assert_errors(
        &errors_of("--kubelet-config", AGENT),
        &[(": apiVersion: ", "got `eviction-agent.io/v1alpha1`"), (": kind: ", "got `AgentConfiguration`")],
    );
}

#[test]
fn all_errors_of_an_agent_configuration_are_reported_at_once() {
    let text = format!(
        "{AGENT}profile: enhansed\npolicy:\n  maxEvictions: 4\n  unavailableAfterSamples: 0\n  coolDownAfterOomKill: 5\n  \
         soft: {{gracePeriodCap: -1m}}\n  prediction: {{mode: \"maybe\"}}\n  signals:\n  - {{signal: memory.available, hard: 1Gi, soft: 512Mi}}\n  \
         protection:\n  - {{order: Never}}\n  rateLimits:\n  - {{scope: Owner, maxEvictions: 1, window: 1m}}\n  \
         - {{scope: Owner, maxEvictions: 2, window: 0s}}\n"
    );
    assert_errors(
        &errors_of("--config", &text),
        &[
            (": profile: ", "did you mean `Enhanced`?"),
            (": policy.maxEvictions: ", "did you mean `maxEvictionsPerSync`?"),
            (": policy.unavailableAfterSamples: ", "must be 1 to 1000, got 0"),
            (": policy.coolDownAfterOomKill: ", "must be a duration"),
            (": policy.soft.gracePeriodCap: ", "must not be negative"),
            (": policy.prediction.mode: ", "must be one of `Off`, `Condition`, `Evict`"),
            (": policy.signals[0].gracePeriod: ", "is missing: `soft` needs it"),
            (": policy.signals[0].soft: ", "must be more than `hard`"),
            (": policy.protection[0]: ", "fits nothing"),
            (": policy.rateLimits[1].scope: ", "`Owner` is given twice"),
            (": policy.rateLimits[1].window: ", "must be more than zero"),
        ],
    );
}

#[test]
fn errors_of_both_configurations_are_reported_together() {
    let folder = Folder::below(&std::env::temp_dir(), "cli").unwrap();
    let kubelet = write_file(&folder, "kubelet.yaml", &GOOD.replace("64Mi", "64MB"));
    let agent = write_file(&folder, "agent.yaml", &format!("{AGENT}polici: {{}}\n"));
    let files = ["--kubelet-config", &kubelet, "--config", &agent];
    let expected = [
        (&*format!("read kubelet configuration: {kubelet}: "), "memory.available"),
        (&*format!("read agent configuration: {agent}: polici: "), "did you mean `policy`?"),
    ];
    let run = output(agent_command(&[&["run", "--listen-address", "127.0.0.1:0"], &files[..]].concat()));
    assert_eq!((run.status.code(), &*run.stdout), (Some(1), &b""[..]));
    assert_errors(&errors(&run), &expected);
    let check = output(agent_command(&[&["check", "-o", "json"], &files[..]].concat()));
    assert_eq!(check.status.code(), Some(1));
    let findings: Value = serde_json::from_slice(&check.stdout).unwrap();
    assert_eq!(findings["configuration"], Value::Null);
    let problems = findings["problems"].as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned());
    assert_errors(&problems.collect::<Vec<_>>(), &expected);
}

#[test]
fn check_and_run_report_the_profile_and_its_settings() {
    let folder = Folder::below(&std::env::temp_dir(), "cli-profile").unwrap();
    let kubelet = write_file(&folder, "kubelet.yaml", GOOD);
    let text = format!("{AGENT}profile: Enhanced\npolicy:\n  maxEvictionsPerSync: 2\n");
    let agent = write_file(&folder, "agent.yaml", &text);
    let files = ["--kubelet-config", &kubelet, "--config", &agent];
    let checked = |more: &[&str]| {
        let output = output(agent_command(&[&["check", "-o", "json"], &files[..], more].concat()));
        let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
        findings["configuration"].clone()
    };
    let setting = |configuration: &Value, path: &str| {
        let settings = configuration["settings"].as_array().unwrap().clone();
        settings.into_iter().find(|setting| setting["path"] == path).unwrap()
    };
    let enhanced = checked(&[]);
    assert_eq!((&enhanced["profile"], &enhanced["notes"]), (&"Enhanced".into(), &Value::Array(vec![])));
    let max_evictions = setting(&enhanced, "policy.maxEvictionsPerSync");
    assert_eq!(
        (&max_evictions["value"], &max_evictions["origin"]["file"]),
        (&"2".into(), &agent.as_str().into())
    );
    assert_eq!(setting(&enhanced, "policy.unavailableAfterSamples")["origin"], "default");
    assert_eq!(setting(&enhanced, "evictionHard[\"memory.available\"]")["value"], "64Mi");
    let kubelet_profile = checked(&["--profile", "kubelet"]);
    assert_eq!(kubelet_profile["profile"], "Kubelet");
    assert_eq!(setting(&kubelet_profile, "profile")["origin"], "commandLine");
    assert!(kubelet_profile["notes"][0].as_str().unwrap().contains("is not used"), "{kubelet_profile}");

    let subtree = Subtree::new("cli-profile").unwrap();
    let (running, started) = RunningAgent::start(in_subtree(&subtree, &files));
    assert_eq!(started["profile"], "Enhanced");
    let (code, log, _) = running.stop();
    assert_eq!(code, Some(0));
    assert!(log.contains("policy.maxEvictionsPerSync = 2"), "what was chosen is logged: {log}");
    let (running, started) =
        RunningAgent::start(in_subtree(&subtree, &["--profile", "kubelet", files[2], files[3]]));
    assert_eq!(started["profile"], "Kubelet");
    let (_, log, _) = running.stop();
    assert!(log.contains("policy: is not used"), "what will surprise is logged: {log}");
}
