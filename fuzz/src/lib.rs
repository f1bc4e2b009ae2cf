//! What is fuzzed. The programs in `targets/` only hand their input on.

pub mod targets;
