//! What the API server has of this node: its pods and its own object, listed and watched.
//!
//! Objects are cut down to what decisions depend on while they are decoded. One that cannot be
//! decoded costs itself alone: it is counted, shown, and as if it were not there; an object of
//! which the last state is not understood is not taken for what it was before.
#![forbid(unsafe_code)]

mod event;
mod figures;
mod identity;
mod items;
mod node;
mod store;
mod trouble;
mod watcher;

pub use figures::{Figures, Happened};
pub use identity::Key;
pub use node::parse_node;
pub use store::{Seen, Unreadable};
pub use watcher::{Decode, Resource, Watcher};
