//! What is asked of the API server, what an answer means, and the hands that ask: for evictions, and
//! for marks on the node.
//!
//! A request asks for one pod, known by its uid: another one that took its name is never meant.
//! What came of it goes back to the engine, which decides who is next; nothing is decided, and
//! nothing repeated, here.
#![forbid(unsafe_code)]

mod answer;
pub mod events;
mod hand;
mod node;
mod order;
mod request;
mod rights;

pub use answer::judge;
pub use hand::{ApiHand, ApiHandConfig};
pub use node::{NodeAnswer, NodeHand};
pub use order::Order;
