//! The rungs of a source below the best that it has on this machine, so that each can be forced.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tests::mounts::{Hierarchy, Mounts};

use crate::scene::Forced;

/// A source whose rungs are forced, and the stories that show whether they hold.
pub(crate) struct Rungs {
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

pub(crate) const LADDERS: &[Rungs] = &[
    Rungs {
        source: "charge",
        fallbacks: &[
            ("cgroup v1 threshold", Some(Version::V1)),
            ("memory.pressure trigger", Some(Version::V2)),
            ("timerfd", None),
        ],
        stories: &["hard", "hard, page cache full"],
    },
    Rungs { source: "oom", fallbacks: &[], stories: &["oom"] },
    Rungs { source: "task", fallbacks: &[], stories: &["forks"] },
];

/// More rungs than any source has.
const MOST: usize = 32;

impl Rungs {
    /// The rungs below the one that the agent would choose: it is denied one after the other, best
    /// first, until it has none left but the fallbacks.
    pub(crate) fn below_the_best(&self, agent: &Path) -> Result<Vec<Forced>> {
        let mut denied: Vec<String> = Vec::new();
        while let Some(rung) = rung(agent, self.source, &denied)? {
            if denied.contains(&rung) || denied.len() == MOST {
                bail!("check uses {rung} for {}, which it was denied", self.source);
            }
            denied.push(rung);
        }
        let is_v1 = Mounts::discover()?.get(Hierarchy::Memory).is_some();
        let here = if is_v1 { Version::V1 } else { Version::V2 };
        let fits = |of: Option<Version>| of.is_none_or(|version| version == here);
        let fallbacks = self.fallbacks.iter().filter(|(_, of)| fits(*of)).map(|(name, _)| *name);
        let below = denied.iter().skip(1).map(String::as_str).chain(fallbacks);
        Ok(below.map(force).collect())
    }
}

fn force(rung: &str) -> Forced {
    Forced { rung: rung.to_owned(), arguments: vec!["--backend".to_owned(), rung.to_owned()] }
}

fn deny(rungs: &[String]) -> Vec<String> {
    rungs.iter().flat_map(|rung| ["--disable-backend".to_owned(), rung.clone()]).collect()
}

/// What the agent would use for a source.
fn rung(agent: &Path, source: &str, denied: &[String]) -> Result<Option<String>> {
    let output = Command::new(agent)
        .args(["check", "--output", "json"])
        .args(deny(denied))
        .output()
        .with_context(|| format!("run {} check", agent.display()))?;
    let findings: Value = serde_json::from_slice(&output.stdout).context("the findings of check")?;
    let sources = findings["sources"].as_array().context("check names no sources")?;
    let found = sources.iter().find(|found| found["source"] == source);
    let rung = found.and_then(|found| found["backend"].as_str()).unwrap_or_default();
    Ok((!["", "none"].contains(&rung)).then(|| rung.to_owned()))
}
