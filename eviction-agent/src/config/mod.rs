//! From what users write to what the core decides by.
