//! The dashboards: their expressions, and the rules of Grafana's dashboard-linter that apply to them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tests::folder::repository;
use tests::skip;

use crate::chart;

const BOARDS: [&str; 2] = ["fleet", "node"];
/// The newest schema whose dashboards are still one JSON document without `spec`.
const SCHEMA: u64 = 42;

/// An expression of a dashboard, with its variables.
pub(crate) struct Query {
    pub(crate) board: &'static str,
    pub(crate) panel: String,
    /// The `refId` of the query.
    pub(crate) name: String,
    pub(crate) expression: String,
}

fn read(board: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(chart(&format!("dashboards/{board}.json"))).unwrap())
        .unwrap()
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    value[key].as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

/// Returns the panels and rows of a dashboard, also the panels in collapsed rows.
fn panels_and_rows(board: &Value) -> impl Iterator<Item = &Value> {
    list(board, "panels").flat_map(|panel| std::iter::once(panel).chain(list(panel, "panels")))
}

/// Returns the panels of a dashboard without the rows.
fn panels(board: &Value) -> impl Iterator<Item = &Value> {
    panels_and_rows(board).filter(|panel| panel["type"] != "row")
}

/// Returns all expressions, also those of annotations.
pub(crate) fn queries() -> Vec<Query> {
    let of_board = |name: &'static str| {
        let board = read(name);
        let query = |panel: &str, target: &Value| Query {
            board: name,
            panel: panel.to_owned(),
            name: text(target, "refId"),
            expression: text(target, "expr"),
        };
        let of_panels = panels(&board).flat_map(|panel| {
            list(panel, "targets").map(|target| query(&text(panel, "title"), target)).collect::<Vec<_>>()
        });
        let annotations = list(&board["annotations"], "list").filter(|it| !it["expr"].is_null());
        of_panels.chain(annotations.map(|it| query("annotation", it))).collect::<Vec<_>>()
    };
    BOARDS.into_iter().flat_map(of_board).collect()
}

/// Returns an expression with the values of its variables.
pub(crate) fn resolve(expression: &str, node: &str) -> String {
    let resolved =
        expression.replace("$__rate_interval", "10s").replace("$cluster", "test").replace("$node", node);
    assert!(!resolved.contains('$'), "a variable that is not known: {expression}");
    resolved
}

#[test]
fn dashboards_have_portable_ids_and_variables() {
    for name in BOARDS {
        let board = read(name);
        assert!(board.get("id").is_none(), "{name}: Grafana gives the id");
        assert_eq!(board["uid"], format!("eviction-agent-{name}"));
        assert_eq!((&board["schemaVersion"], &board["timezone"]), (&SCHEMA.into(), &"utc".into()), "{name}");
        assert_eq!(board["editable"], false, "{name}: changes of a provisioned board are lost");
        let variables: Vec<_> = list(&board["templating"], "list").collect();
        assert_eq!(
            (text(variables[0], "name"), text(variables[0], "type")),
            ("datasource".into(), "datasource".into())
        );
        for variable in &variables[1..] {
            assert_eq!(variable["datasource"]["uid"], "${datasource}", "{name}");
            assert_eq!(variable["refresh"], 2, "{name}: variables follow the time range");
            assert!(
                text(variable, "definition").starts_with("label_values(eviction_agent_build_info"),
                "{name}"
            );
        }
        let ids: Vec<_> = panels_and_rows(&board).map(|panel| panel["id"].as_u64().unwrap()).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{name}: ids of panels");
    }
    assert_eq!(BOARDS.map(|name| panels(&read(name)).count()), [13, 26]);
}

/// Panels overlap nowhere and leave no gap in a line.
#[test]
fn panels_do_not_overlap_and_leave_no_gap() {
    for name in BOARDS {
        let board = read(name);
        let mut taken = BTreeSet::new();
        for panel in panels_and_rows(&board) {
            let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
            for cell in (y..y + h).flat_map(|y| (x..x + w).map(move |x| (x, y))) {
                assert!(cell.0 < 24 && taken.insert(cell), "{name}, {}: {cell:?}", text(panel, "title"));
            }
        }
        let lines = taken.iter().map(|(_, y)| y).collect::<BTreeSet<_>>().len();
        assert_eq!(taken.len(), lines * 24, "{name}");
    }
}

