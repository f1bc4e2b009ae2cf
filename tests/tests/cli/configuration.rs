//! Errors in configurations, and the report about valid ones. Each error has a snapshot in the tests of the agent.

use serde_json::Value;
use tests::cgroup::Subtree;
use tests::folder::Folder;

use super::running::{in_subtree, start};
use super::{AGENT, GOOD, agent_command, errors, output, write_file};

/// Asserts that there is one line of `found` for each line of `expected`, and that it has both texts.
fn assert_errors(found: &[String], expected: &[(&str, &str)]) {
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (place, cause) in expected {
        let is_there = found.iter().any(|error| error.contains(place) && error.contains(cause));
        assert!(is_there, "{place}: {cause} in {found:?}");
    }
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
    let mut agent = start(in_subtree(&subtree, &files));
    assert_eq!(agent.started().unwrap().text("profile"), "Enhanced");
    // What was chosen is logged, and what will surprise.
    agent.wait_for_log("policy.maxEvictionsPerSync = 2").unwrap();
    agent.stop().unwrap();
    let mut agent = start(in_subtree(&subtree, &["--profile", "kubelet", files[2], files[3]]));
    assert_eq!(agent.started().unwrap().text("profile"), "Kubelet");
    agent.wait_for_log("policy: is not used").unwrap();
    agent.stop().unwrap();
}
