use eviction_core::engine::Engine;
use eviction_core::fixture;
use eviction_core::in_flight::{ApiPhase, EvictionEnd, ExecutorUpdate};
use eviction_core::input::Event;
use eviction_core::pod::Pod;
use eviction_core::signal::{Resource, Signal};
use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000_000;

fn pod(n: u64) -> Arc<PodName> {
    Arc::new(PodName {
        uid: format!("uid-{n}").into(),
        namespace: "default".into(),
        name: format!("pod-{n}").into(),
    })
}

fn target(decision: u64, pod_number: u64, hard: bool, at_ns: u64) -> KillTarget {
    KillTarget {
        decision,
        at_ns,
        pod: pod(pod_number),
        groups: Vec::new(),
        grace: Duration::ZERO,
        resource: Resource::Memory,
        hard,
        kill_on_growth: None,
    }
}

/// The rate limit, and the evictions in flight.
struct Limiter {
    limit: RateLimit,
    in_flight: Vec<InFlightEviction>,
}

impl Limiter {
    fn new() -> Self {
        Self { limit: RateLimit::default(), in_flight: Vec::new() }
    }

    fn admit(&self, target: &KillTarget, now_ns: u64) -> Result<Admission, KillRejection> {
        self.limit.admit(target, false, self.in_flight.iter(), now_ns)
    }

    /// Requests admission, and begins the eviction if it is admitted.
    fn kill(&mut self, target: &KillTarget, now_ns: u64) -> Result<Admission, KillRejection> {
        let target = KillTarget { at_ns: now_ns, ..target.clone() };
        let admitted = self.admit(&target, now_ns)?;
        let now = fixture::at((now_ns / SECOND) as i64);
        match admitted {
            Admission::Begin => {
                let signal = Signal::MemoryAvailable.name();
                let begun = InFlightEviction::new(Arc::clone(&target.pod), signal, target.hard, now, 0);
                self.in_flight.push(InFlightEviction { decision: Some(target.decision), ..begun });
                self.limit.record_begin(&target, now_ns);
            }
            Admission::Shorten { decision } => {
                let it = self.in_flight.iter_mut().find(|it| it.decision == Some(decision)).unwrap();
                (it.hard, it.since) = (true, now);
            }
        }
        Ok(admitted)
    }

    fn end(&mut self, decision: u64, now_ns: u64) {
        self.in_flight.retain(|it| it.decision != Some(decision));
        self.limit.record_end(decision, now_ns);
    }
}

#[test]
fn the_grace_period_of_a_soft_eviction_is_shortened_once() {
    let mut limiter = Limiter::new();
    limiter.kill(&target(1, 1, false, 0), 0).unwrap();
    assert_eq!(limiter.kill(&target(2, 1, true, 0), 1), Ok(Admission::Shorten { decision: 1 }));
    assert_eq!(
        limiter.kill(&target(3, 1, true, 0), 2),
        Err(KillRejection::AlreadyTerminating { decision: 1 })
    );
}

/// The engine marks the eviction as hard when it decides to shorten the grace period.
#[test]
fn a_grace_period_that_the_engine_shortens_is_admitted() {
    let thresholds =
        vec![fixture::hard(Signal::MemoryAvailable, "100"), fixture::soft(Signal::MemoryAvailable, "200", 1)];
    let slow = Pod { termination_grace_period_seconds: Some(600), ..fixture::pod("slow", "10") };
    let mut engine = fixture::engine(fixture::enhanced(thresholds, |_| ()), &fixture::set(vec![slow]));
    let sample = |engine: &mut Engine, seconds, available| {
        let node = fixture::node(available, 900, fixture::at(seconds));
        let snapshot = fixture::snapshot(node, &[fixture::memory_of("slow", 300)]);
        fixture::step(engine, seconds, Event::Sample(snapshot))
    };
    sample(&mut engine, 0, 150);
    assert_eq!(fixture::victims(&sample(&mut engine, 1, 150)), [("slow", 600)]);
    let started = InFlightEviction { api: Some(ApiPhase::Accepted), ..engine.in_flight()[0].clone() };
    let update = ExecutorUpdate::Started(Box::new(started));
    fixture::step(&mut engine, 1, Event::Executing { decision: 1, update });
    let decision = sample(&mut engine, 2, 50);
    assert_eq!((fixture::victims(&decision).len(), decision.evictions().count()), (0, 1));
    let target = KillTarget { pod: Arc::clone(&engine.in_flight()[0].pod), ..target(2, 1, true, 0) };
    let limit = RateLimit::default();
    let admit = |shortens| limit.admit(&target, shortens, engine.in_flight().iter(), 0);
    assert_eq!(admit(true), Ok(Admission::Shorten { decision: 1 }));
    assert_eq!(admit(false), Err(KillRejection::AlreadyTerminating { decision: 1 }));
}

#[test]
fn a_restarted_pod_is_not_killed_in_a_loop() {
    let mut limiter = Limiter::new();
    let mut now = 0;
    for decision in 1..=3 {
        limiter.kill(&target(decision, 1, true, 0), now).unwrap();
        limiter.end(decision, now + SECOND);
        // The same name under another uid is the same pod.
        let again = KillTarget {
            pod: Arc::new(PodName { uid: "new".into(), ..(*pod(1)).clone() }),
            ..target(99, 1, true, 0)
        };
        let until_ns = now + 61 * SECOND;
        assert_eq!(limiter.kill(&again, until_ns - 1), Err(KillRejection::CoolDown { until_ns }));
        now = until_ns;
    }
    // The first kill ended at 1 s.
    assert_eq!(
        limiter.kill(&target(4, 1, true, 0), now),
        Err(KillRejection::PodLimit { kills: 3, until_ns: 601 * SECOND })
    );
    limiter.kill(&target(5, 2, true, 0), now).unwrap();
    limiter.end(5, now);
    limiter.kill(&target(6, 1, true, 0), 601 * SECOND).unwrap();
}

