//! The agent while its slow side is stuck, and while its control loop is.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod crowd;
mod fixture;
mod gone;
mod lost;
mod overrun;
mod stuck;
mod watchdog;
