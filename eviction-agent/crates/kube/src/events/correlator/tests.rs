use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::object::pod_reference;
use super::*;
use crate::error::RequestError;
use crate::request::Method;
use crate::response::interpret;
use eviction_core::pod::PodName;

const MINUTE_NS: u64 = 60 * SECOND_NS;

type Results = Arc<Mutex<BTreeMap<&'static str, u64>>>;

fn correlator() -> (Correlator, Results) {
    let results = Results::default();
    let counts = Arc::clone(&results);
    let observer = Observer::new(move |event| {
        if let MetricEvent::Event(_, result, times) = event {
            *counts.lock().unwrap().entry(result).or_insert(0) += times;
        }
    });
    (Correlator::new("n1", observer), results)
}

fn result(results: &Results, result: EventResult) -> u64 {
    results.lock().unwrap().get(result.name()).copied().unwrap_or(0)
}

fn waiting(correlator: &Correlator) -> u64 {
    correlator.series.values().map(Series::waiting).sum()
}

fn kill(pod: usize) -> Occurrence {
    let name: Box<str> = format!("pod-{pod}").into();
    Occurrence {
        reason: Reason::ContainerOomKilled,
        regarding: pod_reference(&PodName { uid: name.clone(), namespace: "shop".into(), name }),
        part: "app".into(),
        at: Timestamp::UNIX_EPOCH,
        note: "killed".into(),
        annotations: BTreeMap::new(),
        times: 1,
    }
}

fn evicted(pod: usize) -> Occurrence {
    Occurrence { reason: Reason::Evicted, ..kill(pod) }
}

/// Returns the request that is written at this time, if there is one.
fn write(correlator: &mut Correlator, now_ns: u64) -> Option<Request> {
    match correlator.next(now_ns) {
        Ok((operation, request)) => {
            assert_eq!(operation == ApiOperation::CreateEvent, creates(&request));
            Some(request)
        }
        Err(until_ns) => {
            assert!(until_ns > now_ns, "{until_ns} at {now_ns}");
            None
        }
    }
}

/// Writes all due requests up to `to_ns`, each with this result.
fn write_until(
    correlator: &mut Correlator,
    from_ns: u64,
    to_ns: u64,
    result: &ApiResult,
) -> Vec<(u64, Request)> {
    let (mut written, mut now_ns) = (Vec::new(), from_ns);
    while now_ns <= to_ns {
        match correlator.next(now_ns) {
            Ok((_, request)) => {
                correlator.responded(result, SECOND_NS, now_ns);
                written.push((now_ns, request));
            }
            Err(until_ns) => now_ns = until_ns,
        }
        if now_ns == u64::MAX {
            break;
        }
    }
    written
}

fn creates(request: &Request) -> bool {
    request.method == Method::POST
}

fn body(request: &Request) -> Value {
    serde_json::from_slice(&request.body.as_ref().unwrap().1).unwrap()
}

fn series(request: &Request) -> Value {
    body(request)["series"]["count"].clone()
}

fn evicts(request: &Request) -> bool {
    body(request)["reason"] == "Evicted"
}

#[test]
fn repeats_update_one_event_at_doubling_intervals() {
    let (mut correlator, results) = correlator();
    let mut written = Vec::new();
    for second in 0..1_200 {
        correlator.add(kill(1), second * SECOND_NS);
        if let Some(request) = write(&mut correlator, second * SECOND_NS) {
            correlator.responded(&ApiResult::Accepted, 0, second * SECOND_NS);
            written.push((second, creates(&request), series(&request)));
        }
    }
    let at: Vec<_> = written.iter().map(|(second, ..)| *second).collect();
    assert_eq!(at, [0, 10, 30, 70, 150, 310, 610, 910], "doubling up to five minutes");
    assert!(written[0].1 && written[1..].iter().all(|(_, creates, _)| !creates));
    assert_eq!((&written[0].2, &written[2].2), (&Value::Null, &Value::from(31)));
    write_until(&mut correlator, 1_200 * SECOND_NS, 2_000 * SECOND_NS, &ApiResult::Accepted);
    assert_eq!((result(&results, EventResult::Created), result(&results, EventResult::Counted)), (1, 1_199));
    assert_eq!(waiting(&correlator), 0);
    // After a pause it is another event.
    correlator.add(kill(1), 10_000 * SECOND_NS);
    assert!(creates(&write(&mut correlator, 10_000 * SECOND_NS).unwrap()));
}

#[test]
fn many_kills_stay_within_the_rate_limit_and_are_all_recorded() {
    let (mut correlator, results) = correlator();
    for nth in 0..1_000 {
        correlator.add(kill(nth % 100), 0);
    }
    let written = write_until(&mut correlator, 0, 60 * MINUTE_NS, &ApiResult::Accepted);
    assert_eq!(written.len(), 100, "ten of each are sent at once");
    let in_a_minute = written.iter().filter(|(at, _)| *at < MINUTE_NS).count();
    assert!(in_a_minute < 60, "{in_a_minute}");
    assert_eq!((result(&results, EventResult::Created), result(&results, EventResult::Counted)), (100, 900));
}

