//! The reference of metrics against the registry.

#![expect(clippy::expect_used, reason = "a test stops at the first surprise")]

use std::collections::{BTreeMap, BTreeSet};

use eviction_agent::telemetry::metrics::{Form, MetricGroup, Metrics};

/// Every metric by its name as it is scraped, with its type.
fn registered(groups: &[MetricGroup]) -> BTreeMap<String, String> {
    let metrics = Metrics::new("0", "0");
    groups.iter().for_each(|group| metrics.with(*group));
    let text = metrics.encode(Form::OpenMetrics).expect("metrics can be written");
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types
        .map(|(name, kind)| {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                _ => ("", kind),
            };
            (format!("{name}{suffix}"), kind.to_owned())
        })
        .collect()
}

fn all() -> BTreeMap<String, String> {
    registered(&[MetricGroup::Recorder, MetricGroup::Api, MetricGroup::Watch])
}

/// The first two columns of the tables: name and type.
fn documented() -> BTreeMap<String, String> {
    let manual = include_str!("../../docs/reference/metrics.md");
    let rows = manual.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| {
        let mut cells = row.split(" | ");
        let name = cells.next().unwrap_or_default().trim_end_matches('`');
        let prefix =
            if name.starts_with("process_") && !name.contains("mrelease") { "" } else { "eviction_agent_" };
        (format!("{prefix}{name}"), cells.next().unwrap_or_default().to_owned())
    })
    .collect()
}

#[test]
fn the_reference_has_every_metric_with_its_type_and_no_other() {
    let (registered, documented) = (all(), documented());
    assert!(registered.len() > 60, "{registered:?}");
    let missing: Vec<_> =
        registered.iter().filter(|(name, kind)| documented.get(*name) != Some(kind)).collect();
    let unknown: Vec<_> =
        documented.iter().filter(|(name, kind)| registered.get(*name) != Some(kind)).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "missing {missing:#?}, unknown {unknown:#?}");
}

#[test]
fn cluster_metrics_are_not_registered_standalone() {
    let standalone = registered(&[]);
    for name in standalone.keys() {
        assert!(!name.contains("_kube_") && !name.contains("node_status"), "{name}");
    }
    assert!(standalone.len() < all().len());
}

#[test]
fn every_metric_that_a_page_names_is_registered() {
    let names: BTreeSet<_> = all().into_keys().collect();
    let mut named = 0;
    for entry in std::fs::read_dir("../docs").expect("docs are part of the repository") {
        let path = entry.expect("the folder can be listed").path();
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        for rest in text.split("eviction_agent_").skip(1) {
            let name: String = rest.chars().take_while(|it| it.is_ascii_lowercase() || *it == '_').collect();
            let name = format!("eviction_agent_{name}");
            if !name.ends_with('_') {
                let base = ["_bucket", "_count", "_sum"].iter().find_map(|suffix| name.strip_suffix(suffix));
                let is_there = names.contains(&name) || base.is_some_and(|base| names.contains(base));
                assert!(is_there, "{}: there is no {name}", path.display());
                named += 1;
            }
        }
    }
    assert!(named > 5, "only {named} names");
}
