//! What the node has in all, as it is given or as the machine says.

use std::path::Path;

use crate::error::Failure;
use eviction_config::Capacities;
use eviction_core::reading::Reading;
use eviction_core::units::Quantity;
use eviction_node::cgroup::hierarchy::Host;
use eviction_node::cgroup::sampler::Sampler;
use eviction_node::proc::meminfo::parse_meminfo;
use eviction_node::proc::tasks::read_task_capacity;
use eviction_node::sampler::{Capacity, pid_limit};

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

/// What the node has: as given, else as its group or the machine says.
pub(crate) fn capacity(
    mut sampler: Sampler,
    host: &Host,
    memory: Option<u64>,
    pids: Option<u64>,
) -> Result<(Sampler, Capacity), Failure> {
    let memory = match memory {
        Some(memory) => memory,
        None => sampler.sample_node(&[]).capacity.known().ok_or_else(|| {
            Failure::failed("find the node's memory capacity: MemTotal cannot be read")
                .help("give --memory-capacity")
        })?,
    };
    let machine = read_task_capacity(&host.proc);
    let group = if sampler.root().whole_machine { machine } else { pid_limit(&sampler) };
    let pids = match (pids, group, machine) {
        (Some(pids), _, _) => pids,
        (None, Reading::Known(pids), _) | (None, _, Reading::Known(pids)) => pids,
        (None, Reading::Unknown(_), Reading::Unknown(_)) => {
            return Err(Failure::failed("find how many process ids the node has").help("give --pid-capacity"));
        }
    };
    Ok((sampler, Capacity { memory, pids }))
}
