//! The log of an agent.

use std::io::{BufRead as _, BufReader, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The lines of the agent's log.
#[derive(Clone, Debug, Default)]
pub(super) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// The number of lines that an error quotes.
    const QUOTED: usize = 12;

    pub(super) fn read_lines(&self, stderr: impl Read) {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            self.lines().push(line);
        }
    }

    /// Returns whether a line contains this text.
    pub(super) fn contains(&self, text: &str) -> bool {
        self.lines().iter().any(|line| line.contains(text))
    }

    pub(super) fn tail(&self) -> String {
        let lines = self.lines();
        if lines.is_empty() {
            return String::new();
        }
        let quoted = &lines[lines.len().saturating_sub(Self::QUOTED)..];
        format!("; its log ends with: {}", quoted.join(" | "))
    }

    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
