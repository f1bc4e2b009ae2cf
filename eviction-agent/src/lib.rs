//! An eBPF-accelerated node pressure monitor for Kubernetes.
//!
//! Data goes one way: `eviction_node`, `eviction_bpf`, `eviction_kube` and [`source`] → `eviction_core` →
//! `eviction_kube` and `eviction_kill`. One loop in [`daemon`] owns the engine; what happened comes in as
//! an `Input` with its own time, what is to be done goes out as data, and what came of it returns as an
//! `Input`.

pub mod cli;
pub mod daemon;
pub mod error;
pub mod report;
pub mod scenario;
pub mod source;
mod spsc;
pub mod telemetry;
pub mod top;
mod zstd_stream;

/// Tests of the path of reaction count what it asks the allocator for.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: ::tests::allocations::Counting = ::tests::allocations::Counting;
