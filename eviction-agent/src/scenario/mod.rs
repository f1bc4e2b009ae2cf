//! Scenarios: worlds in a file, run through the same configuration and engine as a live node,
//! and compared with what is expected of them.

pub mod brief;
pub mod compare;
pub mod format;
mod frames;
pub mod read;
mod record;
pub mod run;
pub mod story;
#[cfg(test)]
mod tests;
pub mod told;
mod world;
