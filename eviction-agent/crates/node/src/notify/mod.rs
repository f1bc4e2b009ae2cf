//! Kernel notifications of memory growth that need no BPF, and the timer that covers what they miss.

pub mod memcg_v1;
pub mod memory_events;
pub mod psi;
pub mod sample_interval;
pub mod timer;
