//! The manual of metrics against the metrics.

use std::collections::BTreeSet;

/// As they are scraped, less `_total`. From the text of the source: a family in which nothing has happened
/// is not exported, so that a fresh registry shows half of them.
fn registered() -> BTreeSet<String> {
    let source = include_str!("../src/metrics/register.rs");
    let quoted = |text: &str| Some(text.split('"').nth(1)?.to_owned());
    let calls = source.split("r.register").skip(1).filter_map(|call| {
        let unit = match call {
            _ if call.contains("Unit::Seconds") => "_seconds",
            _ if call.contains("Unit::Bytes") => "_bytes",
            _ => "",
        };
        Some(quoted(call)? + unit)
    });
    calls.chain(["build_info".to_owned()]).collect()
}

/// Names in the first columns of the tables, less `_total`.
fn documented() -> BTreeSet<String> {
    let manual = include_str!("../../docs/reference/metrics.md");
    let tables = manual.split("## What to be woken for").next().unwrap_or(manual);
    let first = tables.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let names = first.flat_map(|cell| cell.split(", ")).map(|name| name.trim_matches('`'));
    names.map(|name| name.strip_suffix("_total").unwrap_or(name).to_owned()).collect()
}

#[test]
fn the_manual_has_every_metric_and_no_other() {
    let (registered, documented) = (registered(), documented());
    assert!(registered.len() > 60, "{registered:?}");
    let missing: Vec<_> = registered.difference(&documented).collect();
    let unknown: Vec<_> = documented.difference(&registered).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "missing {missing:?}, unknown {unknown:?}");
}

#[test]
fn what_the_manuals_name_is_there() {
    let registered = registered();
    let mut named = 0;
    for entry in std::fs::read_dir("../docs").expect("it is part of the repository") {
        let path = entry.expect("it can be listed").path();
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        for rest in text.split("eviction_agent_").skip(1) {
            let name: String = rest.chars().take_while(|it| it.is_ascii_lowercase() || *it == '_').collect();
            if !name.is_empty() {
                let name = name.strip_suffix("_total").unwrap_or(&name);
                assert!(registered.contains(name), "{}: there is no eviction_agent_{name}", path.display());
                named += 1;
            }
        }
    }
    assert!(named > 20, "only {named} names");
}
