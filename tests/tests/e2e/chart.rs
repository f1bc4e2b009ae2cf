//! The chart on a real API server: the server accepts what each values file renders to, and Helm replaces and removes
//! it.

use serde_json::{Value, json};
use tests::cluster::{Cluster, NAME, Options};
use tests::helm::{Helm, chart};

use crate::fixture;

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";

/// Starts a cluster, and returns it with the Helm of its administrator.
fn cluster() -> Option<(Cluster, Helm)> {
    let helm = Helm::find()?;
    let cluster = fixture::cluster(&Options::default())?;
    let kubeconfig = cluster.admin_kubeconfig().unwrap();
    Some((cluster, helm.of_cluster(kubeconfig)))
}

/// Runs `helm VERB RELEASE CHART` with more arguments.
fn apply(helm: &Helm, verb: &str, release: &str, more: &[&str]) -> Result<String, String> {
    let chart = chart();
    let fixed = [verb, release, chart.to_str().unwrap(), "--namespace", NAME, "--create-namespace"];
    helm.run(&[&fixed, more].concat())
}

/// Returns resource and verb of each permission.
fn permissions(cluster: &Cluster) -> Vec<String> {
    let role = cluster.admin().get(&format!("{ROLES}/{NAME}")).unwrap().ok().unwrap();
    let rules = role["rules"].as_array().unwrap();
    let text = |rule: &Value| {
        format!("{} {}", rule["resources"][0].as_str().unwrap(), rule["verbs"][0].as_str().unwrap())
    };
    rules.iter().map(text).collect()
}

#[test]
fn the_server_accepts_every_ci_values_file() {
    let Some((_cluster, helm)) = cluster() else { return };
    let mut files: Vec<_> =
        std::fs::read_dir(chart().join("ci")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for file in files {
        let name = file.file_stem().unwrap().to_str().unwrap().trim_end_matches("-values").to_owned();
        let installed = apply(&helm, "install", &name, &["--values", file.to_str().unwrap()]);
        if name.contains("monitor") {
            // The cluster has no monitoring.coreos.com/v1.
            let error = installed.expect_err(&name);
            assert!(
                error.contains("install the Prometheus operator first, or set metrics."),
                "{name}: {error}"
            );
            continue;
        }
        let notes = installed.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(notes.contains("rollout status daemonset/"), "{name}: {notes}");
    }
}

#[test]
fn an_upgrade_ends_the_dry_run_and_keeps_the_other_values() {
    let Some((cluster, helm)) = cluster() else { return };
    let notes = apply(&helm, "install", NAME, &["--set", "config.policy.maxEvictionsPerSync=7"]).unwrap();
    assert!(notes.contains("Mode: dry run, no pod is evicted"), "{notes}");
    assert!(!permissions(&cluster).iter().any(|it| it == "nodes patch"));
    let daemonset = || {
        let path = format!("/apis/apps/v1/namespaces/{NAME}/daemonsets/{NAME}");
        cluster.admin().get(&path).unwrap().ok().unwrap()
    };
    let before = daemonset();

    let notes = apply(&helm, "upgrade", NAME, &["--reuse-values", "--set", "config.dryRun=None"]).unwrap();
    assert!(notes.contains("Mode: pods ARE EVICTED"), "{notes}");
    assert!(permissions(&cluster).iter().any(|it| it == "nodes patch"));
    let path = format!("/api/v1/namespaces/{NAME}/configmaps/{NAME}");
    let config = cluster.admin().get(&path).unwrap().ok().unwrap();
    let config: Value = serde_yaml_ng::from_str(config["data"]["agent.yaml"].as_str().unwrap()).unwrap();
    assert_eq!((&config["dryRun"], &config["policy"]), (&json!("None"), &json!({"maxEvictionsPerSync": 7})));
    // The agents start again.
    let checksum =
        |object: &Value| object["spec"]["template"]["metadata"]["annotations"]["checksum/config"].clone();
    assert_ne!(checksum(&daemonset()), checksum(&before));

    // Values that contradict each other change nothing.
    let error =
        apply(&helm, "upgrade", NAME, &["--reuse-values", "--set", "hostPID=false,config.action=Kill"])
            .unwrap_err();
    assert!(error.contains("set hostPID: true"), "{error}");
    assert_eq!(daemonset()["metadata"]["generation"], 2);

    helm.run(&["uninstall", NAME, "--namespace", NAME, "--no-hooks"]).unwrap();
    assert_eq!(cluster.admin().get(&format!("{ROLES}/{NAME}")).unwrap().status, 404);
}
