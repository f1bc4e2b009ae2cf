//! What benches print: rows of figures for machines and for people.

pub mod machine;
pub mod row;
pub mod table;
