//! Quantities, percentages, durations and quoted texts as in Kubernetes.
//!
//! Everything here equals what the kubelet v1.36.3 computes and prints, including texts and error messages,
//! because both reach users in events and annotations.

mod decimal;
mod duration;
mod quantity;
#[cfg(test)]
mod tests;
mod text;
mod threshold_value;
pub use decimal::Nanos;
pub use duration::GoDuration;
pub use quantity::{Format, Quantity};
pub use text::{deserialize_text, display_bytes, quote};
pub use threshold_value::{Limit, ThresholdValue, parse_percentage};
