//! An eBPF-accelerated node pressure monitor for Kubernetes.
//!
//! Data goes one way: [`source`] → `eviction_core` → [`action`]. One loop in [`agent`] owns the
//! engine; what happened comes in as an `Input` with its own time, what is to be done goes
//! out as data, and what came of it returns as an `Input`.

pub mod action;
pub mod agent;
pub mod api;
pub mod cli;
pub mod http;
pub mod journal;
pub mod metrics;
pub mod scenario;
pub mod source;

/// Tests of the path of reaction count what it asks the allocator for.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: ::tests::allocations::Counting = ::tests::allocations::Counting;
