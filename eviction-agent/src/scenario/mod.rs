//! Scenarios: worlds in a file, run through the same configuration and engine as a live node,
//! and compared with what the kubelet's own eviction manager did.

pub mod compare;
pub mod format;
pub mod read;
mod record;
pub mod run;
#[cfg(test)]
mod tests;
mod world;
