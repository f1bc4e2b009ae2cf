//! The decision core: no IO, no clock, no async, no logging, no randomness, no hash order.
//! Time arrives with each input and may go backwards. Imports nothing else of ours.

pub mod reading;
