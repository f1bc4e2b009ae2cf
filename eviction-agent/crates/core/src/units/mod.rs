//! Quantities, percentages, durations and quoted texts as in Kubernetes.
//!
//! Everything here equals what the kubelet v1.36.3 computes and prints, including texts and error messages,
//! because both reach users in events and annotations. Only numbers out of the range of [`Nanos`], and integers of
//! quantities that do not fit 64 bits or are negative, differ from it.

mod duration;
mod quantity;
#[cfg(test)]
mod tests;
mod text;
mod threshold_value;
pub use duration::GoDuration;
pub(crate) use quantity::nearest_i64;
pub use quantity::{Format, Nanos, Quantity};
pub use text::{deserialize_text, display_bytes, quote};
pub use threshold_value::{Limit, ThresholdValue, parse_percentage};
