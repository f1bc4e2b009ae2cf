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
pub mod source;
mod spsc;
pub mod telemetry;
mod top;
mod zstd_stream;

/// Counts allocations, so that tests can check that the reaction path does not allocate.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: ::tests::allocations::CountingAllocator = ::tests::allocations::CountingAllocator;
