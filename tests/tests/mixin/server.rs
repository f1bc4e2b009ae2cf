//! A Prometheus that scrapes agents, and queries to it.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::metrics;
use tests::process::{Process, wait_until};

use crate::chart;

/// A running server, stopped when it goes out of scope.
pub(crate) struct Server {
    port: u16,
    folder: TempDir,
    targets: BTreeMap<&'static str, String>,
    _process: Process,
}

impl Server {
    /// Starts a server with the rules of the chart, which scrapes and evaluates every second.
    pub(crate) fn start(program: &Path) -> Result<Self> {
        let folder = tempfile::tempdir().context("make a folder")?;
        let targets = folder.path().join("targets.json");
        fs::write(&targets, "[]").context("write the targets")?;
        let config = json!({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": (["rules/recording.yaml", "rules/alerts.yaml"].map(chart)),
            "scrape_configs": [{
                "job_name": "eviction-agent",
                "honor_labels": true,
                "file_sd_configs": [{"files": [targets], "refresh_interval": "1s"}],
            }],
        });
        let file = folder.path().join("prometheus.yaml");
        fs::write(&file, config.to_string()).context("write the configuration")?;
        let port = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).context("a port")?.port();
        let log = fs::File::create(folder.path().join("log")).context("make the log")?;
        let mut command = Command::new(program);
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let process = Process::spawn(&mut command)?;
        let server = Self { port, folder, targets: BTreeMap::new(), _process: process };
        let is_ready = || metrics::get(([127, 0, 0, 1], port).into(), "/-/ready").is_ok();
        wait_until("Prometheus is ready", is_ready).with_context(|| server.log())?;
        Ok(server)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Adds the agent at this address as the target of a node.
    pub(crate) fn add_target(&mut self, node: &'static str, address: &str) -> Result<()> {
        self.targets.insert(node, address.to_owned());
        self.write_targets()
    }

    /// Removes the target of this node.
    pub(crate) fn remove_target(&mut self, node: &'static str) -> Result<()> {
        self.targets.remove(node);
        self.write_targets()
    }

    fn write_targets(&self) -> Result<()> {
        let target = |(node, address): (&&str, &String)| json!({"targets": [address], "labels": {"node": node, "cluster": "test"}});
        let targets: Vec<_> = self.targets.iter().map(target).collect();
        let (file, half) = (self.folder.path().join("targets.json"), self.folder.path().join("half"));
        fs::write(&half, Value::from(targets).to_string()).context("write the targets")?;
        fs::rename(half, file).context("rename the targets")
    }

    fn api(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Value> {
        let parameters: Vec<_> =
            parameters.iter().map(|(key, value)| format!("{key}={}", encode(value))).collect();
        let path = format!("/api/v1/{path}?{}", parameters.join("&"));
        let text = metrics::get(([127, 0, 0, 1], self.port).into(), &path)?;
        let answer: Value = serde_json::from_str(&text).context("the answer of Prometheus")?;
        ensure!(answer["status"] == "success", "{answer}");
        Ok(answer["data"].clone())
    }

    /// Returns the current value of the first series of an expression, if any.
    pub(crate) fn now(&self, expression: &str) -> Result<Option<f64>> {
        let data = self.api("query", &[("query", expression)])?;
        let value = &data["result"][0]["value"][1];
        Ok(value.as_str().and_then(|value| value.parse().ok()))
    }

    /// Returns all series of an expression between two times (seconds since the epoch), one sample per second, in the
    /// format of Prometheus.
    pub(crate) fn range(&self, expression: &str, (from, to): (f64, f64)) -> Result<Vec<Value>> {
        let [from, to] = [from, to].map(|time| format!("{time:.3}"));
        let parameters = [("query", expression), ("start", &from), ("end", &to), ("step", "1")];
        let data = self.api("query_range", &parameters).with_context(|| expression.to_owned())?;
        Ok(data["result"].as_array().context("no series")?.clone())
    }

    /// Returns the rules that Prometheus cannot evaluate, with the error.
    pub(crate) fn failing_rules(&self) -> Result<Vec<Value>> {
        let data = self.api("rules", &[])?;
        let groups = data["groups"].as_array().context("no groups")?;
        let rules = groups.iter().filter_map(|group| group["rules"].as_array()).flatten();
        Ok(rules.filter(|rule| rule["health"] != "ok").cloned().collect())
    }
}

/// Encodes a value for a URL.
fn encode(value: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    value.bytes().map(byte).collect()
}
