//! Scenarios: worlds in a file, run through the same configuration and engine as a live node,
//! and compared with what is expected of them.

pub mod diff;
pub mod expected;
pub mod format;
pub mod inputs;
pub mod read;
mod record;
pub mod run;
mod simulator;
pub mod story;
#[cfg(test)]
mod tests;
mod zstd_stream;
