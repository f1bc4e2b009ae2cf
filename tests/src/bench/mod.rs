//! The output of benches: rows of values, as JSON and as text.

pub mod machine;
pub mod row;
pub mod table;
