//! The text format of the metrics. The `Accept` header selects it, and metric families are sorted by name.
//!
//! prometheus-client writes OpenMetrics without the creation times of counters (`_created`). Older scrapers need
//! Prometheus text 0.0.4, which has the same samples, but names a counter's family with its `_total` and has no
//! units, no `info` type, no creation times and no end mark.

use std::fmt::Write as _;

use super::family::CREATED;

/// A text format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// Prometheus text 0.0.4.
    Prometheus,
}

impl Form {
    /// Returns the form with the higher quality in the `Accept` header, and Prometheus text if none is named.
    pub fn wanted(accept: Option<&str>) -> Self {
        let (mut open, mut plain) = (0.0, 0.0);
        for range in accept.unwrap_or_default().split(',') {
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            let quality = parts
                .filter_map(|part| part.strip_prefix("q="))
                .find_map(|value| value.parse::<f32>().ok())
                .unwrap_or(1.0);
            match media {
                "application/openmetrics-text" => open = quality.max(open),
                "text/plain" | "text/*" | "*/*" => plain = quality.max(plain),
                _ => {}
            }
        }
        if open > 0.0 && open >= plain { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// Returns the media type.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Rewrites the output of prometheus-client. The creation time of a counter without labels is `started`, the
    /// agent's start.
    pub(super) fn rewrite(self, text: &str, started: f64) -> String {
        let mut families: Vec<&str> = Vec::new();
        let mut begin = 0;
        for (at, _) in text.match_indices("# HELP ") {
            // The value of a label has no line break, so a match at the start of a line is not part of a value.
            if at > begin && text.as_bytes().get(at - 1) == Some(&b'\n') {
                families.push(&text[begin..at]);
                begin = at;
            }
        }
        families.push(text[begin..].trim_end_matches("# EOF\n"));
        families.sort_unstable_by_key(|family| family.lines().next());
        let mut out = String::with_capacity(text.len() + text.len() / 2);
        for family in families {
            self.rewrite_family(family, started, &mut out);
        }
        if self == Self::OpenMetrics {
            out.push_str("# EOF\n");
        }
        out
    }

    fn rewrite_family(self, family: &str, started: f64, out: &mut String) {
        let kind = family.lines().find_map(|line| line.strip_prefix("# TYPE ")?.split(' ').nth(1));
        let (suffix, old_kind) = match kind {
            Some("counter") => ("_total", "counter"),
            Some("info") => ("_info", "gauge"),
            other => ("", other.unwrap_or("untyped")),
        };
        for line in family.lines() {
            let mut words = line.splitn(4, ' ');
            let _infallible = match (self, words.next(), words.next(), words.next(), words.next()) {
                (Self::Prometheus, Some("#"), Some("HELP"), Some(name), help) => {
                    writeln!(out, "# HELP {name}{suffix} {}", help.unwrap_or_default())
                }
                (Self::Prometheus, Some("#"), Some("TYPE"), Some(name), _) => {
                    writeln!(out, "# TYPE {name}{suffix} {old_kind}")
                }
                (Self::Prometheus, Some("#"), ..) => Ok(()),
                (Self::OpenMetrics, Some("#"), ..) => writeln!(out, "{line}"),
                _ if kind == Some("counter") => self.counter(line, started, out),
                // Both forms write infinity as `+Inf`.
                _ => writeln!(
                    out,
                    "{}",
                    line.strip_suffix(" inf").map_or(line.to_owned(), |it| format!("{it} +Inf"))
                ),
            };
        }
    }

    fn counter(self, line: &str, started: f64, out: &mut String) -> std::fmt::Result {
        let (series, created) = without_created(line);
        writeln!(out, "{series}")?;
        if self == Self::Prometheus {
            return Ok(());
        }
        let name_end = series.find(['{', ' ']).unwrap_or(series.len());
        let labels_end = series.rfind(' ').unwrap_or(series.len());
        let name = series[..name_end].trim_end_matches("_total");
        let labels = &series[name_end..labels_end];
        let created = created.map_or_else(|| started.to_string(), str::to_owned);
        writeln!(out, "{name}_created{labels} {created}")
    }
}

/// Returns the sample without its label [`CREATED`], and the value of that label.
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
    fn accept_header_selects_the_text_format() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        assert_eq!(Form::wanted(Some(prometheus)), Form::OpenMetrics);
        assert_eq!(Form::wanted(Some("text/plain;version=0.0.4")), Form::Prometheus);
        assert_eq!(Form::wanted(Some("text/plain, application/openmetrics-text;q=0.1")), Form::Prometheus);
        assert_eq!(Form::wanted(Some("application/openmetrics-text;q=0")), Form::Prometheus);
        assert_eq!(Form::wanted(None), Form::Prometheus);
    }

