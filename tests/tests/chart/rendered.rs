//! What the chart renders from values.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use tests::agent;
use tests::helm::{Helm, chart, program};

use super::{MINORS, NAME, NEWEST, VALIDATE, ci_values, objects, only_object, render};

/// No Kubernetes has schemas for the kinds of this API version: those of the Prometheus operator.
const OPERATOR: &str = "monitoring.coreos.com/v1";

#[test]
fn every_object_is_valid_in_every_kubernetes() {
    let Some(helm) = Helm::find() else { return };
    let Some(validate) = program(VALIDATE, "kubernetes-validate") else {
        tests::skip!("there is no kubernetes-validate: `cargo xtask chart` installs it")
    };
    for minor in MINORS {
        let version = format!("1.{minor}.0");
        let folder = tempfile::tempdir().unwrap();
        let mut files = Vec::new();
        for (name, values) in ci_values() {
            // AppArmor is an annotation before 1.30, which `refusals` tests.
            if minor < 30 && name == "evict-and-kill" {
                continue;
            }
            // For kubelets before 1.33 the agent reads their files.
            let by_file =
                ["--set", "config.thresholds.source=Files,kubelet.configFile=/var/lib/kubelet/config.yaml"];
            let by_file = if minor < 33 && name != "inline-thresholds" { &by_file[..] } else { &[] };
            let text = render(&helm, &version, &[&["--values", &values], by_file].concat()).unwrap();
            let has_policy = text.contains("kind: ValidatingAdmissionPolicy");
            assert_eq!(has_policy, minor >= 30 && name != "file-thresholds", "{name} {version}");
            let file = folder.path().join(format!("{name}.yaml"));
            fs::write(&file, text).unwrap();
            files.push(file);
        }
        let output =
            Command::new(&validate).args(["--strict", "-k", &version]).args(&files).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        let (passed, others): (Vec<_>, Vec<_>) =
            text.lines().partition(|line| line.contains(" passed for resource "));
        let wrong: Vec<_> = others.into_iter().filter(|line| !line.contains(OPERATOR)).collect();
        assert_eq!(wrong, [""; 0], "{version}");
        assert!(output.status.success() && passed.len() > 100, "{version}: {passed:?}");
    }
}

/// With `--values` they override the defaults; with `--reuse-values` they replace the defaults.
#[test]
fn an_upgrade_with_the_values_of_an_earlier_chart_changes_nothing() {
    let Some(helm) = Helm::find() else { return };
    let earlier = tests::folder::repository("tests/tests/chart/earlier-values.yaml");
    let folder = tempfile::tempdir().unwrap();
    let copied = Command::new("cp").arg("-r").arg(chart()).arg(folder.path().join("chart")).status().unwrap();
    assert!(copied.success());
    fs::copy(&earlier, folder.path().join("chart/values.yaml")).unwrap();
    let copy = folder.path().join("chart");
    let reused = ["template", NAME, copy.to_str().unwrap(), "--namespace", NAME, "--kube-version", NEWEST];
    let over = ["--values", earlier.to_str().unwrap()];
    // The second case needs a key that is not among the earlier values.
    for more in [&[][..], &["--set", "config.eviction.nodeReclaim=CRI"]] {
        let fresh = render(&helm, NEWEST, more).unwrap();
        assert_eq!(render(&helm, NEWEST, &[&over[..], more].concat()).unwrap(), fresh);
        assert_eq!(helm.run(&[&reused[..], more].concat()).unwrap(), fresh);
    }
}

