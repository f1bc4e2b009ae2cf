use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use eviction_config::DryRun;

use super::*;

fn options(in_cluster: bool, state_dir: Option<&str>) -> Options {
    Options {
        configuration: ConfigurationFiles { in_cluster, ..ConfigurationFiles::default() },
        state_dir: state_dir.map(PathBuf::from),
        socket: None,
        apply_config_now: false,
        pods_file: None,
        cgroup_root: PathBuf::from("/"),
        memory_capacity: None,
        pid_capacity: None,
        disks: FsPaths::default(),
        json_lines: false,
        choice: BackendSelection::default(),
        bpf_debug_log: false,
    }
}

#[test]
fn a_dry_run_in_a_pod_has_a_state_directory_but_persists_nothing_there() {
    let default = Some(Path::new(STATE_DIR));
    let dirs = |options: &Options, dry_run| {
        let action = ActionSettings { action: Action::Evict, dry_run };
        [options.state_dir(action), options.persistent_dir(action)]
    };
    let in_pod = options(true, None);
    for dry_run in [DryRun::Client, DryRun::Server] {
        let [dir, persistent] = dirs(&in_pod, dry_run);
        assert_eq!((dir.as_deref(), persistent), (default, None), "{dry_run:?}");
    }
    let [dir, persistent] = dirs(&in_pod, DryRun::None);
    assert_eq!((dir.as_deref(), persistent.as_deref()), (default, default));
    let own = Some(PathBuf::from("/state"));
    assert_eq!(dirs(&options(true, Some("/state")), DryRun::Server), [own.clone(), own]);
    assert_eq!(dirs(&options(false, None), DryRun::Client), [None, None]);
}

#[test]
fn paths_on_the_command_line_need_not_be_utf8() {
    let path = PathBuf::from(OsStr::from_bytes(b"/recordings-\xff"));
    let files = ConfigurationFiles {
        overrides: vec![("profile", serde_json::json!("Enhanced"))],
        kubelet_certificate_authority: Some(path.clone()),
        recorder_directory: Some(path.clone()),
        ..ConfigurationFiles::default()
    };
    let agent = files.load().unwrap().agent;
    assert_eq!(agent.profile, Profile::Enhanced);
    assert_eq!(agent.thresholds.configz.certificate_authority.as_ref(), Some(&path));
    assert_eq!(agent.recorder.directory, Some(path));
    let shown = "recorder.directory = /recordings-\u{fffd} (command line)";
    assert!(agent.settings.iter().any(|setting| setting.to_string() == shown), "{:?}", agent.settings);
}

/// The fields of the AgentConfiguration that are part of the policy, which takes effect at once.
const POLICY_FIELDS: [&str; 6] =
    ["profile", "policy", "thresholds", "thresholdMargin", "kernelKill", "eviction"];

/// A new field must be of the policy or be reported as one that needs a restart.
#[test]
fn each_field_takes_effect_at_once_or_is_reported_as_one_that_needs_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let load = |settings: serde_json::Value| {
        let mut document =
            serde_json::json!({"apiVersion": "eviction-agent.io/v1alpha1", "kind": "AgentConfiguration"});
        document.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        let file = folder.path().join("agent.json");
        std::fs::write(&file, document.to_string()).unwrap();
        ConfigurationFiles { agent: Some(file), ..ConfigurationFiles::default() }.load().unwrap()
    };
    let at_start = serde_json::json!({
        "action": "Evict",
        "dryRun": "Client",
        "probes": {"detachAfter": "11s"},
        "reclaim": {"keepImages": ["a/*"]},
        "podStorage": {"source": "Summary"},
        "evictionRequests": {"timeout": "6s"},
        "memoryLimits": {"warnPercent": 11},
        "metrics": {"pods": "Off"},
        "recorder": {"directory": "/recordings"},
        "server": {"listenAddress": "127.0.0.1:1"},
    });
    let before = load(serde_json::json!({}));
    let sorted = |mut fields: Vec<String>| {
        fields.sort();
        fields
    };
    let changed = |after: &Configuration| {
        sorted(before.changed_at_start(after).into_iter().map(str::to_owned).collect())
    };
    for (field, value) in at_start.as_object().unwrap() {
        assert_eq!(changed(&load(serde_json::json!({field: value}))), [field.as_str()]);
    }
    assert_eq!(
        changed(&load(serde_json::json!({"profile": "Enhanced", "kernelKill": "HardMemory"}))),
        [""; 0]
    );
    let mut named = changed(&load(at_start));
    named.extend(["apiVersion", "kind"].into_iter().chain(POLICY_FIELDS).map(str::to_owned));
    let all = serde_json::to_value(&before.agent).unwrap();
    assert_eq!(sorted(named), sorted(all.as_object().unwrap().keys().cloned().collect()));
}

#[test]
fn without_a_response_the_last_one_is_used_before_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubelet.yaml");
    let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    std::fs::write(&file, format!("{text}evictionHard: {{memory.available: 3Gi}}\n")).unwrap();
    let answered = |line: &str| {
        let answer = serde_json::json!({"kubeletconfig": {"evictionHard": {"memory.available": line}}});
        Effective::parse(answer.to_string().as_bytes(), "https://node:10250/configz").unwrap()
    };
    let mut files = ConfigurationFiles {
        kubelet: Some(file),
        overrides: vec![("thresholds.source", serde_json::json!("Configz"))],
        // Without a kubeconfig no request can be sent.
        kubeconfig: Some(folder.path().join("none")),
        ..ConfigurationFiles::default()
    };
    let line = |files: &ConfigurationFiles| {
        let found = files.load().unwrap();
        assert!(found.is_fallback, "{:?}", found.notes);
        assert!(found.notes.iter().any(|note| note.contains("count")), "{:?}", found.notes);
        found.policy.thresholds[0].value.quantity(0).to_string()
    };
    assert_eq!(line(&files), "3Gi");
    files.last_configz = Some(answered("1Gi"));
    assert_eq!(line(&files), "1Gi");
}