    const WRITTEN: &str = "# HELP b_looks Looks.\n# TYPE b_looks counter\n\
        b_looks_total{why=\"x # HELP a\",__created__=\"12.5\"} 3\n\
        # HELP a_size Size.\n# TYPE a_size gauge\na_size 1\n\
        # HELP a_runs Runs.\n# TYPE a_runs counter\na_runs_total 7\n\
        # HELP a_build Version.\n# TYPE a_build info\na_build_info{version=\"1\"} 1\n\
        # HELP a_wait_seconds Wait.\n# TYPE a_wait_seconds histogram\n# UNIT a_wait_seconds seconds\n\
        a_wait_seconds_sum 0.5\n\
        # HELP a_eta_seconds Left.\n# TYPE a_eta_seconds gauge\n# UNIT a_eta_seconds seconds\n\
        a_eta_seconds{signal=\"s\"} inf\n# EOF\n";

    #[test]
    fn metric_families_are_sorted_and_counters_have_their_creation_time() {
        assert_eq!(
            Form::OpenMetrics.rewrite(WRITTEN, 2.0),
            "# HELP a_build Version.\n# TYPE a_build info\na_build_info{version=\"1\"} 1\n\
             # HELP a_eta_seconds Left.\n# TYPE a_eta_seconds gauge\n# UNIT a_eta_seconds seconds\n\
             a_eta_seconds{signal=\"s\"} +Inf\n\
             # HELP a_runs Runs.\n# TYPE a_runs counter\na_runs_total 7\na_runs_created 2\n\
             # HELP a_size Size.\n# TYPE a_size gauge\na_size 1\n\
             # HELP a_wait_seconds Wait.\n# TYPE a_wait_seconds histogram\n# UNIT a_wait_seconds seconds\n\
             a_wait_seconds_sum 0.5\n\
             # HELP b_looks Looks.\n# TYPE b_looks counter\n\
             b_looks_total{why=\"x # HELP a\"} 3\nb_looks_created{why=\"x # HELP a\"} 12.5\n# EOF\n"
        );
    }

    #[test]
    fn prometheus_text_names_counters_and_infos_with_their_suffix() {
        assert_eq!(
            Form::Prometheus.rewrite(WRITTEN, 2.0),
            "# HELP a_build_info Version.\n# TYPE a_build_info gauge\na_build_info{version=\"1\"} 1\n\
             # HELP a_eta_seconds Left.\n# TYPE a_eta_seconds gauge\na_eta_seconds{signal=\"s\"} +Inf\n\
             # HELP a_runs_total Runs.\n# TYPE a_runs_total counter\na_runs_total 7\n\
             # HELP a_size Size.\n# TYPE a_size gauge\na_size 1\n\
             # HELP a_wait_seconds Wait.\n# TYPE a_wait_seconds histogram\na_wait_seconds_sum 0.5\n\
             # HELP b_looks_total Looks.\n# TYPE b_looks_total counter\nb_looks_total{why=\"x # HELP a\"} 3\n"
        );
    }
}
