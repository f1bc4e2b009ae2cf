//! The backends of a source below the best that it has on this machine, so that each can be forced.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tests::mounts::{Hierarchy, Mounts};

use crate::testbed::Forced;

/// A source whose backends are forced, and the stories that show whether they hold.
pub(crate) struct Backends {
    source: &'static str,
    /// Below the programs, as the agent calls them, and the version of cgroups that has it.
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

/// More backends than any source has.
const MOST: usize = 32;

impl Backends {
    /// The backends below the one that the agent would choose: it is denied one after the other, best
    /// first, until it has none left but the fallbacks.
    pub(crate) fn below_the_best(&self, agent: &Path) -> Result<Vec<Forced>> {
        let mut denied: Vec<String> = Vec::new();
        while let Some(backend) = backend(agent, self.source, &denied)? {
            if denied.contains(&backend) || denied.len() == MOST {
                bail!("check uses {backend} for {}, which it was denied", self.source);
            }
            denied.push(backend);
        }
        let is_v1 = Mounts::discover()?.get(Hierarchy::Memory).is_some();
        let here = if is_v1 { Version::V1 } else { Version::V2 };
        let fits = |of: Option<Version>| of.is_none_or(|version| version == here);
        let fallbacks = self.fallbacks.iter().filter(|(_, of)| fits(*of)).map(|(name, _)| *name);
        let below = denied.iter().skip(1).map(String::as_str).chain(fallbacks);
        Ok(below.map(force).collect())
    }
}

fn force(backend: &str) -> Forced {
    Forced { backend: backend.to_owned(), arguments: vec!["--backend".to_owned(), backend.to_owned()] }
}

fn deny(backends: &[String]) -> Vec<String> {
    backends.iter().flat_map(|backend| ["--disable-backend".to_owned(), backend.clone()]).collect()
}

/// What the agent would use for a source.
fn backend(agent: &Path, source: &str, denied: &[String]) -> Result<Option<String>> {
    let output = Command::new(agent)
        .args(["check", "--output", "json"])
        .args(deny(denied))
        .output()
        .with_context(|| format!("run {} check", agent.display()))?;
    let findings: Value = serde_json::from_slice(&output.stdout).context("the findings of check")?;
    let sources = findings["sources"].as_array().context("check names no sources")?;
    let found = sources.iter().find(|found| found["source"] == source);
    let backend = found.and_then(|found| found["backend"].as_str()).unwrap_or_default();
    Ok((!["", "none"].contains(&backend)).then(|| backend.to_owned()))
}
