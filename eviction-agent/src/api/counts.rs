//! What became of requests.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::error::RequestError;

/// What became of all requests so far, watches and those that keep a connection alive included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that were begun.
    pub connections: u64,
    /// Requests that had an answer, of whatever status.
    pub answered: u64,
    /// Requests that were never sent.
    pub unsent: u64,
    /// Requests that may have been carried out without an answer.
    pub unanswered: u64,
    /// How long ago the last answer came.
    pub last_answer: Option<Duration>,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    connections: AtomicU64,
    answered: AtomicU64,
    unsent: AtomicU64,
    unanswered: AtomicU64,
    last_answer: Mutex<Option<Instant>>,
}

impl Counters {
    pub(super) fn read(&self) -> Counts {
        let Self { connections, answered, unsent, unanswered, last_answer } = self;
        Counts {
            connections: connections.load(Relaxed),
            answered: answered.load(Relaxed),
            unsent: unsent.load(Relaxed),
            unanswered: unanswered.load(Relaxed),
            last_answer: last_answer.lock().unwrap_or_else(PoisonError::into_inner).map(|at| at.elapsed()),
        }
    }

    pub(super) fn connection(&self) {
        self.connections.fetch_add(1, Relaxed);
    }

    pub(super) fn end<T>(&self, answer: &Result<T, RequestError>) {
        match answer {
            Ok(_) => {
                self.answered.fetch_add(1, Relaxed);
                *self.last_answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            }
            Err(error) if error.may_have_been_carried_out() => {
                self.unanswered.fetch_add(1, Relaxed);
            }
            Err(_) => {
                self.unsent.fetch_add(1, Relaxed);
            }
        }
    }
}
