//! Every expression of dashboards and alerts, evaluated by a Prometheus that scraped the agent during the scenarios.

use serde_json::{Value, json};
use tests::prometheus::promtool;
use tests::skip;

use crate::boards::{self, Query};
use crate::rules::{rules, text};
use crate::server::Server;
use crate::stories::{ALL, Scenario};

use Scenario::{Disk, Forks, Hard, Oom};

/// Expressions that contain this text have a value other than 0 in these scenarios; in others they may have none. The
/// first match counts. All other expressions have series in each scenario.
const SCENARIO_DEPENDENT: [(&str, &[Scenario]); 14] = [
    // Without a container runtime, nothing can be removed.
    ("node_reclaim", &[]),
    ("kubelet_evictions", &[]),
    ("eviction_agent_kube_api_", &[]),
    ("threshold_eta_seconds", &[Hard]),
    ("p99_1h", &[Hard]),
    ("reaction_latency_seconds_bucket", &[Hard]),
    ("eviction_agent_evictions_total", &[Hard, Forks, Disk]),
    ("eviction_results_total", &[Hard, Forks, Disk]),
    ("oom_kills_total", &[Oom]),
    ("pod_reclaim_stall_seconds_total", &[Oom]),
    ("pod_forks_total", &[Forks]),
    ("_pids", &[Forks]),
    ("fs.available", &[Disk]),
    ("_inodes", &[Disk]),
];

/// Alerts with an expression that has a series from this scenario on. All others have none, except those that depend
/// on the machine.
const ALERTS: [(&str, Scenario); 4] = [
    ("NodeMemoryEvictionImminent", Hard),
    ("NodePodsEvicted", Hard),
    ("ContainerOOMKilledRepeatedly", Oom),
    ("ClusterEvictionStorm", Disk),
];
const MACHINE_DEPENDENT: [&str; 3] =
    ["EvictionAgentBackendDegraded", "EvictionAgentLate", "EvictionAgentDroppingEvents"];

fn has_value(series: &[Value]) -> bool {
    let samples = series.iter().filter_map(|series| series["values"].as_array()).flatten();
    let mut values = samples.filter_map(|sample| sample[1].as_str()?.parse::<f64>().ok());
    values.any(|value| value != 0.0 && !value.is_nan())
}

/// Returns the faults in the results of an expression in the scenarios.
fn faults_in_results(expression: &str, results: &[(Scenario, Vec<Value>)]) -> Vec<String> {
    let dependent = SCENARIO_DEPENDENT.iter().find(|(fragment, _)| expression.contains(fragment));
    let fails = |(scenario, series): &&(Scenario, Vec<Value>)| match dependent {
        Some((_, scenarios)) => scenarios.contains(scenario) && !has_value(series),
        None => series.is_empty(),
    };
    results
        .iter()
        .filter(fails)
        .map(|(scenario, series)| format!("{expression} in {scenario:?}: {series:?}"))
        .collect()
}

/// The environment variable with the file for the results: `cargo xtask dashboards` draws the panels from them.
const ANSWERS: &str = "EVICTION_AGENT_ANSWERS";

#[test]
fn every_expression_has_series_in_its_scenarios() {
    let Some(program) = promtool().map(|it| it.with_file_name("prometheus")).filter(|it| it.is_file()) else {
        skip!("there is no Prometheus: `cargo xtask test` unpacks Debian's package")
    };
    if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
        skip!("the kernel has no BTF, so the agent sees neither OOM kills nor forks")
    }
    if tests::node::Node::new("mixin-probe", 64 << 20, 50).is_err() {
        skip!("no cgroups can be made here")
    }
    let mut server = Server::start(&program).unwrap();
    let spans = ALL.map(|scenario| (scenario, scenario.run(&mut server).unwrap()));
    assert_eq!(server.failing_rules().unwrap(), Vec::<Value>::new());

    let (mut faults, mut panel_results) = (Vec::new(), Vec::new());
    let queries = boards::queries();
    assert!(queries.len() > 50, "{} expressions", queries.len());
    for Query { board, panel, name, expression } in &queries {
        let query_scenario = |(scenario, span): (Scenario, (f64, f64))| {
            let expression = boards::resolve(expression, scenario.name());
            (
                scenario,
                server.range(&expression, span).unwrap_or_else(|error| panic!("{board}, {panel}: {error:#}")),
            )
        };
        let results = spans.map(query_scenario);
        panel_results.extend(results.iter().map(|(scenario, series)| {
            json!({"board": board, "panel": panel, "refId": name, "story": scenario.name(), "series": series})
        }));
        faults.extend(
            faults_in_results(expression, &results)
                .into_iter()
                .map(|fault| format!("{board}, {panel}: {fault}")),
        );
    }
    if let Some(file) = std::env::var_os(ANSWERS) {
        std::fs::write(file, Value::from(panel_results).to_string()).unwrap();
    }
    for alert in rules("rules/alerts.yaml") {
        let name = text(&alert, "alert");
        let first = ALERTS.iter().find(|(alert, _)| *alert == name).map(|(_, scenario)| *scenario);
        for (scenario, span) in spans {
            let series = server.range(text(&alert, "expr"), span).unwrap();
            let wanted = first.is_some_and(|first| first == scenario);
            let is_over = first.is_some_and(|first| (first as u8) < scenario as u8);
            // A busy machine misses a scrape now and then; an alert that waits does not fire for that.
            let missed = usize::from(alert.get("for").is_some());
            let holds = series.iter().any(|it| it["values"].as_array().is_some_and(|it| it.len() > missed));
            if !is_over && !MACHINE_DEPENDENT.contains(&name) && holds != wanted {
                faults.push(format!("{name} in {scenario:?}: {series:?}"));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