#[test]
fn panels_follow_the_rules_of_the_linter() {
    let mut faults = Vec::new();
    for name in BOARDS {
        let board = read(name);
        for panel in panels(&board) {
            let title = text(panel, "title");
            faults.extend(faults_of(panel).into_iter().map(|fault| format!("{name}, {title}: {fault}")));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn faults_of(panel: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    let mut check = |holds: bool, fault: &str| {
        if !holds {
            faults.push(fault.to_owned());
        }
    };
    let defaults = &panel["fieldConfig"]["defaults"];
    check(!text(panel, "title").is_empty(), "no title");
    check(text(panel, "description").ends_with('.'), "no description");
    check(!text(defaults, "unit").is_empty(), "no unit");
    check(!text(defaults, "noValue").is_empty(), "no text for no value");
    check(panel["datasource"]["uid"] == "${datasource}", "the data source is not the variable");
    let targets: Vec<_> = list(panel, "targets").collect();
    check(!targets.is_empty(), "no query");
    let names: BTreeSet<_> = targets.iter().map(|target| text(target, "refId")).collect();
    check(names.len() == targets.len(), "two queries of one name");
    let is_graph = panel["type"] == "timeseries" || panel["type"] == "state-timeline";
    for target in targets {
        let expression = text(target, "expr");
        check(target["datasource"] == panel["datasource"], "another data source");
        check(expression.contains("cluster=\"$cluster\""), "a query over all clusters");
        check(!is_graph || !text(target, "legendFormat").is_empty(), "a graph without a legend");
        check(target["instant"] != target["range"], "neither instant nor range");
        for function in ["rate(", "irate("] {
            let ranges = expression.match_indices(function).filter_map(|(at, _)| {
                expression[at..].split_once('[').and_then(|(_, rest)| rest.split_once(']'))
            });
            for (range, _) in ranges {
                check(range == "$__rate_interval", "a rate over a fixed time");
            }
        }
        let counters = expression.match_indices("_total{").chain(expression.match_indices("_bucket{"));
        for (at, _) in counters {
            let start = expression[..at]
                .rfind(|it: char| !it.is_ascii_alphanumeric() && it != '_')
                .map_or(0, |it| it + 1);
            let before = &expression[..start];
            let is_rate =
                ["rate(", "increase(", "changes("].iter().any(|function| before.ends_with(function));
            check(is_rate, "a counter without rate or increase");
        }
    }
    faults
}

#[test]
fn the_linter_finds_faults() {
    let sound = || panels(&read("node")).find(|panel| panel["type"] == "timeseries").unwrap().clone();
    assert_eq!(faults_of(&sound()), Vec::<String>::new());
    let expression = |text: &str| {
        let mut panel = sound();
        panel["targets"][0]["expr"] = text.into();
        faults_of(&panel)
    };
    assert_eq!(expression("rate(a_total{cluster=\"$cluster\"}[5m])"), ["a rate over a fixed time"]);
    assert_eq!(expression("sum(a_total{cluster=\"$cluster\"})"), ["a counter without rate or increase"]);
    assert_eq!(expression("up"), ["a query over all clusters"]);
    for key in ["title", "description"] {
        let mut panel = sound();
        panel[key] = "".into();
        assert_eq!(faults_of(&panel), [format!("no {key}")]);
    }
    let mut panel = sound();
    panel["fieldConfig"]["defaults"] = Value::Null;
    panel["datasource"]["uid"] = "prometheus".into();
    assert_eq!(faults_of(&panel).len(), 5);
}

/// Checks a dashboard against Grafana's own schema. Returns the error if Grafana refuses it.
fn check_schema(file: &Path) -> Result<(), String> {
    let folder = repository("tests/dashboards");
    let output = Command::new("go").current_dir(folder).args(["run", "."]).arg(file).output().unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8(output.stderr).unwrap()) }
}

#[test]
fn the_dashboards_fit_grafanas_schema() {
    if Command::new("go").arg("version").output().is_err() {
        skip!("there is no Go")
    }
    for name in BOARDS {
        assert_eq!(check_schema(&chart(&format!("dashboards/{name}.json"))), Ok(()));
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("node.json");
    let text = read("node").to_string().replace("\"fillOpacity\"", "\"fillOpacityy\"");
    std::fs::write(&file, text).unwrap();
    let refused = check_schema(&file).unwrap_err();
    assert!(refused.contains("unexpected field 'fillOpacityy'"), "{refused}");
}
