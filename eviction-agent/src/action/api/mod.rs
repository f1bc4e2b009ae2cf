//! Evictions through the API server: what is asked, what an answer means, and the hand that asks.
//!
//! A request asks for one pod, known by its uid: another one that took its name is never meant.
//! What came of it goes back to the engine, which decides who is next; nothing is decided, and
//! nothing repeated, here.
#![forbid(unsafe_code)]

mod answer;
mod hand;
mod order;
mod request;

pub use answer::{Answered, Asked, judge};
pub use hand::{ApiHand, ApiHandConfig};
pub use order::Order;
