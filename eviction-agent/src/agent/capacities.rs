//! What is known of the node before anything is measured.

use std::path::Path;

use super::failure::Failure;
use crate::config::Capacities;
use crate::core::reading::Reading;
use crate::core::units::Quantity;
use crate::source::proc::meminfo::parse_meminfo;
use crate::source::proc::tasks::read_task_capacity;

const PROC: &str = "/proc";

/// What is known of the node before anything is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Pods come from the API server: a kubelet acts on the same thresholds.
    pub in_cluster: bool,
    /// What the node has in all.
    pub capacities: Capacities,
}

impl NodeFacts {
    /// With capacities as they are given, else as the machine says. `memory` is a quantity.
    ///
    /// # Errors
    /// If it is none, or not positive.
    pub fn find(in_cluster: bool, memory: Option<&str>, pids: Option<u64>) -> Result<Self, Failure> {
        let memory = match memory.map(memory_quantity).transpose()? {
            Some(memory) => Some(memory),
            None => read_mem_total(),
        };
        let pids = pids.or_else(|| read_task_capacity(Path::new(PROC)).known());
        let signed = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
        Ok(Self { in_cluster, capacities: Capacities { memory: memory.map(signed), pids: pids.map(signed) } })
    }
}

fn read_mem_total() -> Option<u64> {
    let text = std::fs::read(Path::new(PROC).join("meminfo")).ok()?;
    match parse_meminfo(&text).total {
        Reading::Known(total) => Some(total),
        Reading::Unknown(_) => None,
    }
}

/// `--memory-capacity` in bytes.
pub(crate) fn memory_quantity(text: &str) -> Result<u64, Failure> {
    let usage = |why: String| Failure::usage(format!("--memory-capacity {text}: {why}"));
    let quantity = Quantity::parse(text).map_err(|error| usage(error.to_string()))?;
    match u64::try_from(quantity.value()) {
        Ok(bytes) if bytes > 0 => Ok(bytes),
        _ => Err(usage("must be positive".to_owned())),
    }
}
