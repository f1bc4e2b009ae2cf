//! Recordings of an agent, which are replayed with `--verify`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::Options;
use crate::folder::Folder;

/// A recording of one agent.
#[derive(Debug)]
pub struct Recording {
    folder: Folder,
    binary: PathBuf,
}

impl Recording {
    /// Returns a recording, and options that make the agent record.
    ///
    /// # Errors
    /// If its configuration cannot be read or written.
    pub fn begin(options: &Options) -> Result<(Self, Options)> {
        let folder = Folder::in_memory("eviction-recording")?;
        let mut config = match &options.config {
            Some(file) => serde_yaml_ng::from_str(&fs::read_to_string(file)?)
                .with_context(|| format!("read {}", file.display()))?,
            None => json!({"apiVersion": "eviction-agent.io/v1alpha1", "kind": "AgentConfiguration"}),
        };
        let directory = folder.path().join("recording");
        if let Value::Object(fields) = &mut config {
            fields.insert("recorder".to_owned(), json!({"directory": directory, "minFreeDisk": "0"}));
        }
        let file = folder.path().join("agent.yaml");
        fs::write(&file, config.to_string()).with_context(|| format!("write {}", file.display()))?;
        let binary = options.binary.clone();
        Ok((Self { folder, binary }, Options { config: Some(file), ..options.clone() }))
    }

    /// Replays the recording and returns how many decisions are the same.
    ///
    /// # Errors
    /// If a decision differs, or the recording cannot be read.
    pub fn verify(&self) -> Result<usize> {
        let mut command = Command::new(&self.binary);
        command.arg("replay").arg(self.folder.path().join("recording")).arg("--verify");
        let output = command.output().context("run replay")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "replay --verify: {text}{errors}");
        let same = text.lines().last().and_then(|line| line.split(' ').next()?.parse().ok());
        same.with_context(|| format!("replay --verify printed {text}"))
    }
}
