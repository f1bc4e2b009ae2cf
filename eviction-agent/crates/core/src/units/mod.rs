//! Quantities, percentages, durations and quoted texts as Kubernetes writes them.
//!
//! Everything here equals what the kubelet v1.36.3 computes and prints, texts and error
//! texts included, since both reach users in events and annotations.

mod decimal;
mod display;
mod duration;
mod float;
mod limit;
mod percentage;
mod quantity;
mod quote;
#[cfg(test)]
mod tests;
mod text;

pub use display::display_bytes;
pub use duration::{DurationError, GoDuration};
pub use float::FloatError;
pub use limit::Limit;
pub use percentage::{ThresholdValue, parse_percentage};
pub use quantity::{Format, Quantity, QuantityError};
pub use quote::quote;
pub use text::deserialize_text;
