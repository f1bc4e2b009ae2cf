//! The text of all metrics: families by name, each counter with the time at which it began.

use std::fmt::Write as _;

use super::family::CREATED;

/// Sorts the families of what prometheus-client has written, and adds `_created` to counters.
///
/// A counter without labels is as old as the agent, `started`.
pub(super) fn arrange(text: &str, started: f64) -> String {
    let mut families: Vec<&str> = Vec::new();
    let mut begin = 0;
    for (at, _) in text.match_indices("# HELP ") {
        // A label's value has no line break, so at the begin of a line this is no part of one.
        if at > begin && text.as_bytes().get(at - 1) == Some(&b'\n') {
            families.push(&text[begin..at]);
            begin = at;
        }
    }
    families.push(text[begin..].trim_end_matches("# EOF\n"));
    families.sort_unstable_by_key(|family| family.lines().next());
    let mut out = String::with_capacity(text.len() + text.len() / 2);
    for family in families {
        let is_counter = family.lines().any(|line| line.starts_with("# TYPE ") && line.ends_with(" counter"));
        if is_counter {
            counters(family, started, &mut out);
        } else {
            // OpenMetrics spells it so.
            out.push_str(&family.replace(" inf\n", " +Inf\n"));
        }
    }
    out.push_str("# EOF\n");
    out
}

fn counters(family: &str, started: f64, out: &mut String) {
    for line in family.lines() {
        if line.starts_with('#') {
            let _infallible = writeln!(out, "{line}");
            continue;
        }
        let (series, created) = without_created(line);
        let _infallible = writeln!(out, "{series}");
        let name_end = series.find(['{', ' ']).unwrap_or(series.len());
        let labels_end = series.rfind(' ').unwrap_or(series.len());
        let name = series[..name_end].trim_end_matches("_total");
        let labels = &series[name_end..labels_end];
        let created = created.map_or_else(|| started.to_string(), str::to_owned);
        let _infallible = writeln!(out, "{name}_created{labels} {created}");
    }
}

/// The sample without its label [`CREATED`], and that label's value.
fn without_created(line: &str) -> (String, Option<&str>) {
    let key = format!("{CREATED}=\"");
    let parts = line.rfind(&key).and_then(|at| {
        let (value, rest) = line[at + key.len()..].split_once('"')?;
        Some((line[..at].trim_end_matches(','), value, rest))
    });
    match parts {
        Some((before, value, rest)) => (format!("{before}{rest}"), Some(value)),
        None => (line.to_owned(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_families_are_sorted_and_counters_have_their_creation_time() {
        let text = "# HELP b_looks Looks.\n# TYPE b_looks counter\n\
            b_looks_total{why=\"x # HELP a\",__created__=\"12.5\"} 3\n\
            # HELP a_size Size.\n# TYPE a_size gauge\na_size 1\n\
            # HELP a_runs Runs.\n# TYPE a_runs counter\na_runs_total 7\n# EOF\n";
        assert_eq!(
            arrange(text, 2.0),
            "# HELP a_runs Runs.\n# TYPE a_runs counter\na_runs_total 7\na_runs_created 2\n\
             # HELP a_size Size.\n# TYPE a_size gauge\na_size 1\n\
             # HELP b_looks Looks.\n# TYPE b_looks counter\n\
             b_looks_total{why=\"x # HELP a\"} 3\nb_looks_created{why=\"x # HELP a\"} 12.5\n# EOF\n"
        );
    }
}
