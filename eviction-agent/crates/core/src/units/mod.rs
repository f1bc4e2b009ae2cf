//! Quantities, percentages, durations and quoted texts as Kubernetes writes them.
//!
//! Everything here equals what the kubelet v1.36.3 computes and prints, texts and error
//! texts included, since both reach users in events and annotations.

mod decimal;
mod display;
mod duration;
mod float;
mod go_quote;
mod percentage;
mod quantity;
#[cfg(test)]
mod tests;
mod text;
mod threshold_literal;

pub use display::display_bytes;
pub use duration::{DurationError, GoDuration};
pub use float::FloatError;
pub use go_quote::quote;
pub use percentage::{ThresholdValue, parse_percentage};
pub use quantity::{Format, Quantity, QuantityError};
pub use text::deserialize_text;
pub use threshold_literal::Limit;
