//! Which of the two text forms of metrics a scraper gets.
//!
//! prometheus-client writes OpenMetrics. Older scrapers want Prometheus text 0.0.4, which has
//! the same samples, but names a counter's family with its `_total`, has no units, no `info`
//! type and no end mark.

use std::fmt::Write as _;

use hyper::header::HeaderValue;

/// The two forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    OpenMetrics,
    Prometheus,
}

impl Form {
    /// By the `Accept` header: the form with the higher quality, the older one if none is named.
    pub(super) fn wanted(accept: Option<&str>) -> Self {
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

    pub(super) fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        })
    }

    pub(super) fn render(self, open_metrics: String) -> String {
        match self {
            Self::OpenMetrics => open_metrics,
            Self::Prometheus => to_prometheus(&open_metrics),
        }
    }
}

/// The older form has no time at which a counter began.
fn is_created(sample: &str) -> bool {
    sample.split(['{', ' ']).next().is_some_and(|name| name.ends_with("_created"))
}

fn to_prometheus(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len());
    // HELP comes before TYPE, and only TYPE tells the suffix.
    let mut help: Option<(&str, &str)> = None;
    let mut is_counter = false;
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let Some((name, kind)) = rest.split_once(' ') else { continue };
            is_counter = kind == "counter";
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                other => ("", other),
            };
            if let Some((_, text)) = help.take().filter(|(of, _)| *of == name) {
                let _infallible = writeln!(out, "# HELP {name}{suffix} {text}");
            }
            let _infallible = writeln!(out, "# TYPE {name}{suffix} {kind}");
        } else if !(line.starts_with('#') || is_counter && is_created(line)) {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scraper_chooses_the_form() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        assert_eq!(Form::wanted(Some(prometheus)), Form::OpenMetrics);
        assert_eq!(Form::wanted(Some("text/plain;version=0.0.4")), Form::Prometheus);
        assert_eq!(Form::wanted(Some("text/plain, application/openmetrics-text;q=0.1")), Form::Prometheus);
        assert_eq!(Form::wanted(Some("application/openmetrics-text;q=0")), Form::Prometheus);
        assert_eq!(Form::wanted(None), Form::Prometheus);
    }

    #[test]
    fn counters_and_infos_are_named_as_the_older_form_wants() {
        let open = "# HELP a_looks Looks.\n# TYPE a_looks counter\na_looks_total{trigger=\"timer\"} 3\n\
            a_looks_created{trigger=\"timer\"} 1.5\n\
            # HELP a_build Version.\n# TYPE a_build info\na_build_info{version=\"1\"} 1\n\
            # HELP a_wait_seconds Wait.\n# TYPE a_wait_seconds histogram\n# UNIT a_wait_seconds seconds\n\
            a_wait_seconds_sum 0.5\n# EOF\n";
        assert_eq!(
            to_prometheus(open),
            "# HELP a_looks_total Looks.\n# TYPE a_looks_total counter\na_looks_total{trigger=\"timer\"} 3\n\
             # HELP a_build_info Version.\n# TYPE a_build_info gauge\na_build_info{version=\"1\"} 1\n\
             # HELP a_wait_seconds Wait.\n# TYPE a_wait_seconds histogram\na_wait_seconds_sum 0.5\n"
        );
    }
}
