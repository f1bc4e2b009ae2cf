//! What is asked of the API server.

pub mod api;
