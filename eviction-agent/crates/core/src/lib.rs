//! The decision core: no IO, no clock, no async, no logging, no randomness, no hash order.
//! Time arrives with each input and may go backwards. Imports nothing else of ours.
//!
//! [`engine::Engine::step`] takes an [`input::Input`] and answers with a
//! [`decision::Decision`]. A pass walks through the files like this: [`observe`] →
//! [`sight`] → [`threshold`] → [`condition`] → `local_storage` → [`layout`] (node-level reclaim) →
//! [`rank`] → [`decision`]; [`message`] writes the texts of what was decided,
//! [`report`] all of it as data, and [`explain`] that as text for people.

mod admission;
pub mod apart;
pub mod api_result;
mod budget;
pub mod condition;
pub mod decision;
pub mod deficit;
pub mod engine;
pub mod error;
pub mod exact;
pub mod explain;
#[cfg(any(test, feature = "fixture"))]
#[expect(clippy::unwrap_used, missing_docs, reason = "for tests alone")]
pub mod fixture;
pub mod flight;
pub mod hands;
pub mod input;
pub mod kill_on_growth;
pub mod layout;
mod local_storage;
pub mod marks;
pub mod memory;
pub mod message;
pub mod named;
pub mod node;
pub mod observe;
pub mod oom;
pub mod pod;
pub mod pods;
pub mod policy;
pub mod preferences;
pub mod pressure;
pub mod progress;
pub mod protection;
pub mod rank;
pub mod reading;
pub mod reflex;
pub mod release;
pub mod report;
pub mod selector;
pub mod sight;
pub mod signal;
pub mod snapshot;
pub mod threshold;
pub mod time;
pub mod trend;
pub mod units;
mod work;
