//! What the agent reports: metrics, event lines, the log, recordings.
//!
//! Nothing here is on the path from a kernel event to a decision; `exporter` takes what the control loop
//! has put into `queue`.

pub(crate) mod decision_id;
pub mod event_log;
pub(crate) mod exporter;
pub mod http;
pub mod live;
pub(crate) mod log_writer;
pub mod metrics;
pub(crate) mod pod_memory;
pub(crate) mod pod_rates;
pub(crate) mod queue;
pub mod recording;
pub(crate) mod status;
pub(crate) mod stdout;
