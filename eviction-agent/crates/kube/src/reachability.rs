//! Decides from the results of requests whether the API server is available. Pure functions: time is an
//! argument.
//!
//! The server is unavailable after at least [`MIN_FAILURES`] requests have failed over [`MIN_DURATION`], if one
//! of them began after the last response. Connection errors, timeouts, broken responses, 5xx and 401 count as
//! failures. It is available again after the first other response, including a rejection or 429.

use std::time::{Duration, Instant};

use eviction_core::input::ApiReachability;
use http::Response;

use crate::error::RequestError;

/// The minimum time over which requests must fail.
pub(crate) const MIN_DURATION: Duration = Duration::from_secs(3);

/// The minimum number of failed requests.
pub(crate) const MIN_FAILURES: u32 = 2;

/// Whether the server has handled the request.
pub(crate) fn is_handled<B>(result: &Result<Response<B>, RequestError>) -> bool {
    result.as_ref().is_ok_and(|response| !matches!(response.status().as_u16(), 401 | 500..=599))
}

/// The failures since the last request that the server handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestFailures {
    /// The end of the last request that the server handled.
    handled_at: Option<Instant>,
    /// The start of the first failed request, or the end of the last handled one if that is later.
    failing_since: Option<Instant>,
    /// The number of failed requests.
    failures: u32,
    /// Whether one of them began after the last handled request. Requests that began before show only that the
    /// server hangs on them, for example because of a webhook.
    has_later_request: bool,
}

impl RequestFailures {
    /// Records a request that ended now. Returns whether the server is available.
    pub(crate) fn record(&mut self, began: Instant, now: Instant, is_handled: bool) -> ApiReachability {
        if is_handled {
            *self = Self { handled_at: Some(now), ..Self::default() };
            return ApiReachability::Reachable;
        }
        let began_at = self.handled_at.map_or(began, |handled_at| began.max(handled_at));
        let since = *self.failing_since.get_or_insert(began_at);
        self.failures = self.failures.saturating_add(1);
        self.has_later_request |= began_at == began;
        let is_brief = now.saturating_duration_since(since) < MIN_DURATION;
        match !self.has_later_request || self.failures < MIN_FAILURES || is_brief {
            true => ApiReachability::Reachable,
            false => ApiReachability::Unreachable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether the server is available after each of these requests, which start and end at these
    /// times, in seconds.
    fn available(requests: &[(f64, f64, bool)]) -> Vec<bool> {
        let mut failures = RequestFailures::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs_f64(seconds);
        let mut record = |&(began, ended, handled)| failures.record(at(began), at(ended), handled);
        requests.iter().map(|request| record(request) == ApiReachability::Reachable).collect()
    }

    const HANDLED: bool = true;
    const FAILED: bool = false;

    #[test]
    fn single_or_brief_failures_do_not_make_the_server_unavailable() {
        assert_eq!(available(&[(0.0, 60.0, FAILED)]), [true]);
        assert_eq!(available(&[(0.0, 0.1, FAILED), (0.5, 0.6, FAILED), (1.0, 2.9, FAILED)]), [true; 3]);
    }

    #[test]
    fn refusing_server_is_unavailable_after_three_seconds() {
        let refused = |second: f64| (second, second, FAILED);
        assert_eq!(
            available(&[refused(0.0), refused(1.0), refused(2.0), refused(3.0), refused(4.0)]),
            [true, true, true, false, false]
        );
    }

    #[test]
    fn hanging_server_is_unavailable_after_the_second_failed_request() {
        // Both requests started long before the failure could be detected.
        assert_eq!(available(&[(0.0, 5.0, FAILED), (1.0, 6.0, FAILED)]), [true, false]);
    }

    #[test]
    fn hanging_requests_do_not_make_a_server_unavailable_that_handled_a_later_one() {
        // Two evictions hang on a webhook; the probe that began later was handled.
        let evictions = [(1.0, 1.1, HANDLED), (0.0, 5.0, FAILED), (0.1, 5.0, FAILED)];
        assert_eq!(available(&evictions), [true; 3]);
        // The probe hangs as well.
        let all: Vec<_> = evictions.into_iter().chain([(5.0, 10.0, FAILED)]).collect();
        assert_eq!(available(&all), [true, true, true, false]);
        let late = [(3.0, 3.1, HANDLED), (0.0, 5.0, FAILED), (3.2, 6.0, FAILED), (5.0, 6.2, FAILED)];
        assert_eq!(available(&late), [true, true, true, false], "over 3 s since the last response");
    }

    #[test]
    fn slow_server_stays_available() {
        assert_eq!(available(&[(0.0, 3.0, HANDLED), (1.0, 4.0, HANDLED), (2.0, 5.0, HANDLED)]), [true; 3]);
    }

    #[test]
    fn first_success_makes_the_server_available_and_resets_failures() {
        let out = [(0.0, 1.0, FAILED), (2.0, 4.0, FAILED)];
        let then = [(5.0, 5.1, HANDLED), (6.0, 7.0, FAILED), (7.0, 8.9, FAILED), (8.0, 9.0, FAILED)];
        let all: Vec<_> = out.into_iter().chain(then).collect();
        assert_eq!(available(&all), [true, false, true, true, true, false]);
        let mixed = [(0.0, 1.0, FAILED), (1.0, 2.0, HANDLED), (2.0, 9.0, FAILED)];
        assert_eq!(available(&mixed), [true; 3]);
    }

    #[test]
    fn rejections_mean_available_and_401_and_5xx_mean_unavailable() {
        let response = |status: u16| Ok(Response::builder().status(status).body(()).unwrap());
        for status in [200, 201, 400, 403, 404, 409, 410, 422, 429] {
            assert!(is_handled(&response(status)), "{status}");
        }
        for status in [401, 500, 502, 503, 504, 599] {
            assert!(!is_handled(&response(status)), "{status}");
        }
    }
}
