//! What the agent reports: metrics, event lines, the log, recordings.
//!
//! Nothing here is on the path from a kernel event to a decision; `exporter` takes what the control loop
//! has put into `queue`.

pub mod event_log;
pub(crate) mod exporter;
pub mod http;
pub(crate) mod line_writer;
pub mod live;
pub mod metrics;
pub(crate) mod pod_memory;
pub(crate) mod pod_rates;
pub(crate) mod queue;
pub mod recording;
