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

/// The limits, and the evictions that executors are at.
struct Limiter {
    limit: RateLimit,
    in_flight: Vec<InFlightEviction>,
    clock: Clock,
}

impl Limiter {
    fn new() -> Self {
        let limit = RateLimit { waits_for_victims: true, kills: VecDeque::new() };
        Self { limit, in_flight: Vec::new(), clock: Clock::start() }
    }

    fn admit(&self, target: &KillTarget, now_ns: u64) -> Result<Admission, KillRejection> {
        self.limit.admit(target, self.in_flight.iter(), &self.clock, now_ns)
    }

    /// Asks, and begins if allowed.
    fn kill(&mut self, target: &KillTarget, now_ns: u64) -> Result<Admission, KillRejection> {
        let target = KillTarget { at_ns: now_ns, ..target.clone() };
        let admitted = self.admit(&target, now_ns)?;
        let now = self.clock.at(now_ns).wall;
        match admitted {
            Admission::Begin => {
                let signal = match target.resource {
                    Resource::Pids => Signal::PidAvailable,
                    _ => Signal::MemoryAvailable,
                };
                let begun =
                    InFlightEviction::new(Arc::clone(&target.pod), signal.name(), target.hard, now, 0);
                self.in_flight.push(InFlightEviction { decision: Some(target.decision), ..begun });
                self.limit.begun(&target, now_ns);
            }
            Admission::Shorten { decision } => {
                let it = self.in_flight.iter_mut().find(|it| it.decision == Some(decision)).unwrap();
                (it.hard, it.since) = (true, now);
            }
        }
        Ok(admitted)
    }

    fn ended(&mut self, decision: u64, now_ns: u64) {
        self.in_flight.retain(|it| it.decision != Some(decision));
        self.limit.ended(decision, now_ns);
    }
}

#[test]
fn the_next_victim_waits_for_the_last_one() {
    let mut limiter = Limiter::new();
    limiter.kill(&target(1, 1, true, 0), 0).unwrap();
    let second = target(2, 2, true, 0);
    assert_eq!(
        limiter.kill(&second, 29 * SECOND),
        Err(KillRejection::VictimPending { decision: 1, until_ns: 30 * SECOND })
    );
    // Another pressure has its own victim.
    let pids = KillTarget { resource: Resource::Pids, ..target(3, 3, true, 0) };
    limiter.kill(&pids, 29 * SECOND).unwrap();
    // After 30 s the next one, though the first is still there.
    limiter.kill(&second, 30 * SECOND).unwrap();
    assert_eq!(limiter.in_flight.len(), 3);
    // And at once when it is gone.
    for decision in 1..=3 {
        limiter.ended(decision, 31 * SECOND);
    }
    limiter.kill(&target(4, 4, true, 0), 31 * SECOND).unwrap();
}

#[test]
fn a_soft_victim_never_holds_up_a_hard_one() {
    let mut limiter = Limiter::new();
    limiter.kill(&target(1, 1, false, 0), 0).unwrap();
    assert!(limiter.kill(&target(2, 2, false, 0), 1).is_err());
    limiter.kill(&target(3, 3, true, 0), 1).unwrap();
    // The same pod is hurried, once.
    let mut limiter = Limiter::new();
    limiter.kill(&target(1, 1, false, 0), 0).unwrap();
    assert_eq!(limiter.kill(&target(2, 1, true, 0), 1), Ok(Admission::Shorten { decision: 1 }));
    assert_eq!(
        limiter.kill(&target(3, 1, true, 0), 2),
        Err(KillRejection::AlreadyTerminating { decision: 1 })
    );
    // Now it is a hard victim and holds up the next hard one.
    assert!(limiter.kill(&target(4, 2, true, 0), 2).is_err());
}

