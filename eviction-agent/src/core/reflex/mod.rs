//! The reflex: a decision made ahead, for the kernel side to carry out.
//!
//! Waking anybody costs a schedule, which a node without memory and CPU may not grant for tens of
//! milliseconds. So it is decided on each sample who would go if the nearest hard line of memory
//! were crossed now: [`Engine::standing`](super::engine::Engine::standing) lets the ordinary pipeline
//! decide on a look that differs from the present one in nothing but what is available. What
//! comes of it is an ordinary decision with its report; where it must not be carried out without
//! another look, it is [`NoVerdict`] with the reason.

mod line;
#[cfg(test)]
mod tests;
mod verdict;
mod why;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use line::HardLine;
pub use verdict::StandingVerdict;
pub(crate) use verdict::judge;
pub use why::NoVerdict;

/// Which decisions the kernel side may carry out by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Reflex {
    /// None.
    #[default]
    Off,
    /// Those for a hard threshold of `memory.available`: a process of the pod that goes first is
    /// killed at the very charge that crosses the line, if its own growth crossed it.
    HardMemory,
}
