//! The agent while its telemetry is stuck, and while its control loop is.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod fixture;
mod lost_events;
mod many_cgroups;
mod overrun;
mod removed_cgroups;
mod slow_readers;
mod watchdog;
