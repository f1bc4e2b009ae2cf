//! The Helm chart `deploy/charts/eviction-agent`, rendered by Helm itself, and the files that are generated from it.
//!
//! `cargo xtask chart` runs these tests; `cargo xtask chart --update` writes the generated files again.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod generated;
mod refusals;
mod rendered;

use std::fs;
use std::path::Path;

use serde::Deserialize as _;
use serde_json::Value;
use tests::helm::{Helm, chart};

/// The environment variable with the path of kubernetes-validate; `cargo xtask` installs it.
const VALIDATE: &str = "EVICTION_AGENT_KUBERNETES_VALIDATE";
/// The environment variable that makes the tests write the generated files again.
const UPDATE: &str = "EVICTION_AGENT_UPDATE";

/// The release and the namespace of everything that is rendered.
const NAME: &str = "eviction-agent";
/// The newest Kubernetes for which there are schemas, and the minor versions of all of them.
const NEWEST: &str = "1.37.0";
const MINORS: std::ops::RangeInclusive<u32> = 29..=37;

/// Runs `helm template` for that version of Kubernetes, with more arguments.
fn render(helm: &Helm, kubernetes: &str, more: &[&str]) -> Result<String, String> {
    let chart = chart();
    let fixed = ["template", NAME, chart.to_str().unwrap(), "--namespace", NAME];
    helm.run(&[&fixed, ["--kube-version", kubernetes].as_slice(), more].concat())
}

/// Returns the values files of `ci`, by name.
fn ci_values() -> Vec<(String, String)> {
    let mut found: Vec<_> = fs::read_dir(chart().join("ci"))
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let name = name.strip_suffix("-values.yaml").unwrap().to_owned();
            (name, path.to_str().unwrap().to_owned())
        })
        .collect();
    found.sort();
    assert!(found.len() > 8, "{found:?}");
    found
}

/// Returns the objects of a rendered chart.
fn objects(text: &str) -> Vec<Value> {
    let documents = serde_yaml_ng::Deserializer::from_str(text);
    let objects = documents.map(|document| Value::deserialize(document).unwrap());
    objects.filter(|object| !object.is_null()).collect()
}

/// Returns the only object of that kind without a hook.
fn only_object<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let is_hook = |object: &Value| !object["metadata"]["annotations"]["helm.sh/hook"].is_null();
    let mut found = objects.iter().filter(|object| object["kind"] == kind && !is_hook(object));
    let object = found.next().unwrap_or_else(|| panic!("no {kind}"));
    assert!(found.next().is_none(), "several of {kind}");
    object
}

/// Compares a generated file with its expected text, or writes it.
fn assert_file(path: &Path, expected: &str) {
    if std::env::var_os(UPDATE).is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        return fs::write(path, expected).unwrap();
    }
    let found = fs::read_to_string(path).unwrap_or_default();
    let differs = found.lines().zip(expected.lines()).position(|(found, expected)| found != expected);
    let line = differs.unwrap_or_else(|| found.lines().count().min(expected.lines().count()));
    assert!(
        found == expected,
        "{}:{}: must be {:?}; `cargo xtask chart --update` writes it",
        path.display(),
        line + 1,
        expected.lines().nth(line).unwrap_or("the end"),
    );
}
