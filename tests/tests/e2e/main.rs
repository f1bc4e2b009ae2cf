//! Stories with a real Kubernetes: `cargo xtask e2e` builds its programs and tells them. Each has a
//! cluster of its own.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod agent;
mod apart;
mod chart;
mod clean;
mod deploy;
mod disk;
mod events;
mod evict;
mod faults;
mod fixture;
mod hand;
mod hostile;
mod marks;
mod outage;
mod proxy;
mod restart;
mod rights;
mod server;
mod soak;
mod start;
mod watch;
