//! The backends of a source below the best one on this machine, so that each can be forced.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tests::mounts::{Hierarchy, Mounts};

/// A source with backends to force, and the stories that verify them.
pub(crate) struct Backends {
    source: &'static str,
    /// The backends below the BPF programs, as the agent names them, and the cgroup version that has them.
    fallbacks: &'static [(&'static str, Option<Version>)],
    pub(crate) stories: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

pub(crate) const FORCED_SOURCES: &[Backends] = &[
    Backends {
        source: "charge",
        fallbacks: &[
            ("cgroup v1 threshold", Some(Version::V1)),
            ("memory.pressure trigger", Some(Version::V2)),
            ("timerfd", None),
        ],
        stories: &["hard", "hard, page cache full"],
    },
    Backends { source: "oom", fallbacks: &[], stories: &["oom"] },
    Backends { source: "task", fallbacks: &[], stories: &["forks"] },
];

/// A number above that of any source's backends.
const MAX_BACKENDS: usize = 32;

impl Backends {
    /// Returns the backends below the one that the agent would choose. Disables them one after the other, best
    /// first, until only the fallbacks are left.
    pub(crate) fn lower_backends(&self, agent: &Path) -> Result<Vec<String>> {
        let mut disabled: Vec<String> = Vec::new();
        while let Some(backend) = backend(agent, self.source, &disabled)? {
            if disabled.contains(&backend) || disabled.len() == MAX_BACKENDS {
                bail!("check uses {backend} for {}, which it was denied", self.source);
            }
            disabled.push(backend);
        }
        let is_v1 = Mounts::discover()?.get(Hierarchy::Memory).is_some();
        let here = if is_v1 { Version::V1 } else { Version::V2 };
        let fits = |of: Option<Version>| of.is_none_or(|version| version == here);
        let fallbacks = self.fallbacks.iter().filter(|(_, of)| fits(*of)).map(|(name, _)| (*name).to_owned());
        Ok(disabled.into_iter().skip(1).chain(fallbacks).collect())
    }
}

/// Returns the backend that the agent would use for a source.
fn backend(agent: &Path, source: &str, disabled: &[String]) -> Result<Option<String>> {
    let output = Command::new(agent)
        .args(["check", "--output", "json"])
        .args(disabled.iter().flat_map(|backend| ["--disable-backend", backend]))
        .output()
        .with_context(|| format!("run {} check", agent.display()))?;
    let findings: Value = serde_json::from_slice(&output.stdout).context("the findings of check")?;
    let sources = findings["sources"].as_array().context("check names no sources")?;
    let found = sources.iter().find(|found| found["source"] == source);
    let backend = found.and_then(|found| found["backend"].as_str()).unwrap_or_default();
    Ok((!["", "none"].contains(&backend)).then(|| backend.to_owned()))
}
