//! The rule files, checked by promtool and by the conventions of mixins.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_yaml_ng::Value;
use tests::folder::repository;
use tests::prometheus::promtool;
use tests::skip;

use crate::chart;

const TESTS: &str = "deploy/mixin/tests/alerts.yaml";
/// The site of each `runbook_url`, followed by the path in this repository.
const SITE: &str = "https://eviction-agent.io/";

fn yaml(path: &Path) -> Value {
    serde_yaml_ng::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns the rules of a file.
pub(crate) fn rules(file: &str) -> Vec<Value> {
    let file = yaml(&chart(file));
    let groups = file["groups"].as_sequence().unwrap();
    groups.iter().flat_map(|group| group["rules"].as_sequence().unwrap()).cloned().collect()
}

pub(crate) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no text {key} in {value:?}"))
}

#[test]
fn promtool_accepts_the_rules_and_their_tests() {
    let Some(promtool) = promtool() else {
        skip!("there is no promtool: `cargo xtask test` unpacks Debian's package prometheus")
    };
    let files = ["rules/alerts.yaml", "rules/recording.yaml"].map(chart);
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        let printed = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&printed));
    };
    run(Command::new(&promtool).args(["check", "rules", "--lint=all", "--lint-fatal"]).args(files));
    run(Command::new(&promtool).args(["test", "rules"]).arg(repository(TESTS)));
}

/// Users of monitoring mixins import what the chart has, here by the jsonnet of its Go module.
#[test]
fn the_mixin_has_the_rules_and_dashboards_of_the_chart() {
    let program = "local mixin = import 'mixin.libsonnet'; \
        {alerts: mixin.prometheusAlerts, rules: mixin.prometheusRules, boards: mixin.grafanaDashboards}";
    let mut jsonnet = Command::new("go");
    jsonnet.args(["tool", "jsonnet", "--jpath"]).arg(repository("deploy/mixin")).args(["--exec", program]);
    let Ok(output) = jsonnet.current_dir(repository("tests/dashboards")).output() else {
        skip!("there is no Go")
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mixin: Value = serde_yaml_ng::from_slice(&output.stdout).unwrap();
    assert_eq!(mixin["alerts"], yaml(&chart("rules/alerts.yaml")));
    assert_eq!(mixin["rules"], yaml(&chart("rules/recording.yaml")));
    let boards = mixin["boards"].as_mapping().unwrap();
    assert_eq!(boards.len(), 2);
    for (name, board) in boards {
        let file = name.as_str().unwrap().strip_prefix("eviction-agent-").unwrap();
        assert_eq!(*board, yaml(&chart(&format!("dashboards/{file}"))), "{file}");
    }
}

#[test]
fn each_alert_has_a_severity_annotations_and_a_runbook() {
    let alerts = rules("rules/alerts.yaml");
    assert_eq!((alerts.len(), rules("rules/recording.yaml").len()), (16, 5));
    let mut pages: BTreeSet<_> = std::fs::read_dir(repository("docs/runbooks"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    for alert in &alerts {
        let name = text(alert, "alert");
        assert!(["info", "warning", "critical"].contains(&text(&alert["labels"], "severity")), "{name}");
        let annotations = &alert["annotations"];
        for key in ["summary", "description"] {
            assert!(text(annotations, key).ends_with('.'), "{name}: {key} is no sentence");
        }
        let page = format!("docs/runbooks/{name}.md");
        assert_eq!(text(annotations, "runbook_url"), format!("{SITE}{page}"));
        assert!(pages.remove(&format!("{name}.md")), "{page} is missing");
        let runbook = std::fs::read_to_string(repository(&page)).unwrap();
        let headings: Vec<_> = runbook.lines().filter(|line| line.starts_with('#')).collect();
        let title = format!("# {name}");
        assert_eq!(
            headings,
            [title.as_str(), "## Meaning", "## Impact", "## Diagnosis", "## Mitigation"],
            "{page}"
        );
    }
    assert!(pages.is_empty(), "pages without an alert: {pages:?}");
}

#[test]
fn each_alert_fires_in_one_test_and_is_silent_in_another() {
    let file = yaml(&repository(TESTS));
    let mut seen = BTreeSet::new();
    for test in file["tests"].as_sequence().unwrap() {
        let name = text(test, "name");
        let alert = name.split(' ').next().unwrap();
        for expression_test in test["promql_expr_test"].as_sequence().unwrap() {
            let expected = format!("ALERTS{{alertname=\"{alert}\", alertstate=\"firing\"}}");
            assert_eq!(text(expression_test, "expr"), expected, "{name}");
            let fires = !expression_test["exp_samples"].as_sequence().unwrap().is_empty();
            let verb = if fires { "fires" } else { "is silent: " };
            assert!(name.starts_with(&format!("{alert} {verb}")), "{name}");
            seen.insert((alert, fires));
        }
    }
    let alerts = rules("rules/alerts.yaml");
    let wanted = alerts.iter().flat_map(|alert| [false, true].map(|fires| (text(alert, "alert"), fires)));
    assert_eq!(seen, wanted.collect());
}
