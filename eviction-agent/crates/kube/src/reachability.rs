//! Decides from the results of requests whether the API server is available. Pure functions: time is an
//! argument.
//!
//! The server is unavailable after at least [`MIN_FAILURES`] requests have failed over [`MIN_DURATION`].
//! Connection errors, timeouts, broken responses, 5xx and 401 count as failures. It is available again after
//! the first other response, including a rejection or 429.

use std::time::Duration;

use crate::error::RequestError;
use crate::request::Response;

/// The minimum time over which requests must fail.
pub(crate) const MIN_DURATION: Duration = Duration::from_secs(3);

/// The minimum number of failed requests.
pub(crate) const MIN_FAILURES: u32 = 2;

/// What the result of a request shows about the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Availability {
    /// The server has handled the request.
    Available,
    /// The server has not handled the request.
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

/// The current state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ApiReachability {
    /// The start of the first failed request since the last success.
    since: Option<Duration>,
    failures: u32,
    unreachable: bool,
}

impl ApiReachability {
    /// Records a request that ended now. Times are measured from any fixed point in time. If the state
    /// changes, returns whether the server is available.
    pub(crate) fn record(&mut self, began: Duration, now: Duration, result: Availability) -> Option<bool> {
        match result {
            Availability::Available => {
                let before = std::mem::take(self);
                before.unreachable.then_some(true)
            }
            Availability::Unavailable => {
                let since = *self.since.get_or_insert(began);
                self.failures = self.failures.saturating_add(1);
                let fails = self.failures >= MIN_FAILURES && now.saturating_sub(since) >= MIN_DURATION;
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

    /// Returns what is reported for requests that start and end at these times, in seconds.
    fn changes(requests: &[(f64, f64, Availability)]) -> Vec<Option<bool>> {
        let mut reachability = ApiReachability::default();
        requests
            .iter()
            .map(|&(began, ended, result)| reachability.record(seconds(began), seconds(ended), result))
            .collect()
    }

    use Availability::{Available, Unavailable};

    #[test]
    fn single_or_brief_failures_do_not_make_the_server_unavailable() {
        assert_eq!(changes(&[(0.0, 60.0, Unavailable)]), [None]);
        assert_eq!(
            changes(&[(0.0, 0.1, Unavailable), (0.5, 0.6, Unavailable), (1.0, 2.9, Unavailable)]),
            [None; 3]
        );
    }

    #[test]
    fn refusing_server_is_unavailable_after_three_seconds() {
        let refused = |second: f64| (second, second, Unavailable);
        assert_eq!(
            changes(&[refused(0.0), refused(1.0), refused(2.0), refused(3.0), refused(4.0)]),
            [None, None, None, Some(false), None]
        );
    }

    #[test]
    fn hanging_server_is_unavailable_after_the_second_failed_request() {
        // Both requests started long before the failure could be detected.
        assert_eq!(changes(&[(0.0, 5.0, Unavailable), (1.0, 6.0, Unavailable)]), [None, Some(false)]);
    }

    #[test]
    fn slow_server_stays_available() {
        assert_eq!(
            changes(&[(0.0, 3.0, Available), (1.0, 4.0, Available), (2.0, 5.0, Available)]),
            [None; 3]
        );
    }

    #[test]
    fn first_success_makes_the_server_available_and_resets_failures() {
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
    fn rejections_mean_available_and_401_and_5xx_mean_unavailable() {
        for status in [200, 201, 400, 403, 404, 409, 410, 422, 429] {
            assert_eq!(Availability::of_status(status), Available, "{status}");
        }
        for status in [401, 500, 502, 503, 504, 599] {
            assert_eq!(Availability::of_status(status), Unavailable, "{status}");
        }
    }
}