#[test]
fn eviction_does_not_wait_behind_a_burst_of_kills() {
    let (mut correlator, _) = correlator();
    (0..100).for_each(|pod| correlator.add(kill(pod), 0));
    write_until(&mut correlator, 0, SECOND_NS, &ApiResult::Accepted);
    correlator.add(evicted(7), SECOND_NS);
    assert!(evicts(&write(&mut correlator, SECOND_NS).unwrap()));
}

#[test]
fn eviction_that_is_retried_does_not_wait_behind_a_burst_of_kills() {
    let (mut correlator, _) = correlator();
    correlator.add(evicted(7), 0);
    write(&mut correlator, 0).unwrap();
    correlator.responded(&ApiResult::NotSent { why: "".into() }, 1, 0);
    (0..100).for_each(|pod| correlator.add(kill(pod), 1));
    let written = write_until(&mut correlator, 1, 1, &ApiResult::Accepted);
    assert_eq!(written.iter().filter(|(_, request)| evicts(request)).count(), 1, "{written:?}");
}

#[test]
fn oldest_series_are_dropped_and_counted_when_there_are_too_many() {
    let (mut correlator, results) = correlator();
    correlator.add(evicted(0), 0);
    for pod in 0..SERIES + 88 {
        correlator.add(Occurrence { times: 2, ..kill(pod) }, pod as u64 + 1);
    }
    assert_eq!(result(&results, EventResult::Dropped), 2 * 89);
    assert_eq!(waiting(&correlator), result(&results, EventResult::Noted) - 2 * 89);
    let first = write(&mut correlator, SECOND_NS).unwrap();
    assert!(evicts(&first), "which is dropped last of all");
    correlator.responded(&ApiResult::Accepted, 0, SECOND_NS);
    let second = write(&mut correlator, SECOND_NS).unwrap();
    assert_eq!(body(&second)["regarding"]["name"], "pod-89");
}

#[test]
fn events_are_retried_for_an_hour_and_then_dropped() {
    let (mut correlator, results) = correlator();
    correlator.add(kill(1), 0);
    correlator.add(kill(2), 0);
    let throttled = ApiResult::Throttled { pause: Duration::from_secs(30) };
    let attempts = write_until(&mut correlator, 0, MINUTE_NS, &throttled);
    assert_eq!(attempts.iter().map(|(at, _)| *at / SECOND_NS).collect::<Vec<_>>(), [0, 30, 60]);
    let of = |nth: usize| body(&attempts[nth].1)["regarding"]["uid"].clone();
    assert!(of(0) == of(2) && of(0) != of(1), "in turn");
    correlator.add(kill(1), EXPIRES_NS - 1);
    let written = write_until(&mut correlator, EXPIRES_NS, EXPIRES_NS, &ApiResult::Accepted);
    assert!(written.is_empty(), "both are too old");
    assert_eq!((result(&results, EventResult::Dropped), waiting(&correlator)), (3, 0));
}

#[test]
fn expired_event_is_created_again_with_later_occurrences() {
    let (mut correlator, results) = correlator();
    correlator.add(kill(1), 0);
    let first = write_until(&mut correlator, 0, 0, &ApiResult::Accepted);
    (0..3).for_each(|_| correlator.add(kill(1), SECOND_NS));
    let updated = write(&mut correlator, 10 * SECOND_NS).unwrap();
    assert!(!creates(&updated) && series(&updated) == 4);
    correlator.responded(&ApiResult::Terminated, 0, 10 * SECOND_NS);
    let recreated = write(&mut correlator, 10 * SECOND_NS).unwrap();
    assert!(creates(&recreated) && series(&recreated) == 3, "{recreated:?}");
    assert_ne!(recreated.body, first[0].1.body);
    correlator.responded(&ApiResult::Accepted, 0, 10 * SECOND_NS);
    assert_eq!((result(&results, EventResult::Created), result(&results, EventResult::Counted)), (2, 2));
}

#[test]
fn rejected_event_is_counted_and_not_retried_immediately() {
    let (mut correlator, results) = correlator();
    correlator.add(kill(1), 0);
    let refused = ApiResult::Rejected { status: 422, why: "no".into() };
    assert_eq!(write_until(&mut correlator, 0, MINUTE_NS, &refused).len(), 1);
    assert_eq!((result(&results, EventResult::Refused), waiting(&correlator)), (1, 0));
    correlator.add(kill(1), SECOND_NS);
    assert!(write(&mut correlator, SECOND_NS).is_none());
    assert!(creates(&write(&mut correlator, 10 * SECOND_NS).unwrap()));
}

