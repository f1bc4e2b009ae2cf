use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use serde_json::Value;

use super::super::occurrence::Regarding;
use super::*;
use eviction_core::pod::PodName;

const MINUTE_NS: u64 = 60 * SECOND_NS;

type Fates = Arc<Mutex<BTreeMap<Fate, u64>>>;

fn correlator() -> (Correlator, Fates) {
    let fates = Fates::default();
    let kept = Arc::clone(&fates);
    let tally = move |_, fate, times| *kept.lock().unwrap().entry(fate).or_insert(0) += times;
    (Correlator::new("n1", 0, Box::new(tally)), fates)
}

fn fate(fates: &Fates, fate: Fate) -> u64 {
    fates.lock().unwrap().get(&fate).copied().unwrap_or(0)
}

fn kill(pod: usize) -> Occurrence {
    let name: Box<str> = format!("pod-{pod}").into();
    Occurrence {
        reason: Reason::ContainerOomKilled,
        regarding: Regarding::Pod(PodName { uid: name.clone(), namespace: "shop".into(), name }),
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

/// What is written at that instant, if something is.
fn write(correlator: &mut Correlator, now_ns: u64) -> Option<Box<Writing>> {
    match correlator.next(now_ns) {
        Next::Write(writing) => Some(writing),
        Next::Wait(until_ns) => {
            assert!(until_ns > now_ns, "{until_ns} at {now_ns}");
            None
        }
        Next::Idle => None,
    }
}

/// Writes all that is to be written until then, each with that answer.
fn write_until(
    correlator: &mut Correlator,
    from_ns: u64,
    to_ns: u64,
    told: &Told,
) -> Vec<(u64, Box<Writing>)> {
    let (mut written, mut now_ns) = (Vec::new(), from_ns);
    while now_ns <= to_ns {
        match correlator.next(now_ns) {
            Next::Write(writing) => {
                correlator.told(&writing, told, SECOND_NS, now_ns);
                written.push((now_ns, writing));
            }
            Next::Wait(until_ns) => now_ns = until_ns,
            Next::Idle => break,
        }
    }
    written
}

fn series(writing: &Writing) -> Value {
    let body: Value = serde_json::from_slice(&writing.request.body.as_ref().unwrap().1).unwrap();
    body["series"]["count"].clone()
}

#[test]
fn repeats_are_one_event_whose_count_is_raised_ever_more_seldom() {
    let (mut correlator, fates) = correlator();
    let mut written = Vec::new();
    for second in 0..1_200 {
        correlator.note(kill(1), second * SECOND_NS);
        if let Some(writing) = write(&mut correlator, second * SECOND_NS) {
            correlator.told(&writing, &Told::Done, 0, second * SECOND_NS);
            written.push((second, writing.makes, series(&writing)));
        }
    }
    let at: Vec<_> = written.iter().map(|(second, ..)| *second).collect();
    assert_eq!(at, [0, 10, 30, 70, 150, 310, 610, 910], "doubling up to five minutes");
    assert!(written[0].1 && written[1..].iter().all(|(_, makes, _)| !makes));
    assert_eq!((&written[0].2, &written[2].2), (&Value::Null, &Value::from(31)));
    write_until(&mut correlator, 1_200 * SECOND_NS, 2_000 * SECOND_NS, &Told::Done);
    assert_eq!((fate(&fates, Fate::Created), fate(&fates, Fate::Counted)), (1, 1_199));
    assert_eq!(correlator.waiting(), 0);
    // After a pause it is another one.
    correlator.note(kill(1), 10_000 * SECOND_NS);
    assert!(write(&mut correlator, 10_000 * SECOND_NS).unwrap().makes);
}

#[test]
fn a_thousand_kills_in_a_hundred_containers_stay_within_the_pace_and_are_all_told() {
    let (mut correlator, fates) = correlator();
    for nth in 0..1_000 {
        correlator.note(kill(nth % 100), 0);
    }
    let written = write_until(&mut correlator, 0, 60 * MINUTE_NS, &Told::Done);
    assert_eq!(written.len(), 100, "ten of each are told at once");
    let in_a_minute = written.iter().filter(|(at, _)| *at < MINUTE_NS).count();
    assert!(in_a_minute < 60, "{in_a_minute}");
    assert_eq!((fate(&fates, Fate::Created), fate(&fates, Fate::Counted)), (100, 900));
}

#[test]
fn an_eviction_does_not_wait_behind_a_storm() {
    let (mut correlator, _) = correlator();
    (0..100).for_each(|pod| correlator.note(kill(pod), 0));
    write_until(&mut correlator, 0, SECOND_NS, &Told::Done);
    correlator.note(evicted(7), SECOND_NS);
    assert_eq!(write(&mut correlator, SECOND_NS).unwrap().reason(), Reason::Evicted);
}

#[test]
fn what_has_no_room_is_dropped_oldest_first_and_counted() {
    let (mut correlator, fates) = correlator();
    correlator.note(evicted(0), 0);
    for pod in 0..SERIES + 88 {
        correlator.note(Occurrence { times: 2, ..kill(pod) }, pod as u64 + 1);
    }
    assert_eq!(fate(&fates, Fate::Dropped), 2 * 89);
    assert_eq!(correlator.waiting(), fate(&fates, Fate::Noted) - 2 * 89);
    let first = write(&mut correlator, SECOND_NS).unwrap();
    assert_eq!(first.reason(), Reason::Evicted, "which is dropped last of all");
    correlator.told(&first, &Told::Done, 0, SECOND_NS);
    let second = write(&mut correlator, SECOND_NS).unwrap();
    assert!(second.request.body.as_ref().unwrap().1.windows(8).any(|part| part == b"\"pod-89\""));
}

#[test]
fn a_server_that_cannot_be_asked_is_asked_again_for_an_hour() {
    let (mut correlator, fates) = correlator();
    correlator.note(kill(1), 0);
    correlator.note(kill(2), 0);
    let away = Told::Later { pause: Some(Duration::from_secs(30)) };
    let tried = write_until(&mut correlator, 0, MINUTE_NS, &away);
    assert_eq!(tried.iter().map(|(at, _)| *at / SECOND_NS).collect::<Vec<_>>(), [0, 30, 60]);
    let of = |nth: usize| tried[nth].1.key.1.clone();
    assert!(of(0) == of(2) && of(0) != of(1), "in turn");
    correlator.note(kill(1), EXPIRES_NS - 1);
    let told = write_until(&mut correlator, EXPIRES_NS, EXPIRES_NS, &Told::Done);
    assert!(told.is_empty(), "both are too old");
    assert_eq!((fate(&fates, Fate::Dropped), correlator.waiting()), (3, 0));
}

#[test]
fn an_event_that_the_server_keeps_no_more_is_made_anew_with_what_came_since() {
    let (mut correlator, fates) = correlator();
    correlator.note(kill(1), 0);
    let first = write_until(&mut correlator, 0, 0, &Told::Done);
    (0..3).for_each(|_| correlator.note(kill(1), SECOND_NS));
    let raised = write_until(&mut correlator, 10 * SECOND_NS, 10 * SECOND_NS, &Told::Missing);
    assert!(!raised[0].1.makes && series(&raised[0].1) == 4);
    let again = raised.last().unwrap();
    assert!(again.1.makes && series(&again.1) == 3, "{raised:?}");
    assert_ne!(again.1.request.body, first[0].1.request.body);
    correlator.told(&again.1, &Told::Done, 0, 10 * SECOND_NS);
    assert_eq!((fate(&fates, Fate::Created), fate(&fates, Fate::Counted)), (2, 2));
}

#[test]
fn what_is_refused_is_counted_and_not_asked_for_again_at_once() {
    let (mut correlator, fates) = correlator();
    correlator.note(kill(1), 0);
    let refused = Told::Refused { why: "no".into() };
    assert_eq!(write_until(&mut correlator, 0, MINUTE_NS, &refused).len(), 1);
    assert_eq!((fate(&fates, Fate::Refused), correlator.waiting()), (1, 0));
    correlator.note(kill(1), SECOND_NS);
    assert!(write(&mut correlator, SECOND_NS).is_none());
    assert!(write(&mut correlator, 10 * SECOND_NS).unwrap().makes);
}

#[test]
fn without_the_right_to_tell_the_server_is_asked_once_a_minute() {
    let (mut correlator, fates) = correlator();
    (0..3).for_each(|pod| correlator.note(kill(pod), 0));
    let forbidden = Told::Forbidden { why: "no".into(), pause: Duration::from_secs(60) };
    let asked = write_until(&mut correlator, 0, 150 * SECOND_NS, &forbidden);
    assert_eq!(asked.iter().map(|(at, _)| *at / SECOND_NS).collect::<Vec<_>>(), [0, 60, 120]);
    assert_eq!(fate(&fates, Fate::Refused), 3);
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
    fn nothing_is_lost_without_a_count_and_the_pace_is_kept(steps in steps()) {
        let (mut correlator, fates) = correlator();
        let (mut now_ns, mut sent) = (0, Vec::new());
        let answers = [
            Told::Done,
            Told::Missing,
            Told::Refused { why: String::new() },
            Told::Later { pause: None },
            Told::Forbidden { why: String::new(), pause: Duration::from_secs(60) },
        ];
        for step in steps {
            match step {
                Step::Note(pod, evicts, times) => {
                    let what = if evicts { evicted(pod) } else { kill(pod) };
                    correlator.note(Occurrence { times, ..what }, now_ns);
                }
                Step::Wait(ns) => now_ns += ns,
                Step::Write(nth) => {
                    if let Some(writing) = write(&mut correlator, now_ns) {
                        let told = if nth == 1 && writing.makes { &answers[0] } else { &answers[nth] };
                        sent.push(now_ns);
                        correlator.told(&writing, told, SECOND_NS, now_ns);
                    }
                }
            }
            prop_assert!(correlator.series.len() <= SERIES);
            let ends = [Fate::Created, Fate::Counted, Fate::Dropped, Fate::Refused];
            let settled: u64 = ends.iter().map(|it| fate(&fates, *it)).sum();
            prop_assert_eq!(fate(&fates, Fate::Noted), settled + correlator.waiting());
        }
        for (nth, at) in sent.iter().enumerate() {
            let within = sent[nth..].iter().take_while(|later| **later < at + MINUTE_NS).count();
            prop_assert!(within < 60, "{within} in a minute");
        }
    }
}