/// Returns the rights of the ClusterRole as `resource verb`.
fn permissions(objects: &[Value]) -> BTreeSet<String> {
    let strings = |value: &Value| {
        value.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let rules = only_object(objects, "ClusterRole")["rules"].as_array().unwrap();
    let mut found = BTreeSet::new();
    for rule in rules {
        for resource in strings(&rule["resources"]) {
            found.extend(strings(&rule["verbs"]).iter().map(|verb| format!("{resource} {verb}")));
        }
    }
    found
}

#[test]
fn permissions_follow_from_the_configuration() {
    let Some(helm) = Helm::find() else { return };
    let of = |values: &str| permissions(&objects(&render(&helm, NEWEST, &["--set", values]).unwrap()));
    let set = |words: &[&str]| words.iter().map(|&it| it.to_owned()).collect::<BTreeSet<_>>();
    let reads = ["pods list", "pods watch", "nodes get", "nodes list", "nodes watch"];
    let configz = ["nodes/configz get"];
    let evicts = ["pods/eviction create", "pods delete", "pods/status patch"];
    let acts = ["nodes patch", "nodes/status patch", "events create", "events patch"];

    let client = set(&[&reads[..], &configz].concat());
    assert_eq!(of("config.dryRun=Client"), client);
    assert_eq!(of("config.action=None,config.dryRun=None"), client);
    let server = set(&[&reads[..], &configz, &evicts].concat());
    assert_eq!(of("config.dryRun=Server"), server);
    let all = set(&[&reads[..], &configz, &evicts, &acts, &["pods get"]].concat());
    assert_eq!(of("config.dryRun=None"), all);
    assert_eq!(of("rbac.ignoreDryRun=true"), all);
    let kill = set(&[&reads[..], &configz, &acts].concat());
    assert_eq!(of("config.action=Kill,config.dryRun=None,capabilities.extra={KILL}"), kill);

    // Rights that the settings do not need are not requested.
    let without = |words: &[&str]| all.difference(&set(words)).cloned().collect::<BTreeSet<_>>();
    let dry = "config.dryRun=None";
    let respects = without(&["pods delete", "pods/status patch"]);
    assert_eq!(of(&format!("{dry},config.eviction.hardIgnoresPDB=false")), respects);
    let status = "config.eviction.nodeStatus";
    assert_eq!(of(&format!("{dry},{status}.conditions=false")), without(&["nodes/status patch"]));
    assert_eq!(of(&format!("{dry},{status}.noSchedule=false")), all);
    let no_taints = format!("{dry},{status}.noSchedule=false,{status}.preferNoSchedule=false");
    assert_eq!(of(&no_taints), without(&["nodes patch"]));
    let files = format!("{dry},config.thresholds.source=Files,kubelet.configFile=/k");
    assert_eq!(of(&files), without(&["nodes/configz get"]));
    let summary = set(&[&reads[..], &configz, &["nodes/stats get"]].concat());
    assert_eq!(of("config.dryRun=Client,config.podStorage.source=Summary"), summary);
}

#[test]
fn the_agent_accepts_the_configuration_of_every_ci_values_file() {
    let Some(helm) = Helm::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    for (name, values) in ci_values() {
        let objects = objects(&render(&helm, NEWEST, &["--values", &values]).unwrap());
        let config = objects.iter().find(|it| !it["data"]["agent.yaml"].is_null()).unwrap();
        let file = folder.path().join(format!("{name}.yaml"));
        fs::write(&file, config["data"]["agent.yaml"].as_str().unwrap()).unwrap();
        // There is no kubelet of a node: its settings come from a file.
        let kubelet = folder.path().join("kubelet.yaml");
        fs::write(&kubelet, "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n")
            .unwrap();
        let output = Command::new(agent::binary().unwrap())
            .args(["config", "--output=json", "--config"])
            .arg(&file)
            .arg("--kubelet-config")
            .arg(&kubelet)
            .arg("--pods-file=/dev/null")
            .env_remove("KUBECONFIG")
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {error}");
    }
}

#[test]
fn an_install_evicts_no_pod() {
    let Some(helm) = Helm::find() else { return };
    let objects = objects(&render(&helm, NEWEST, &[]).unwrap());
    let config: Value =
        serde_yaml_ng::from_str(only_object(&objects, "ConfigMap")["data"]["agent.yaml"].as_str().unwrap())
            .unwrap();
    assert_eq!((&config["action"], &config["dryRun"]), (&json!("Evict"), &json!("Server")));
    // No argument overrides the configuration.
    let container = &only_object(&objects, "DaemonSet")["spec"]["template"]["spec"]["containers"][0];
    let arguments = container["args"].as_array().unwrap().iter().map(|it| it.as_str().unwrap());
    let overriding = ["--action", "--dry-run", "--profile", "--kubelet"];
    assert!(
        !arguments.into_iter().any(|it| overriding.iter().any(|flag| it.starts_with(flag))),
        "{container}"
    );
}

#[test]
fn settings_read_only_at_start_restart_the_agents() {
    let Some(helm) = Helm::find() else { return };
    let checksum = |values: &str| {
        let objects = objects(&render(&helm, NEWEST, &["--set", values]).unwrap());
        let template = &only_object(&objects, "DaemonSet")["spec"]["template"];
        template["metadata"]["annotations"]["checksum/config"].as_str().unwrap().to_owned()
    };
    let shipped = checksum("nameOverride=");
    assert_eq!(checksum("config.policy.maxEvictionsPerSync=7,config.profile=Enhanced"), shipped);
    assert_eq!(checksum("config.thresholdMargin.value=9%"), shipped);
    for changed in ["config.dryRun=None", "config.evictionRequests.maxInFlight=2", "config.metrics.pods=Off"]
    {
        assert_ne!(checksum(changed), shipped, "{changed}");
    }
}

#[test]
fn two_releases_share_no_object() {
    let Some(helm) = Helm::find() else { return };
    let chart = chart();
    let names = |release: &str| {
        let text = helm.run(&[
            "template",
            release,
            chart.to_str().unwrap(),
            "--kube-version",
            NEWEST,
            "--set",
            "metrics.service.enabled=true,networkPolicy.enabled=true",
        ]);
        let objects = objects(&text.unwrap());
        let of = |it: &Value| {
            format!("{} {}", it["kind"].as_str().unwrap(), it["metadata"]["name"].as_str().unwrap())
        };
        objects.iter().map(of).collect::<BTreeSet<_>>()
    };
    let (first, second) = (names(NAME), names("batch"));
    assert_eq!(first.len(), second.len());
    assert!(first.is_disjoint(&second), "{first:?} {second:?}");
}

#[test]
fn test_and_cleanup_pods_do_not_match_the_daemonset_selector() {
    let Some(helm) = Helm::find() else { return };
    let objects = objects(&render(&helm, NEWEST, &[]).unwrap());
    let selector =
        only_object(&objects, "DaemonSet")["spec"]["selector"]["matchLabels"].as_object().unwrap().clone();
    let fits = |labels: &Value| selector.iter().all(|(key, value)| labels[key] == *value);
    assert!(fits(&only_object(&objects, "DaemonSet")["spec"]["template"]["metadata"]["labels"]));
    let find = |kind: &str| objects.iter().find(|object| object["kind"] == kind).unwrap();
    assert!(!fits(&find("Pod")["metadata"]["labels"]));
    assert!(!fits(&find("Job")["spec"]["template"]["metadata"]["labels"]));
}

#[test]
fn the_clean_up_removes_the_state_directory_from_its_parent() {
    let Some(helm) = Helm::find() else { return };
    let hooks = |values: &str| {
        let objects = objects(&render(&helm, NEWEST, &["--set", values]).unwrap());
        let is_hook = |it: &Value| it["metadata"]["annotations"]["helm.sh/hook"] == "post-delete";
        objects.into_iter().filter(is_hook).collect::<Vec<_>>()
    };
    for given in ["/var/lib/agent", "/var/lib/agent/"] {
        let hooks = hooks(&format!("stateDir={given}"));
        let find = |kind: &str| hooks.iter().find(|object| object["kind"] == kind).unwrap();
        let daemon_set = &find("DaemonSet")["spec"];
        let pod = &daemon_set["template"]["spec"];
        assert_eq!(pod["volumes"][1]["hostPath"]["path"], "/var/lib");
        assert_eq!(pod["initContainers"][0]["args"], json!(["cleanup", "--state-dir=/host/agent"]));
        assert_eq!(pod["automountServiceAccountToken"], false);
        let selected = |labels: &Value| {
            let selector = daemon_set["selector"]["matchLabels"].as_object().unwrap();
            selector.iter().all(|(key, value)| labels[key] == *value)
        };
        assert!(selected(&daemon_set["template"]["metadata"]["labels"]));
        assert!(!selected(&find("Job")["spec"]["template"]["metadata"]["labels"]));
        let waits = &find("Job")["spec"]["template"]["spec"]["containers"][0]["args"];
        assert_eq!(waits[2], format!("--after={NAME}/{NAME}-cleanup"));
    }
    assert_eq!(hooks("cleanup.enabled=false").len(), 0);
}

#[test]
fn rules_and_dashboards_are_the_files_of_the_chart() {
    let Some(helm) = Helm::find() else { return };
    let files = |folder: &str| {
        let entries = fs::read_dir(chart().join(folder)).into_iter().flatten().flatten();
        let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
        files.sort();
        files
    };
    let monitoring = chart().join("ci/monitoring-values.yaml");
    let render = |more: &[&str]| {
        objects(
            &render(&helm, NEWEST, &[&["--values", monitoring.to_str().unwrap()], more].concat()).unwrap(),
        )
    };
    let objects = render(&[]);
    for file in files("dashboards") {
        let name = file.file_name().unwrap().to_str().unwrap();
        let dashboard = objects.iter().find_map(|object| object["data"][name].as_str()).unwrap();
        let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(read(dashboard), read(&fs::read_to_string(&file).unwrap()), "{name}");
    }
    let groups =
        |text: &str| serde_yaml_ng::from_str::<Value>(text).unwrap()["groups"].as_array().unwrap().clone();
    let rules = files("rules").into_iter().flat_map(|file| groups(&fs::read_to_string(file).unwrap()));
    let rules: Vec<Value> = rules.collect();
    let Some(group) = rules.iter().find(|group| !group["rules"][0]["alert"].is_null()) else {
        return assert!(!objects.iter().any(|object| object["kind"] == "PrometheusRule"));
    };
    assert_eq!(only_object(&objects, "PrometheusRule")["spec"]["groups"], json!(rules));

    // One alert is disabled, and the next has another severity.
    let alert = |nth: usize| group["rules"][nth]["alert"].as_str().unwrap();
    let (disabled, changed) = (alert(0), alert(1));
    let objects = render(&[
        "--set",
        &format!(
            "metrics.prometheusRule.disabled={{{disabled}}},metrics.prometheusRule.severityOverrides.{changed}=info"
        ),
    ]);
    let found = only_object(&objects, "PrometheusRule")["spec"]["groups"].as_array().unwrap().clone();
    let all = |groups: &[Value]| {
        groups.iter().flat_map(|it| it["rules"].as_array().unwrap().clone()).collect::<Vec<_>>()
    };
    let mut expected = all(&rules);
    expected.retain(|rule| rule["alert"] != disabled);
    for rule in &mut expected {
        if rule["alert"] == changed {
            rule["labels"]["severity"] = json!("info");
        }
    }
    assert_eq!(all(&found), expected);
}
