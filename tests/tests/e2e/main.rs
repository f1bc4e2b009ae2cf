//! Tests with a real Kubernetes: `cargo xtask e2e` builds its programs and runs them. Each test has its own cluster.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod agent;
mod chart;
mod cleanup;
mod deploy;
mod disk;
mod events;
mod evict;
mod evictor;
mod faults;
mod fixture;
mod hostile;
mod node_conditions;
mod outage;
mod proxy;
mod restart;
mod rights;
mod server;
mod soak;
mod start;
mod termination_causes;
mod testbed;
mod watch;