#[test]
fn kills_on_the_node_are_limited_per_minute() {
    let mut limiter = Limiter::new();
    for decision in 0..10 {
        limiter.kill(&target(decision, decision, true, 0), decision).unwrap();
        limiter.end(decision, decision);
    }
    let next = target(10, 10, true, 0);
    assert_eq!(
        limiter.kill(&next, SECOND),
        Err(KillRejection::NodeLimit { kills: 10, until_ns: 60 * SECOND })
    );
    limiter.kill(&next, 60 * SECOND).unwrap();
}

#[test]
fn an_expired_eviction_takes_no_place_of_those_in_flight() {
    let mut limiter = Limiter::new();
    for decision in 0..16 {
        limiter.kill(&target(decision, decision, true, 0), decision * 10 * SECOND).unwrap();
    }
    let (next, now_ns) = (target(16, 16, true, 0), 160 * SECOND);
    assert_eq!(limiter.kill(&next, now_ns), Err(KillRejection::Busy { in_flight: 16 }));
    limiter.in_flight[0].ended = Some(EvictionEnd::Expired);
    limiter.kill(&next, now_ns).unwrap();
    let same_pod = target(17, 0, true, 0);
    assert_eq!(
        limiter.kill(&same_pod, now_ns),
        Err(KillRejection::AlreadyTerminating { decision: 0 }),
        "its processes are still there"
    );
}

#[test]
fn a_stale_decision_is_rejected() {
    let limiter = Limiter::new();
    let old = target(1, 1, true, 0);
    assert!(limiter.admit(&old, 5 * SECOND).is_ok());
    assert_eq!(limiter.admit(&old, 5 * SECOND + 1), Err(KillRejection::Stale { age_ns: 5 * SECOND + 1 }));
    // A clock that seems to go back makes nothing stale.
    assert!(limiter.admit(&target(1, 1, true, u64::MAX), 0).is_ok());
}

#[test]
fn pods_without_a_name_are_distinguished_by_uid() {
    let nameless = |uid: &str| PodName { uid: uid.into(), namespace: "".into(), name: "".into() };
    assert!(is_same_pod(&nameless("a"), &nameless("a")));
    assert!(!is_same_pod(&nameless("a"), &nameless("b")));
}

#[test]
fn kills_before_a_restart_count_against_the_limits() {
    let mut previous = Limiter::new();
    for decision in 1..=10 {
        previous.kill(&target(decision, decision, true, 0), decision).unwrap();
        if decision < 10 {
            previous.end(decision, decision);
        }
    }
    let mut limiter = Limiter::new();
    limiter.limit.evictions = previous.limit.evictions;
    // The last one is still in flight: it continues, and does not count as another kill.
    limiter.kill(&target(10, 10, true, 0), SECOND).unwrap();
    limiter.end(10, 2 * SECOND);
    let until_ns = 62 * SECOND;
    assert_eq!(limiter.kill(&target(11, 10, true, 0), 3 * SECOND), Err(KillRejection::CoolDown { until_ns }));
    assert!(matches!(
        limiter.kill(&target(11, 11, true, 0), 3 * SECOND),
        Err(KillRejection::NodeLimit { kills: 10, .. })
    ));
    assert_eq!(limiter.limit.evictions.len(), 10);
}

proptest! {
    /// Whatever is asked at whatever times: the limits hold, and a refusal says when to ask
    /// again so that by then its own reason has passed.
    #[test]
    fn limits_are_never_exceeded(requests in prop::collection::vec((0_u64..6, any::<bool>(), 0_u64..40, any::<bool>()), 1..200)) {
        let mut limiter = Limiter::new();
        let mut begun: Vec<(u64, u64)> = Vec::new();
        let mut now = 0;
        for (decision, (pod_number, hard, pause, ends)) in (0_u64..).zip(requests) {
            now += pause * SECOND;
            match limiter.kill(&target(decision, pod_number, hard, 0), now) {
                Ok(Admission::Begin) => {
                    let last = begun.iter().filter(|(_, pod)| *pod == pod_number).map(|(at, _)| *at).max();
                    prop_assert!(last.is_none_or(|last| now - last >= nanos(COOL_DOWN)));
                    begun.push((now, pod_number));
                    if ends {
                        limiter.end(decision, now);
                    }
                }
                Ok(Admission::Shorten { decision: shortened }) => {
                    prop_assert!(limiter.in_flight.iter().any(|it| it.decision == Some(shortened) && it.hard));
                }
                Err(KillRejection::CoolDown { until_ns } | KillRejection::PodLimit { until_ns, .. } | KillRejection::NodeLimit { until_ns, .. }) => {
                    prop_assert!(until_ns > now);
                    let before = limiter.admit(&target(decision, pod_number, hard, now), now);
                    let then = limiter.admit(&target(decision, pod_number, hard, until_ns), until_ns);
                    prop_assert_ne!(before.unwrap_err(), then.err().unwrap_or(KillRejection::Empty));
                }
                Err(refused) => {
                    let expected = matches!(refused, KillRejection::AlreadyTerminating { .. } | KillRejection::Busy { .. });
                    prop_assert!(expected, "{}", refused);
                }
            }
            let within = |window: Duration| begun.iter().filter(move |(at, _)| now - at < nanos(window));
            prop_assert!(within(NODE_WINDOW).count() <= NODE_LIMIT);
            prop_assert!(within(POD_WINDOW).filter(|(_, pod)| *pod == pod_number).count() <= POD_LIMIT);
        }
    }
}
