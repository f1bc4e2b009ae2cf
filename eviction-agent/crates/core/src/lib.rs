//! The decision core: no IO, no clock, no async, no logging, no randomness, no hash order. Time arrives with
//! each input and may go backwards. The core depends on no other crate of the agent.
//!
//! [`engine::Engine::step`] takes an [`input::Input`] and returns a [`decision::Decision`]. An evaluation
//! uses the modules in this order: [`observation`] → [`signal_filter`] → [`threshold`] → [`condition`] →
//! [`disk_layout`] (node-level reclaim) → [`rank`] → [`decision`]. [`message`] writes the texts of a
//! decision, [`record`] all of it as data, and [`explain`] explains a record as text.

mod named_enum;

pub mod condition;
pub mod decision;
pub mod disk_layout;
pub mod engine;
pub mod error;
pub mod eviction;
pub mod explain;
#[cfg(any(test, feature = "fixture"))]
#[expect(clippy::unwrap_used, missing_docs, reason = "for tests alone")]
pub mod fixture;
pub mod in_flight;
pub mod input;
pub mod message;
pub mod node;
pub mod node_conditions;
pub mod nullable;
pub mod observation;
pub mod oom;
pub mod pod;
pub mod pods;
pub mod policy;
pub mod progress;
pub mod protection;
pub mod rank;
pub mod reading;
pub mod record;
pub mod signal;
pub mod signal_filter;
pub mod snapshot;
pub mod sorted_map;
pub mod state;
pub mod threshold;
pub mod time;
pub mod trend;
pub mod units;
mod work;
