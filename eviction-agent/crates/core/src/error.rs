//! Formats an error and its sources in one line.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fmt::Write as _;

/// Returns an error and its sources in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        // Many libraries repeat their source in their own text.
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            let _infallible = write!(text, ": {cause_text}");
        }
        source = cause.source();
    }
    text
}
