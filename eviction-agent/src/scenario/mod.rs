//! Scenarios: simulated nodes in files. They run through the same configuration and engine as a
//! live node, and the outcomes are compared with the expected ones.

pub mod expected;
pub mod format;
#[cfg(test)]
mod key_tests;
pub mod playback;
pub mod read;
pub mod recording;
#[cfg(test)]
pub(crate) mod recording_tests;
pub mod run;
mod simulator;
#[cfg(test)]
mod tests;
pub mod what_if;