#[test]
fn missing_permission_limits_requests_to_one_a_minute() {
    let (mut correlator, results) = correlator();
    (0..3).for_each(|pod| correlator.add(kill(pod), 0));
    let forbidden = ApiResult::Forbidden { why: "no".into() };
    let attempts = write_until(&mut correlator, 0, 150 * SECOND_NS, &forbidden);
    assert_eq!(attempts.iter().map(|(at, _)| *at / SECOND_NS).collect::<Vec<_>>(), [0, 60, 120]);
    assert_eq!(result(&results, EventResult::Refused), 3);
}

fn response(status: u16, reason: &str, message: &str) -> Result<Response<Bytes>, RequestError> {
    let kind = if status < 300 { "Event" } else { "Status" };
    let body = json!({"kind": kind, "reason": reason, "message": message}).to_string();
    Ok(Response::builder().status(status).body(body.into()).unwrap())
}

fn outcome(creates: bool, response: &Result<Response<Bytes>, RequestError>) -> WriteOutcome {
    let operation = if creates { ApiOperation::CreateEvent } else { ApiOperation::PatchEvent };
    WriteOutcome::of(creates, &interpret(operation, response))
}

#[test]
fn each_response_leads_to_the_expected_outcome() {
    use WriteOutcome::{Done, Expired, Refused, Retry};
    let forbidden = "events.events.k8s.io is forbidden: User \"a\" cannot create resource \"events\"";
    let ending = "events \"web.1\" is forbidden: unable to create new content in namespace shop because it is being terminated";
    for (status, reason, message, created, updated) in [
        (201, "", "", Done, Done),
        (400, "BadRequest", "", Refused, Refused),
        (401, "Unauthorized", "", Retry, Retry),
        (403, "Forbidden", forbidden, Refused, Refused),
        (403, "Forbidden", ending, Refused, Refused),
        (404, "NotFound", "namespaces \"shop\" not found", Refused, Expired),
        (404, "", "page not found", Refused, Refused),
        (409, "AlreadyExists", "", Done, Retry),
        (409, "Conflict", "", Done, Retry),
        (422, "Invalid", "", Refused, Refused),
        (429, "TooManyRequests", "", Retry, Retry),
        (500, "", "", Retry, Retry),
        (504, "Timeout", "", Retry, Retry),
    ] {
        let response = response(status, reason, message);
        assert_eq!(
            (outcome(true, &response), outcome(false, &response)),
            (created, updated),
            "{status} {reason}"
        );
    }
    let lost = Err(RequestError::Deadline { after: Duration::from_secs(1) });
    assert_eq!(outcome(true, &lost), Retry);
}

#[derive(Clone, Debug)]
enum Step {
    Note(usize, bool, u64),
    Wait(u64),
    Write(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..700_usize, any::<bool>(), 1..4_u64).prop_map(|(pod, evicts, times)| Step::Note(pod, evicts, times)),
        2 => (0..400_u64).prop_map(|seconds| Step::Wait(seconds * SECOND_NS / 4)),
        4 => (0..5_usize).prop_map(Step::Write),
    ];
    prop::collection::vec(step, 0..1_500)
}

proptest! {
    #[test]
    fn every_occurrence_is_counted_and_the_rate_limit_holds(steps in steps()) {
        let (mut correlator, results) = correlator();
        let (mut now_ns, mut sent) = (0, Vec::new());
        let responses = [
            ApiResult::Accepted,
            ApiResult::Terminated,
            ApiResult::Rejected { status: 422, why: "".into() },
            ApiResult::Unknown { why: "".into() },
            ApiResult::Forbidden { why: "".into() },
        ];
        for step in steps {
            match step {
                Step::Note(pod, evicts, times) => {
                    let what = if evicts { evicted(pod) } else { kill(pod) };
                    correlator.add(Occurrence { times, ..what }, now_ns);
                }
                Step::Wait(ns) => now_ns += ns,
                Step::Write(nth) => {
                    if let Some(request) = write(&mut correlator, now_ns) {
                        let response = if nth == 1 && creates(&request) { &responses[0] } else { &responses[nth] };
                        sent.push(now_ns);
                        correlator.responded(response, SECOND_NS, now_ns);
                    }
                }
            }
            prop_assert!(correlator.series.len() <= SERIES);
            let ends = [EventResult::Created, EventResult::Counted, EventResult::Dropped, EventResult::Refused];
            let completed: u64 = ends.iter().map(|it| result(&results, *it)).sum();
            prop_assert_eq!(result(&results, EventResult::Noted), completed + waiting(&correlator));
        }
        for (nth, at) in sent.iter().enumerate() {
            let within = sent[nth..].iter().take_while(|later| **later < at + MINUTE_NS).count();
            prop_assert!(within < 60, "{within} in a minute");
        }
    }
}
