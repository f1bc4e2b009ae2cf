//! Configurations of the kubelet and of the agent, good and bad, one a file.

#![expect(clippy::expect_used, reason = "a test stops at the first surprise")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use eviction_config::{Problem, Setting, load_agent, load_kubelet};

fn files(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the folder is part of the repository");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("it can be read").path()).collect();
    files.sort();
    files
}

fn written(settings: &[Setting], notes: &[Problem]) -> String {
    let mut text = String::new();
    for setting in settings {
        writeln!(text, "{setting}").expect("it is a string");
    }
    for note in notes {
        writeln!(text, "note: {note}").expect("it is a string");
    }
    text
}

fn snapshot_name(folder: &str, file: &Path) -> String {
    format!("{folder}-{}", name(file)).replace('.', "-")
}

fn name(file: &Path) -> String {
    file.file_name().expect("a file has a name").to_string_lossy().into_owned()
}

#[test]
fn good_configurations_are_resolved() {
    let files = files("tests/kubelet/good");
    assert!(files.len() >= 9, "only {} files", files.len());
    for file in files {
        let configuration = load_kubelet(Some(&file), None).unwrap_or_else(|errors| panic!("{errors}"));
        let text = written(&configuration.settings, &configuration.notes);
        insta::assert_snapshot!(snapshot_name("good", &file), text);
    }
}

#[test]
fn all_kubelet_config_errors_are_reported_at_once() {
    let files = files("tests/kubelet/bad");
    assert!(files.len() >= 12, "only {} files", files.len());
    for file in files {
        let errors = load_kubelet(Some(&file), None).expect_err(&name(&file));
        assert!(!errors.0.is_empty());
        insta::assert_snapshot!(snapshot_name("bad", &file), errors.to_string());
    }
}

#[test]
fn drop_in_files_are_merged_in_order() {
    let base = Path::new("tests/kubelet/drop-in/base.yaml");
    let directory = Path::new("tests/kubelet/drop-in/conf.d");
    let both = load_kubelet(Some(base), Some(directory)).expect("both are right");
    insta::assert_snapshot!("drop-in-both", written(&both.settings, &both.notes));
    let alone = load_kubelet(None, Some(directory)).expect("it is right");
    insta::assert_snapshot!("drop-in-alone", written(&alone.settings, &alone.notes));
    let faulty = Path::new("tests/kubelet/drop-in/faulty.d");
    let errors = load_kubelet(Some(base), Some(faulty)).expect_err("it is wrong");
    insta::assert_snapshot!("drop-in-faulty", errors.to_string());
}

#[test]
fn unreadable_files_are_named_in_the_error() {
    let errors = |file, directory: Option<&Path>| {
        load_kubelet(Some(Path::new(file)), directory).expect_err(file).to_string()
    };
    let missing = "tests/kubelet/none.yaml: No such file or directory (os error 2)";
    assert_eq!(errors("tests/kubelet/none.yaml", None), missing);
    assert_eq!(errors("tests/kubelet", None), "tests/kubelet: is a directory, not a file");
    let base = "tests/kubelet/good/defaults.yaml";
    let directory = errors(base, Some(Path::new("tests/kubelet/none.d")));
    assert_eq!(directory, "tests/kubelet/none.d: No such file or directory (os error 2)");
}

#[test]
fn good_configurations_of_the_agent_are_resolved() {
    let files = files("tests/agent/good");
    assert!(files.len() >= 5, "only {} files", files.len());
    for file in files {
        let configuration = load_agent(Some(&file)).unwrap_or_else(|errors| panic!("{errors}"));
        let text = written(&configuration.settings, &configuration.notes);
        insta::assert_snapshot!(snapshot_name("agent-good", &file), text);
        // A value from the command line changes no other field.
        let mut changed = configuration.clone();
        changed.override_setting("action", serde_json::json!(configuration.action)).expect("it is a field");
        changed.settings.clone_from(&configuration.settings);
        assert_eq!(changed, configuration);
    }
    let configuration = load_agent(None).expect("nothing is wrong with nothing");
    insta::assert_snapshot!("agent-default", written(&configuration.settings, &configuration.notes));
}

#[test]
fn all_agent_config_errors_are_reported_at_once() {
    let files = files("tests/agent/bad");
    assert!(files.len() >= 5, "only {} files", files.len());
    for file in files {
        let errors = load_agent(Some(&file)).expect_err(&name(&file));
        insta::assert_snapshot!(snapshot_name("agent-bad", &file), errors.to_string());
    }
}

fn page(name: &str) -> String {
    std::fs::read_to_string(Path::new("../docs").join(name)).expect("it is part of the repository")
}

#[test]
fn example_in_the_documentation_is_valid() {
    let page = page("configuration.md");
    let blocks: Vec<&str> = page.split("```yaml\n").skip(1).collect();
    assert_eq!(blocks.len(), 1);
    let folder = tempfile::tempdir().expect("there is room for a file");
    let file = folder.path().join("agent.yaml");
    let text = blocks[0].split("```").next().expect("the block ends");
    std::fs::write(&file, text).expect("there is room for a file");
    let configuration = load_agent(Some(&file)).unwrap_or_else(|errors| panic!("{errors}"));
    insta::assert_debug_snapshot!("agent-documented", configuration.policy);
}

/// The paths of all fields below a schema, `[]` for items of a list.
fn fields(schema: &serde_json::Value, root: &serde_json::Value, path: &str, into: &mut Vec<String>) {
    if let Some(target) = schema["$ref"].as_str().and_then(|name| root.pointer(name.strip_prefix('#')?)) {
        fields(target, root, path, into);
    }
    for alternative in schema["anyOf"].as_array().into_iter().flatten() {
        fields(alternative, root, path, into);
    }
    if schema["items"].is_object() {
        fields(&schema["items"], root, &format!("{path}[]"), into);
    }
    for (key, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        into.push(path.clone());
        fields(field, root, &path, into);
    }
}

#[test]
fn the_reference_has_a_row_for_every_field_and_no_other() {
    let reference = page("reference/configuration.md");
    let table = reference.split("## AgentConfiguration").nth(1).expect("there is such a section");
    let table = table.split("\n## ").next().expect("the section ends");
    let cells =
        table.lines().filter(|line| line.starts_with("| `")).filter_map(|line| line.split('|').nth(1));
    let rows: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let schema = std::fs::read_to_string("crates/config/schema/agent-configuration.v1alpha1.json")
        .expect("it is part of the repository");
    let schema: serde_json::Value = serde_json::from_str(&schema).expect("it is JSON");
    let mut known = Vec::new();
    fields(&schema, &schema, "", &mut known);
    // Those of Kubernetes, each described in the row of its object.
    let described = |path: &&String| path.contains(".selector.") || path.starts_with("thresholds.inline.");
    let missing: Vec<_> = known
        .iter()
        .filter(|path| !described(path) && !["apiVersion", "kind"].contains(&path.as_str()))
        .filter(|path| !rows.contains(&path.as_str()))
        .collect();
    assert!(missing.is_empty(), "no row for {missing:?}");
    for path in known.iter().filter(described) {
        let key = path.rsplit('.').next().expect("it is not empty");
        assert!(table.contains(&format!("`{key}`")), "nothing is said about {path}");
    }
    let unknown: Vec<_> = rows.iter().filter(|row| !known.iter().any(|path| path == *row)).collect();
    assert!(unknown.is_empty(), "rows without a field: {unknown:?}");
    assert!(known.len() > 60, "only {} fields", known.len());
}
