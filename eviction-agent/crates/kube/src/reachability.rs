//! Whether the API server is available, by what became of requests. Pure: time is an argument.
//!
//! It is unavailable after at least [`FAILURES`] requests have failed over [`LASTS`]: no connection, no
//! response in time, a broken one, 5xx, or 401. It is available again with the first other response, a
//! refusal or 429 included.

use std::time::Duration;

use crate::error::RequestError;
use crate::request::Response;

/// How long nothing must have come of any request.
pub(crate) const LASTS: Duration = Duration::from_secs(3);

/// Of how many.
pub(crate) const FAILURES: u32 = 2;

/// What became of a request, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Availability {
    /// The server has dealt with it.
    Available,
    /// It has not.
    Unavailable,
}

impl Availability {
    pub(crate) fn of(result: &Result<Response, RequestError>) -> Self {
        match result {
            Ok(response) => Self::of_status(response.status),
            Err(_) => Self::Unavailable,
        }
    }

    fn of_status(status: u16) -> Self {
        match status {
            401 | 500..=599 => Self::Unavailable,
            _ => Self::Available,
        }
    }
}

/// What is known so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ApiReachability {
    /// When the first request was begun of which nothing came since the last good one.
    since: Option<Duration>,
    failures: u32,
    unreachable: bool,
}

impl ApiReachability {
    /// Takes note of a request that ended now; times are since any fixed moment. Says when it has
    /// changed: whether the server is available.
    pub(crate) fn note(&mut self, began: Duration, now: Duration, result: Availability) -> Option<bool> {
        match result {
            Availability::Available => {
                let before = std::mem::take(self);
                before.unreachable.then_some(true)
            }
            Availability::Unavailable => {
                let since = *self.since.get_or_insert(began);
                self.failures = self.failures.saturating_add(1);
                let fails = self.failures >= FAILURES && now.saturating_sub(since) >= LASTS;
                (fails && !std::mem::replace(&mut self.unreachable, true)).then_some(false)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// What is reported of requests: when each was begun, when it ended, and how.
    fn changes(requests: &[(f64, f64, Availability)]) -> Vec<Option<bool>> {
        let mut reach = ApiReachability::default();
        requests
            .iter()
            .map(|&(began, ended, result)| reach.note(seconds(began), seconds(ended), result))
            .collect()
    }

    use Availability::{Available, Unavailable};

    #[test]
    fn one_failure_is_none_and_neither_are_many_in_a_moment() {
        assert_eq!(changes(&[(0.0, 60.0, Unavailable)]), [None]);
        assert_eq!(
            changes(&[(0.0, 0.1, Unavailable), (0.5, 0.6, Unavailable), (1.0, 2.9, Unavailable)]),
            [None; 3]
        );
    }

    #[test]
    fn a_server_that_refuses_is_out_after_three_seconds() {
        let refused = |second: f64| (second, second, Unavailable);
        assert_eq!(
            changes(&[refused(0.0), refused(1.0), refused(2.0), refused(3.0), refused(4.0)]),
            [None, None, None, Some(false), None]
        );
    }

    #[test]
    fn a_server_that_hangs_is_out_when_a_second_request_ends() {
        // Both were begun long before anybody could know.
        assert_eq!(changes(&[(0.0, 5.0, Unavailable), (1.0, 6.0, Unavailable)]), [None, Some(false)]);
    }

    #[test]
    fn a_slow_server_can_be_asked() {
        assert_eq!(
            changes(&[(0.0, 3.0, Available), (1.0, 4.0, Available), (2.0, 5.0, Available)]),
            [None; 3]
        );
    }

    #[test]
    fn the_first_answer_ends_it_and_each_counts_anew() {
        let out = [(0.0, 1.0, Unavailable), (2.0, 4.0, Unavailable)];
        let then = [
            (5.0, 5.1, Available),
            (6.0, 7.0, Unavailable),
            (7.0, 8.9, Unavailable),
            (8.0, 9.0, Unavailable),
        ];
        let all: Vec<_> = out.into_iter().chain(then).collect();
        assert_eq!(changes(&all), [None, Some(false), Some(true), None, None, Some(false)]);
        let mixed = [(0.0, 1.0, Unavailable), (1.0, 2.0, Available), (2.0, 9.0, Unavailable)];
        assert_eq!(changes(&mixed), [None; 3]);
    }

    #[test]
    fn a_no_is_an_answer_and_disbelief_is_none() {
        for status in [200, 201, 400, 403, 404, 409, 410, 422, 429] {
            assert_eq!(Availability::of_status(status), Available, "{status}");
        }
        for status in [401, 500, 502, 503, 504, 599] {
            assert_eq!(Availability::of_status(status), Unavailable, "{status}");
        }
    }
}
