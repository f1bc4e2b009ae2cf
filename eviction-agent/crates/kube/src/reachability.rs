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

/// Whether the server has handled the request.
pub(crate) fn is_handled(result: &Result<Response, RequestError>) -> bool {
    result.as_ref().is_ok_and(|response| !matches!(response.status, 401 | 500..=599))
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
    pub(crate) fn record(&mut self, began: Duration, now: Duration, is_handled: bool) -> Option<bool> {
        if is_handled {
            return std::mem::take(self).unreachable.then_some(true);
        }
        let since = *self.since.get_or_insert(began);
        self.failures = self.failures.saturating_add(1);
        let fails = self.failures >= MIN_FAILURES && now.saturating_sub(since) >= MIN_DURATION;
        (fails && !std::mem::replace(&mut self.unreachable, true)).then_some(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// Returns what is reported for requests that start and end at these times, in seconds.
    fn changes(requests: &[(f64, f64, bool)]) -> Vec<Option<bool>> {
        let mut reachability = ApiReachability::default();
        let record = |&(began, ended, handled)| reachability.record(seconds(began), seconds(ended), handled);
        requests.iter().map(record).collect()
    }

    const HANDLED: bool = true;
    const FAILED: bool = false;

    #[test]
    fn single_or_brief_failures_do_not_make_the_server_unavailable() {
        assert_eq!(changes(&[(0.0, 60.0, FAILED)]), [None]);
        assert_eq!(changes(&[(0.0, 0.1, FAILED), (0.5, 0.6, FAILED), (1.0, 2.9, FAILED)]), [None; 3]);
    }

    #[test]
    fn refusing_server_is_unavailable_after_three_seconds() {
        let refused = |second: f64| (second, second, FAILED);
        assert_eq!(
            changes(&[refused(0.0), refused(1.0), refused(2.0), refused(3.0), refused(4.0)]),
            [None, None, None, Some(false), None]
        );
    }

    #[test]
    fn hanging_server_is_unavailable_after_the_second_failed_request() {
        // Both requests started long before the failure could be detected.
        assert_eq!(changes(&[(0.0, 5.0, FAILED), (1.0, 6.0, FAILED)]), [None, Some(false)]);
    }

    #[test]
    fn slow_server_stays_available() {
        assert_eq!(changes(&[(0.0, 3.0, HANDLED), (1.0, 4.0, HANDLED), (2.0, 5.0, HANDLED)]), [None; 3]);
    }

    #[test]
    fn first_success_makes_the_server_available_and_resets_failures() {
        let out = [(0.0, 1.0, FAILED), (2.0, 4.0, FAILED)];
        let then = [(5.0, 5.1, HANDLED), (6.0, 7.0, FAILED), (7.0, 8.9, FAILED), (8.0, 9.0, FAILED)];
        let all: Vec<_> = out.into_iter().chain(then).collect();
        assert_eq!(changes(&all), [None, Some(false), Some(true), None, None, Some(false)]);
        let mixed = [(0.0, 1.0, FAILED), (1.0, 2.0, HANDLED), (2.0, 9.0, FAILED)];
        assert_eq!(changes(&mixed), [None; 3]);
    }

    #[test]
    fn rejections_mean_available_and_401_and_5xx_mean_unavailable() {
        let response = |status| Ok(Response { status, retry_after: None, body: Default::default() });
        for status in [200, 201, 400, 403, 404, 409, 410, 422, 429] {
            assert!(is_handled(&response(status)), "{status}");
        }
        for status in [401, 500, 502, 503, 504, 599] {
            assert!(!is_handled(&response(status)), "{status}");
        }
    }
}
