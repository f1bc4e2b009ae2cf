//! Files that are generated from the chart, or for it.

use std::fmt::Write as _;
use std::fs;

use regex_lite::Regex;
use serde_json::{Value, json};

use tests::folder::repository;
use tests::helm::{Helm, chart};

use super::{NEWEST, assert_file, ci_values, render};

/// The files of deploy/manifests, by the template from which each is generated.
const MANIFESTS: [(&str, &str); 5] = [
    ("serviceaccount.yaml", "10-serviceaccount.yaml"),
    ("rbac.yaml", "20-rbac.yaml"),
    ("validatingadmissionpolicy.yaml", "25-validatingadmissionpolicy.yaml"),
    ("configmap.yaml", "30-configuration.yaml"),
    ("daemonset.yaml", "40-daemonset.yaml"),
];

#[test]
fn the_manifests_are_generated_from_the_chart() {
    let Some(helm) = Helm::find() else { return };
    for (template, file) in MANIFESTS {
        let template = format!("templates/{template}");
        // Users who apply the manifests end the dry run in the ConfigMap.
        let more = ["--show-only", &template, "--set", "rbac.ignoreDryRun=true"];
        let text = render(&helm, NEWEST, &more).unwrap();
        let lines =
            text.lines().filter(|line| !line.starts_with("# Source") && !line.contains("helm.sh/chart"));
        let lines = lines.map(|line| line.replace("managed-by: Helm", "managed-by: kustomize") + "\n");
        let text = lines.collect::<String>();
        let text = text.strip_prefix("---\n").unwrap();
        assert_file(&repository("deploy/manifests").join(file), text);
    }
}

#[test]
fn each_ci_values_file_renders_its_golden_file() {
    let Some(helm) = Helm::find() else { return };
    let folder = repository("tests/tests/chart/golden");
    for (name, path) in ci_values() {
        let text = render(&helm, NEWEST, &["--values", &path, "--skip-tests"]).unwrap();
        // Rules and dashboards are in the repository themselves.
        let documents = text
            .split("---\n")
            .filter(|it| !it.contains("kind: PrometheusRule") && !it.contains("-dashboard-"));
        let text = documents.collect::<Vec<_>>().join("---\n");
        assert_file(&folder.join(format!("{name}.yaml")), &text);
    }
    if std::env::var_os(super::UPDATE).is_none() {
        assert_eq!(fs::read_dir(folder).unwrap().count(), ci_values().len(), "golden files and ci values");
    }
}

#[test]
fn chart_and_image_have_the_version_of_the_agent() {
    let text = fs::read_to_string(chart().join("Chart.yaml")).unwrap();
    let found: Value = serde_yaml_ng::from_str(&text).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!((&found["version"], &found["appVersion"]), (&json!(version), &json!(version)));
    let images = found["annotations"]["artifacthub.io/images"].as_str().unwrap();
    assert!(images.contains(&format!("image: eviction-agent:{version}\n")), "{images}");
}

/// The schema of `config` is the agent's own, with an `$id` by which its references are found.
#[test]
fn the_values_schema_includes_the_agents_schema() {
    let read = |path| serde_json::from_str::<Value>(&fs::read_to_string(path).unwrap()).unwrap();
    let agents = repository("eviction-agent/crates/config/schema/agent-configuration.v1alpha1.json");
    let mut agents = read(agents);
    agents["$id"] = json!("urn:eviction-agent:agent-configuration");
    let path = chart().join("values.schema.json");
    let mut schema = read(path.clone());
    schema["$defs"]["AgentConfiguration"] = agents;
    assert_file(&path, &format!("{}\n", serde_json::to_string_pretty(&schema).unwrap()));
}

/// Every key of the values is in the schema, and every key of the schema has a value.
#[test]
fn schema_and_values_have_the_same_keys() {
    let schema: Value =
        serde_json::from_str(&fs::read_to_string(chart().join("values.schema.json")).unwrap()).unwrap();
    let values: Value =
        serde_yaml_ng::from_str(&fs::read_to_string(chart().join("values.yaml")).unwrap()).unwrap();
    let mut compared = 0;
    compare(&schema, &schema, &values, "values", &mut compared);
    assert!(compared > 60, "only {compared} keys");
}

fn compare(root: &Value, schema: &Value, values: &Value, key_path: &str, compared: &mut usize) {
    let schema = match schema["$ref"].as_str() {
        // The agent has defaults of its own.
        Some("#/$defs/AgentConfiguration") => return,
        Some(target) => root.pointer(target.strip_prefix('#').unwrap()).unwrap(),
        None => schema,
    };
    let Some(properties) = schema["properties"].as_object() else { return };
    assert_eq!(schema["additionalProperties"], false, "{key_path}: other keys must be refused");
    let keys = |value: &Value| {
        let keys = value.as_object().into_iter().flatten().map(|(key, _)| key.clone());
        keys.filter(|key| key_path != "values" || key != "global").collect::<std::collections::BTreeSet<_>>()
    };
    let has_shape = !["values.resources.requests", "values.updateStrategy.rollingUpdate"].contains(&key_path);
    assert!(!has_shape || keys(&schema["properties"]) == keys(values), "{key_path}: {values}");
    for (key, schema) in properties {
        *compared += 1;
        compare(root, schema, &values[key], &format!("{key_path}.{key}"), compared);
    }
}

/// A row for each key with a comment `# --`; its default is the one in values.yaml.
#[test]
fn the_readme_lists_every_value() {
    let text = fs::read_to_string(chart().join("values.yaml")).unwrap();
    let values: Value = serde_yaml_ng::from_str(&text).unwrap();
    let key = Regex::new(r"^( *)([A-Za-z]+):").unwrap();
    let (mut rows, mut comment, mut path) = (String::new(), Vec::new(), Vec::<&str>::new());
    for line in text.lines() {
        let trimmed = line.trim_start();
        if let Some(first) = trimmed.strip_prefix("# -- ") {
            comment = vec![first];
        } else if let (false, Some(more)) = (comment.is_empty(), trimmed.strip_prefix("# ")) {
            comment.push(more);
        } else if let Some(found) = key.captures(line) {
            path.truncate(found[1].len() / 2);
            path.push(found.get(2).unwrap().as_str());
            if !comment.is_empty() {
                let value = values.pointer(&format!("/{}", path.join("/"))).unwrap();
                let description = std::mem::take(&mut comment).join(" ");
                writeln!(rows, "| `{}` | `{value}` | {description} |", path.join(".")).unwrap();
            }
        }
    }
    assert!(rows.lines().count() > 50, "{rows}");
    let path = chart().join("README.md");
    let readme = fs::read_to_string(&path).unwrap();
    let (before, _) = readme.split_once("| Key |").unwrap();
    assert_file(&path, &format!("{before}| Key | Default | Meaning |\n| --- | --- | --- |\n{rows}"));
}
