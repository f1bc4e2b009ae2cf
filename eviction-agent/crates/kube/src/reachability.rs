//! Whether the API server can be asked, by what became of requests. Pure: time is an argument.
//!
//! It cannot when nothing has come of requests for [`LASTS`], and of no less than [`FAILURES`] of
//! them: no connection, no answer in time, a broken one, 5xx, or 401, which means that nobody
//! believes who asks. It can again with the first other answer. A server that says no, or that it
//! has too much to do, can be asked.

use std::time::Duration;

use crate::error::RequestError;
use crate::request::Response;

/// How long nothing must have come of any request.
pub const LASTS: Duration = Duration::from_secs(3);

/// Of how many.
pub const FAILURES: u32 = 2;

/// What became of a request, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// The server has dealt with it.
    Heard,
    /// It has not.
    Unheard,
}

impl Sign {
    pub(crate) fn of(result: &Result<Response, RequestError>) -> Self {
        match result {
            Ok(response) => Self::of_status(response.status),
            Err(_) => Self::Unheard,
        }
    }

    fn of_status(status: u16) -> Self {
        match status {
            401 | 500..=599 => Self::Unheard,
            _ => Self::Heard,
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
    /// become otherwise: whether the server can be asked.
    pub(crate) fn note(&mut self, began: Duration, now: Duration, sign: Sign) -> Option<bool> {
        match sign {
            Sign::Heard => {
                let before = std::mem::take(self);
                before.unreachable.then_some(true)
            }
            Sign::Unheard => {
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

    /// What is said of requests: when each was begun, when it ended, and how.
    fn said(requests: &[(f64, f64, Sign)]) -> Vec<Option<bool>> {
        let mut reach = ApiReachability::default();
        requests
            .iter()
            .map(|&(began, ended, sign)| reach.note(seconds(began), seconds(ended), sign))
            .collect()
    }

    use Sign::{Heard, Unheard};

    #[test]
    fn one_failure_is_none_and_neither_are_many_in_a_moment() {
        assert_eq!(said(&[(0.0, 60.0, Unheard)]), [None]);
        assert_eq!(said(&[(0.0, 0.1, Unheard), (0.5, 0.6, Unheard), (1.0, 2.9, Unheard)]), [None; 3]);
    }

    #[test]
    fn a_server_that_refuses_is_out_after_three_seconds() {
        let refused = |second: f64| (second, second, Unheard);
        assert_eq!(
            said(&[refused(0.0), refused(1.0), refused(2.0), refused(3.0), refused(4.0)]),
            [None, None, None, Some(false), None]
        );
    }

    #[test]
    fn a_server_that_hangs_is_out_when_a_second_request_ends() {
        // Both were begun long before anybody could know.
        assert_eq!(said(&[(0.0, 5.0, Unheard), (1.0, 6.0, Unheard)]), [None, Some(false)]);
    }

    #[test]
    fn a_slow_server_can_be_asked() {
        assert_eq!(said(&[(0.0, 3.0, Heard), (1.0, 4.0, Heard), (2.0, 5.0, Heard)]), [None; 3]);
    }

    #[test]
    fn the_first_answer_ends_it_and_each_counts_anew() {
        let out = [(0.0, 1.0, Unheard), (2.0, 4.0, Unheard)];
        let then = [(5.0, 5.1, Heard), (6.0, 7.0, Unheard), (7.0, 8.9, Unheard), (8.0, 9.0, Unheard)];
        let all: Vec<_> = out.into_iter().chain(then).collect();
        assert_eq!(said(&all), [None, Some(false), Some(true), None, None, Some(false)]);
        let mixed = [(0.0, 1.0, Unheard), (1.0, 2.0, Heard), (2.0, 9.0, Unheard)];
        assert_eq!(said(&mixed), [None; 3]);
    }

    #[test]
    fn a_no_is_an_answer_and_disbelief_is_none() {
        for status in [200, 201, 400, 403, 404, 409, 410, 422, 429] {
            assert_eq!(Sign::of_status(status), Heard, "{status}");
        }
        for status in [401, 500, 502, 503, 504, 599] {
            assert_eq!(Sign::of_status(status), Unheard, "{status}");
        }
    }
}
