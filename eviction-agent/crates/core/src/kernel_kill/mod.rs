//! The reflex: a decision made ahead, for the kernel side to carry out.
//!
//! Waking anybody costs a schedule, which a node without memory and CPU may not grant for tens of
//! milliseconds. So it is decided on each sample who would go if the nearest hard line of memory
//! were crossed now: [`Engine::standing`](super::engine::Engine::standing) lets the ordinary pipeline
//! decide on a look that differs from the present one in nothing but what is available. What
//! comes of it is an ordinary decision with its report; where it must not be carried out without
//! another look, it is [`NotArmedReason`] with the reason.

mod hard_threshold;
mod kill_order;
mod not_armed;
#[cfg(test)]
mod tests;

pub(crate) use hard_threshold::HardLine;
pub use kill_order::ArmedKillOrder;
pub(crate) use kill_order::judge;
pub use not_armed::NotArmedReason;
