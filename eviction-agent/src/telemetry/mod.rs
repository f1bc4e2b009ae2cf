//! Telemetry of the agent: metrics, event lines, the log and recordings.
//!
//! Nothing here is on the path from a kernel event to a decision. The control loop puts events into
//! `queue`, and `exporter` publishes them.

pub mod event_log;
pub(crate) mod exporter;
pub(crate) mod health;
pub mod http;
pub(crate) mod line_writer;
pub mod live;
pub mod metrics;
pub(crate) mod pod_metrics;
pub(crate) mod queue;
pub mod recording;
