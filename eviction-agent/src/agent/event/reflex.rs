//! The line of a decision that the kernel carried out.

use std::fmt;

use serde::Serialize;

use super::super::text::bytes;
use super::people;

/// See [`super::Event::Reflex`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct Reflex {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<String>,
    pub pod: String,
    pub uid: String,
    pub pid: u32,
    pub comm: String,
    pub threshold: u64,
    pub available: u64,
    pub grown: u64,
    pub usage: u64,
    pub chosen_mono_ns: u64,
    pub carried_out_mono_ns: u64,
    pub told_mono_ns: u64,
}

impl fmt::Display for Reflex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id,
            decision: _,
            pod,
            uid: _,
            pid,
            comm,
            threshold,
            available,
            grown,
            usage: _,
            chosen_mono_ns,
            carried_out_mono_ns,
            told_mono_ns,
        } = self;
        let milliseconds = |from: u64, to: u64| people::milliseconds(to.saturating_sub(from) / 1_000);
        write!(
            f,
            "reflex: the kernel killed {comm} (pid {pid}) of {pod} when it had grown by {} and crossed memory.available < {}; chosen {} before with {} available, told {} after",
            bytes(*grown),
            bytes(*threshold),
            milliseconds(*chosen_mono_ns, *carried_out_mono_ns),
            bytes(*available),
            milliseconds(*carried_out_mono_ns, *told_mono_ns)
        )?;
        match id {
            Some(id) => write!(f, "; the rest of the pod goes by decision {id}"),
            None => f.write_str("; by now the pod would not be evicted, and the rest of it stays"),
        }
    }
}