#[test]
fn a_pod_that_comes_back_is_not_killed_in_a_loop() {
    let mut limiter = Limiter::new();
    let mut now = 0;
    for decision in 1..=3 {
        limiter.kill(&target(decision, 1, true, 0), now).unwrap();
        limiter.ended(decision, now + SECOND);
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
    limiter.ended(5, now);
    limiter.kill(&target(6, 1, true, 0), 601 * SECOND).unwrap();
}

#[test]
fn the_node_has_a_limit() {
    let mut limiter = Limiter::new();
    for decision in 0..10 {
        limiter.kill(&target(decision, decision, true, 0), decision).unwrap();
        limiter.ended(decision, decision);
    }
    let next = target(10, 10, true, 0);
    assert_eq!(
        limiter.kill(&next, SECOND),
        Err(KillRejection::NodeLimit { kills: 10, until_ns: 60 * SECOND })
    );
    limiter.kill(&next, 60 * SECOND).unwrap();
}

#[test]
fn a_stale_decision_is_not_begun() {
    let limiter = Limiter::new();
    let old = target(1, 1, true, 0);
    assert!(limiter.admit(&old, 5 * SECOND).is_ok());
    assert_eq!(limiter.admit(&old, 5 * SECOND + 1), Err(KillRejection::Stale { age_ns: 5 * SECOND + 1 }));
    // A clock that seems to go back makes nothing stale.
    assert!(limiter.admit(&target(1, 1, true, u64::MAX), 0).is_ok());
}

#[test]
fn pods_without_a_name_are_told_apart_by_their_uid() {
    let nameless = |uid: &str| PodName { uid: uid.into(), namespace: "".into(), name: "".into() };
    assert!(is_same(&nameless("a"), &nameless("a")));
    assert!(!is_same(&nameless("a"), &nameless("b")));
}

#[test]
fn the_pace_goes_on_after_a_restart() {
    let mut former = Limiter::new();
    for decision in 1..=10 {
        former.kill(&target(decision, decision, true, 0), decision).unwrap();
        if decision < 10 {
            former.ended(decision, decision);
        }
    }
    let mut limiter = Limiter::new();
    limiter.limit.restore(former.limit.kills().cloned().collect());
    // The last one is still under way: it goes on, and is no other kill.
    limiter.kill(&target(10, 10, true, 0), SECOND).unwrap();
    limiter.ended(10, 2 * SECOND);
    let until_ns = 62 * SECOND;
    assert_eq!(limiter.kill(&target(11, 10, true, 0), 3 * SECOND), Err(KillRejection::CoolDown { until_ns }));
    assert!(matches!(
        limiter.kill(&target(11, 11, true, 0), 3 * SECOND),
        Err(KillRejection::NodeLimit { kills: 10, .. })
    ));
    assert_eq!(limiter.limit.kills().count(), 10);
}

proptest! {
    /// Whatever is asked at whatever times: the limits hold, and a refusal says when to ask
    /// again so that by then its own reason has passed.
    #[test]
    fn limits_hold(asks in prop::collection::vec((0_u64..6, any::<bool>(), 0_u64..40, any::<bool>()), 1..200)) {
        let mut limiter = Limiter::new();
        let mut begun: Vec<(u64, u64)> = Vec::new();
        let mut now = 0;
        for (decision, (pod_number, hard, pause, ends)) in (0_u64..).zip(asks) {
            now += pause * SECOND;
            match limiter.kill(&target(decision, pod_number, hard, 0), now) {
                Ok(Admission::Begin) => {
                    let last = begun.iter().filter(|(_, pod)| *pod == pod_number).map(|(at, _)| *at).max();
                    prop_assert!(last.is_none_or(|last| now - last >= nanos(COOL_DOWN)));
                    begun.push((now, pod_number));
                    if ends {
                        limiter.ended(decision, now);
                    }
                }
                Ok(Admission::Shorten { decision: shortened }) => {
                    prop_assert!(limiter.in_flight.iter().any(|it| it.decision == Some(shortened) && it.hard));
                }
                Err(KillRejection::CoolDown { until_ns } | KillRejection::PodLimit { until_ns, .. } | KillRejection::NodeLimit { until_ns, .. } | KillRejection::VictimPending { until_ns, .. }) => {
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
            prop_assert!(within(NODE_WINDOW).count() <= NODE_LIMIT as usize);
            prop_assert!(within(POD_WINDOW).filter(|(_, pod)| *pod == pod_number).count() <= POD_LIMIT as usize);
        }
    }
}
