//! The log of an agent.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read};
use std::sync::{Arc, Mutex, PoisonError};

/// The last lines of the agent's log.
#[derive(Clone, Debug, Default)]
pub(super) struct Log(Arc<Mutex<VecDeque<String>>>);

impl Log {
    const MAX_LINES: usize = 12;

    pub(super) fn read_lines(&self, stderr: impl Read) {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() == Self::MAX_LINES {
                kept.pop_front();
            }
            kept.push_back(line);
        }
    }

    pub(super) fn tail(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_empty() {
            return String::new();
        }
        let lines: Vec<&str> = kept.iter().map(String::as_str).collect();
        format!("; its log ends with: {}", lines.join(" | "))
    }
}
