//! An eBPF-accelerated node pressure monitor for Kubernetes.
//!
//! Data flows in one direction: `eviction_node`, `eviction_bpf`, `eviction_kube` and [`source`] →
//! `eviction_core` → `eviction_kube` and `eviction_kill`. One loop in [`daemon`] owns the engine. It
//! passes each event to the engine as an `Input` with its own time, the engine returns actions as data,
//! and the results of the actions return as an `Input`.

pub mod cli;
pub mod daemon;
pub mod error;
pub mod report;
pub mod scenario;
/// Sources of values other than the kernel. Each reading is either a value or unknown with the reason: a missing,
/// truncated or implausible value never counts as zero.
pub mod source {
    pub mod pods;
    pub mod summary;
}
mod spsc;
pub mod telemetry;
mod top;
mod zstd_stream;

/// Counts allocations, so that tests can check that the reaction path does not allocate.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: ::tests::allocations::CountingAllocator = ::tests::allocations::CountingAllocator;
