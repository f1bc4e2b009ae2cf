//! Events of the API, `events.k8s.io/v1`: of pods and of the node, in few requests.
//!
//! What is the same is one series: the first of it makes an event, and later ones raise its count.
//! How many requests that takes is bounded, and how much waits for them. What finds no room is
//! dropped and counted; nothing is lost without a count.

mod correlator;
mod object;
mod oom_kill;
mod recorder;
mod sink;

pub use object::{EventResult, Reason};
pub(crate) use recorder::Recorder;
pub use sink::EventSink;
