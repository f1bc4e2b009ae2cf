//! What is done: evictions and their outcomes. Never sees `source`.
