//! The agent's /metrics as a monitoring system reads them: over HTTP, by name and labels.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::process::HANG;

/// A page of metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    samples: Vec<Sample>,
}

#[derive(Clone, Debug, PartialEq)]
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

/// The timeout for an endpoint that hangs.
const GUARD: Duration = HANG;

impl Metrics {
    /// Reads the endpoint at that address.
    ///
    /// # Errors
    /// If it does not answer with a page of metrics.
    pub fn read(address: SocketAddr) -> Result<Self> {
        let text = get(address, "/metrics").with_context(|| format!("get http://{address}/metrics"))?;
        Self::parse(&text)
    }

    /// Parses the text format. Exemplars and timestamps are ignored.
    ///
    /// # Errors
    /// If a line does not have that format.
    pub fn parse(text: &str) -> Result<Self> {
        let samples = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(|line| parse_sample(line).with_context(|| format!("metrics line `{line}`")))
            .collect::<Result<_>>()?;
        Ok(Self { samples })
    }

    /// Returns the sum of all series of that name with these labels; 0 if there is none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.series(name, labels).map(|sample| sample.value).sum()
    }

    fn series(&self, name: &str, labels: &[(&str, &str)]) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| {
            let has = |(key, value): &(&str, &str)| sample.labels.iter().any(|(k, v)| k == key && v == value);
            sample.name == name && labels.iter().all(has)
        })
    }

    /// Returns the series with names that begin like this and values that are not zero, as text.
    pub fn nonzero_series(&self, prefix: &str) -> String {
        let samples =
            self.samples.iter().filter(|sample| sample.name.starts_with(prefix) && sample.value != 0.0);
        let lines = samples.map(|Sample { name, labels, value }| {
            let labels: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            format!("{name}{{{}}} {value}", labels.join(","))
        });
        lines.collect::<Vec<_>>().join(", ")
    }

    /// Returns whether there is a series of that name with these labels.
    pub fn has_series(&self, name: &str, labels: &[(&str, &str)]) -> bool {
        self.series(name, labels).next().is_some()
    }

    /// Returns the values of that label in the series of that name.
    pub fn values<'a>(&'a self, name: &'a str, label: &'a str) -> impl Iterator<Item = &'a str> {
        let of_name = self.samples.iter().filter(move |sample| sample.name == name);
        let labels = of_name.flat_map(|sample| &sample.labels);
        labels.filter(move |(key, _)| key == label).map(|(_, value)| value.as_str())
    }
}

/// Returns the body of a server's response to a GET.
///
/// # Errors
/// If it does not answer, or not with status 200.
pub fn get(address: SocketAddr, path: &str) -> Result<String> {
    let (status, body) = request(address, path, "")?;
    ensure!(status == 200, "the answer was {status}: {body}");
    Ok(body)
}

/// Returns the status and the body of a server's response to a GET with these headers, each with its line end.
///
/// # Errors
/// If it does not answer.
pub fn request(address: SocketAddr, path: &str, headers: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, GUARD).context("connect")?;
    stream.set_read_timeout(Some(GUARD))?;
    stream.set_write_timeout(Some(GUARD))?;
    // HTTP/1.0: the response comes in one piece and ends with the connection.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("read the answer")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without an end of its head")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.with_context(|| format!("no status in `{head}`"))?, body.to_owned()))
}

fn parse_sample(line: &str) -> Result<Sample> {
    let (name, rest) = match line.split_once('{') {
        Some((name, rest)) if !name.contains(' ') => (name, rest),
        _ => {
            let (name, value) = line.split_once(' ').context("no value")?;
            return Ok(Sample { name: name.to_owned(), labels: Vec::new(), value: parse_value(value)? });
        }
    };
    let (labels, rest) = parse_labels(rest)?;
    Ok(Sample { name: name.to_owned(), labels, value: parse_value(rest)? })
}

/// Parses `key="value",…}`, and returns the labels and what follows.
fn parse_labels(mut rest: &str) -> Result<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches(',');
        if let Some(rest) = rest.strip_prefix('}') {
            return Ok((labels, rest));
        }
        let (key, quoted) = rest.split_once("=\"").context("no label")?;
        let mut value = String::new();
        let mut letters = quoted.char_indices();
        let end = loop {
            match letters.next() {
                Some((at, '"')) => break at,
                Some((_, '\\')) => match letters.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, letter)) => value.push(letter),
                    None => bail!("a label without an end"),
                },
                Some((_, letter)) => value.push(letter),
                None => bail!("a label without an end"),
            }
        };
        labels.push((key.to_owned(), value));
        rest = &quoted[end + 1..];
    }
}

fn parse_value(text: &str) -> Result<f64> {
    let first = text.split_whitespace().next().context("no value")?;
    first.parse().with_context(|| format!("value `{first}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# HELP eviction_agent_evictions Evictions carried out.
# TYPE eviction_agent_evictions counter
eviction_agent_evictions_total{eviction_signal=\"memory.available\",namespace=\"a\"} 2
eviction_agent_evictions_total{eviction_signal=\"pid.available\",namespace=\"a\"} 1
eviction_agent_pods_known 3
eviction_agent_x_bucket{le=\"+Inf\"} 7 # {id=\"9\"} 0.5
eviction_agent_odd{text=\"a \\\"quoted\\\" } brace, and\\nmore\"} 1e3
# EOF
";

    #[test]
    fn series_are_found_by_name_and_labels() {
        let page = Metrics::parse(PAGE).expect("a page");
        let evictions = "eviction_agent_evictions_total";
        assert_eq!(page.sum(evictions, &[]), 3.0);
        assert_eq!(page.sum(evictions, &[("eviction_signal", "memory.available")]), 2.0);
        assert_eq!(page.sum(evictions, &[("namespace", "b")]), 0.0);
        assert_eq!(page.sum("eviction_agent_pods_known", &[]), 3.0);
        assert_eq!(page.sum("eviction_agent_x_bucket", &[("le", "+Inf")]), 7.0);
        assert_eq!(page.sum("eviction_agent_odd", &[("text", "a \"quoted\" } brace, and\nmore")]), 1000.0);
        assert!(page.has_series(evictions, &[("eviction_signal", "pid.available"), ("namespace", "a")]));
        assert!(!page.has_series(evictions, &[("namespace", "b")]));
        assert_eq!(page.values(evictions, "namespace").collect::<Vec<_>>(), ["a", "a"]);
        assert!(page.has_series("eviction_agent_pods_known", &[]));
        assert!(!page.has_series("eviction_agent_pod", &[]));
    }

    #[test]
    fn malformed_metrics_are_refused() {
        for line in ["eviction_agent_pods_known", "a{b=\"c} 1", "a{b} 1", "a{b=\"c\"}", "a many"] {
            assert!(Metrics::parse(line).is_err(), "{line}");
        }
    }
}
