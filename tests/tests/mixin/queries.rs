//! Every expression of dashboards and alerts, asked of a Prometheus that scraped the agent while something happened.

use serde_json::{Value, json};
use tests::prometheus::promtool;
use tests::skip;

use crate::boards::{self, Query};
use crate::rules::{rules, text};
use crate::server::Server;
use crate::stories::{ALL, Story};

use Story::{Disk, Forks, Hard, Oom};

/// Expressions that contain this have a value other than 0 in these stories; others may have none. The first that
/// fits counts. All other expressions have series in each story.
const SOMETIMES: [(&str, &[Story]); 14] = [
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

/// Alerts whose expression has a series, from this story on. All others have none, except those that depend on the
/// machine.
const ALERTS: [(&str, Story); 4] = [
    ("NodeMemoryEvictionImminent", Hard),
    ("NodePodsEvicted", Hard),
    ("ContainerOOMKilledRepeatedly", Oom),
    ("ClusterEvictionStorm", Disk),
];
const OF_THE_MACHINE: [&str; 3] =
    ["EvictionAgentBackendDegraded", "EvictionAgentLate", "EvictionAgentDroppingEvents"];

fn has_value(series: &[Value]) -> bool {
    let samples = series.iter().filter_map(|series| series["values"].as_array()).flatten();
    let mut values = samples.filter_map(|sample| sample[1].as_str()?.parse::<f64>().ok());
    values.any(|value| value != 0.0 && !value.is_nan())
}

/// What is wrong with the answers to an expression in the stories, if anything.
fn judge(expression: &str, answers: &[(Story, Vec<Value>)]) -> Vec<String> {
    let sometimes = SOMETIMES.iter().find(|(fragment, _)| expression.contains(fragment));
    let fails = |(story, series): &&(Story, Vec<Value>)| match sometimes {
        Some((_, stories)) => stories.contains(story) && !has_value(series),
        None => series.is_empty(),
    };
    answers
        .iter()
        .filter(fails)
        .map(|(story, series)| format!("{expression} in {story:?}: {series:?}"))
        .collect()
}

/// Says where the answers are to be kept: `cargo xtask dashboards` draws the panels from them.
const ANSWERS: &str = "EVICTION_AGENT_ANSWERS";

#[test]
fn every_expression_has_series_when_something_happens() {
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
    let spans = ALL.map(|story| (story, story.play(&mut server).unwrap()));
    assert_eq!(server.failing_rules().unwrap(), Vec::<Value>::new());

    let (mut wrong, mut kept) = (Vec::new(), Vec::new());
    let queries = boards::queries();
    assert!(queries.len() > 50, "{} expressions", queries.len());
    for Query { board, panel, name, expression } in &queries {
        let ask = |(story, span): (Story, (f64, f64))| {
            let expression = boards::resolve(expression, story.name());
            (
                story,
                server.range(&expression, span).unwrap_or_else(|error| panic!("{board}, {panel}: {error:#}")),
            )
        };
        let answers = spans.map(ask);
        kept.extend(answers.iter().map(|(story, series)| {
            json!({"board": board, "panel": panel, "refId": name, "story": story.name(), "series": series})
        }));
        wrong.extend(
            judge(expression, &answers).into_iter().map(|fault| format!("{board}, {panel}: {fault}")),
        );
    }
    if let Some(file) = std::env::var_os(ANSWERS) {
        std::fs::write(file, Value::from(kept).to_string()).unwrap();
    }
    for alert in rules("rules/alerts.yaml") {
        let name = text(&alert, "alert");
        let first = ALERTS.iter().find(|(alert, _)| *alert == name).map(|(_, story)| *story);
        for (story, span) in spans {
            let series = server.range(text(&alert, "expr"), span).unwrap();
            let wanted = first.is_some_and(|first| first == story);
            let is_over = first.is_some_and(|first| (first as u8) < story as u8);
            // A busy machine misses a scrape now and then; an alert that waits does not fire for that.
            let missed = usize::from(alert.get("for").is_some());
            let holds = series.iter().any(|it| it["values"].as_array().is_some_and(|it| it.len() > missed));
            if !is_over && !OF_THE_MACHINE.contains(&name) && holds != wanted {
                wrong.push(format!("{name} in {story:?}: {series:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
}
