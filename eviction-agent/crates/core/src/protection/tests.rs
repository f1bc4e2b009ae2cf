use std::sync::Arc;

use super::*;
use crate::disk_layout::DiskLayout;
use crate::engine::Engine;
use crate::fixture::{at, hard, memory_of, node, pod, policy, set_by, snapshot, soft, step, victims};
use crate::input::Event;
use crate::oom::OomKill;
use crate::pod::{Owner, Pod};
use crate::pods::{
    DESCHEDULER_EVICT, DESCHEDULER_PREFER_NO_EVICTION, EVICT, KnownPod, PRIORITY_HINT, PodProtection, PodSet,
};
use crate::policy::preferences::{
    EvictionLimit, EvictionOrder, HardEvictions, LabelSelector, Preferences, ProtectionRule, RateLimitScope,
    SoftEvictions,
};
use crate::policy::{Policy, Rules, Threshold};
use crate::signal::Signal::{MemoryAvailable, NodeFsAvailable};
use crate::units::GoDuration;

fn enhanced(preferences: &Preferences, thresholds: Vec<Threshold>) -> Policy {
    Policy { rules: Rules::enhanced(preferences), ..policy(thresholds) }
}

/// Returns a pod of a ReplicaSet that requests 10 bytes.
fn owned(uid: &str, owner: &str) -> Pod {
    let owner = Owner { kind: "ReplicaSet".into(), name: owner.into(), uid: owner.into() };
    Pod { owner: Some(owner), ..pod(uid, "10") }
}

fn annotated(pod: Pod, annotations: &[(&str, &str)]) -> Pod {
    let entry = |(key, value): &(&str, &str)| ((*key).into(), (*value).into());
    Pod { annotations: annotations.iter().map(entry).collect(), ..pod }
}

/// Returns the protection of a pod without a controller and with these annotations.
fn parsed(annotations: &[(&str, &str)]) -> PodProtection {
    PodProtection::of(&annotated(pod("a", "1"), annotations), &Rules::enhanced(&Preferences::default()))
}

/// An engine under memory pressure whenever it gets a sample.
struct Testbed {
    engine: Engine,
    pods: Vec<Pod>,
    policy: Policy,
}

impl Testbed {
    fn new(preferences: &Preferences, threshold: Threshold, pods: Vec<Pod>) -> Self {
        let policy = enhanced(preferences, vec![threshold]);
        let mut engine = Engine::new(policy.clone());
        step(&mut engine, 0, Event::DiskLayout(Ok(DiskLayout::default())));
        Self { engine, pods, policy }
    }

    fn hard_memory(preferences: &Preferences, pods: Vec<Pod>) -> Self {
        Self::new(preferences, hard(MemoryAvailable, "100"), pods)
    }

    fn set(&self) -> Arc<PodSet> {
        set_by(&self.policy, self.pods.clone())
    }

    /// Returns the first pod that is evicted, if memory is short at this second, and the refusals. The pod is
    /// removed afterwards.
    fn sample(&mut self, seconds: i64) -> (Option<String>, Vec<(String, Refusal)>) {
        let pods = self.set();
        step(&mut self.engine, seconds, Event::Pods(Arc::clone(&pods)));
        let usage: Vec<_> = self.pods.iter().map(|pod| memory_of(&pod.uid, 200)).collect();
        let sample = snapshot(node(50, 5, at(seconds)), &usage);
        let decision = step(&mut self.engine, seconds, Event::Sample(sample));
        let uid = |index| pods.get(index).unwrap().pod.uid.to_string();
        let refused = decision.evaluation().map_or(&[][..], |evaluation| &evaluation.refused_pods);
        let refused = refused.iter().map(|refused| (uid(refused.pod), refused.why)).collect();
        let victim = victims(&decision).first().map(|(uid, _)| (*uid).to_owned());
        self.pods.retain(|pod| Some(&*pod.uid) != victim.as_deref());
        (victim, refused)
    }

    fn victim(&mut self, seconds: i64) -> Option<String> {
        self.sample(seconds).0
    }

    fn oom_kill(&mut self, seconds: i64, uid: &str) {
        let kill = OomKill { pod_uid: Some(uid.into()), ..OomKill::default() };
        step(&mut self.engine, seconds, Event::OomKill(Box::new(kill)));
    }
}

fn without_limits() -> Preferences {
    Preferences { rate_limits: Vec::new(), ..Preferences::default() }
}

#[test]
fn valid_annotations_are_read() {
    let none = parsed(&[]);
    assert_eq!((none.order, none.without_controller, none.hint), (EvictionOrder::Normal, true, 0));
    for no in ["false", "False", "FALSE"] {
        assert_eq!(parsed(&[(EVICT, no)]).order, EvictionOrder::OptedOut, "{no}");
    }
    assert_eq!(parsed(&[(EVICT, "true")]), PodProtection { without_controller: false, ..none });
    let contradictory = parsed(&[(EVICT, "false"), (DESCHEDULER_EVICT, "true")]);
    assert_eq!(
        (contradictory.order, contradictory.without_controller),
        (EvictionOrder::OptedOut, true),
        "our own is the more specific"
    );
    for (hint, value) in [("-100", -100), ("0", 0), ("+7", 7), ("100", 100)] {
        let parsed = parsed(&[(PRIORITY_HINT, hint)]);
        assert_eq!((parsed.hint, parsed.ignored.len()), (value, 0), "{hint}");
    }
}

#[test]
fn descheduler_annotations_count_by_presence_except_evict_false() {
    for value in ["", "true", "whatever"] {
        assert!(!parsed(&[(DESCHEDULER_EVICT, value)]).without_controller, "{value}");
        assert_eq!(parsed(&[(DESCHEDULER_PREFER_NO_EVICTION, value)]).order, EvictionOrder::Last, "{value}");
    }
    assert_eq!(parsed(&[(DESCHEDULER_PREFER_NO_EVICTION, "false")]).order, EvictionOrder::Last);
    let no = parsed(&[(DESCHEDULER_EVICT, "false")]);
    assert_eq!((no.without_controller, no.ignored[0].error), (true, "says_false"));
}

#[test]
fn invalid_annotation_values_are_ignored_and_truncated() {
    let long = "\u{1f980}".repeat(300);
    for hint in ["", " 1", "1.5", "-101", "101", "300", "first", &long] {
        let parsed = parsed(&[(PRIORITY_HINT, hint)]);
        assert_eq!((parsed.hint, parsed.ignored.len()), (0, 1), "{hint}");
        assert_eq!(parsed.ignored[0].error, "not_a_number_in_range");
        assert!(parsed.ignored[0].value.chars().count() <= 64);
    }
    let no = parsed(&[(EVICT, "no")]);
    assert_eq!((no.order, no.ignored[0].error), (EvictionOrder::Normal, "not_true_or_false"));
}

fn rule(order: EvictionOrder) -> ProtectionRule {
    ProtectionRule { namespaces: Vec::new(), selector: None, priority_classes: Vec::new(), order }
}

#[test]
fn first_rule_whose_conditions_all_match_decides() {
    let selector: LabelSelector =
        serde_json::from_value(serde_json::json!({"matchLabels": {"app": "db"}})).unwrap();
    let protection = vec![
        ProtectionRule {
            namespaces: vec!["prod".into()],
            selector: Some(selector),
            ..rule(EvictionOrder::Never)
        },
        ProtectionRule { namespaces: vec!["prod".into(), "kube-system".into()], ..rule(EvictionOrder::Last) },
        ProtectionRule { priority_classes: vec!["batch".into()], ..rule(EvictionOrder::First) },
    ];
    let rules = Rules::enhanced(&Preferences { protection, ..Preferences::default() });
    let order_and_rule = |namespace: &str, app: &str, class: &str, annotations: &[(&str, &str)]| {
        let mut pod = annotated(owned("a", "rs"), annotations);
        (pod.namespace, pod.priority_class) = (namespace.into(), class.into());
        pod.labels.insert("app", app.into());
        let protection = PodProtection::of(&pod, &rules);
        (protection.order, protection.rule)
    };
    assert_eq!(order_and_rule("prod", "db", "batch", &[]), (EvictionOrder::Never, Some(0)));
    assert_eq!(order_and_rule("prod", "web", "batch", &[]), (EvictionOrder::Last, Some(1)));
    assert_eq!(order_and_rule("test", "db", "batch", &[]), (EvictionOrder::First, Some(2)));
    assert_eq!(order_and_rule("test", "db", "", &[]), (EvictionOrder::Normal, None));
    let stay = [(DESCHEDULER_PREFER_NO_EVICTION, "")];
    assert_eq!(order_and_rule("test", "db", "", &stay), (EvictionOrder::Last, None));
    assert_eq!(
        order_and_rule("test", "db", "batch", &stay),
        (EvictionOrder::First, Some(2)),
        "the operator's word"
    );
    let out = [(EVICT, "false")];
    assert_eq!(order_and_rule("test", "db", "batch", &out), (EvictionOrder::OptedOut, Some(2)));
    assert_eq!(order_and_rule("prod", "db", "", &[(EVICT, "true")]), (EvictionOrder::Never, Some(0)));
}

#[test]
fn kubelet_profile_protects_no_pod() {
    let everything = [(EVICT, "false"), (PRIORITY_HINT, "9"), (DESCHEDULER_PREFER_NO_EVICTION, "")];
    let protection = PodProtection::of(&annotated(pod("a", "1"), &everything), &Rules::kubelet());
    assert_eq!(
        protection,
        PodProtection { rate_limit_key: Arc::clone(&protection.rate_limit_key), ..PodProtection::default() }
    );
}

#[test]
fn owner_without_a_uid_is_identified_by_its_name() {
    let rules = Rules::enhanced(&Preferences::default());
    let mut pod = owned("a", "");
    assert_eq!(PodProtection::of(&pod, &rules).rate_limit_key.owner.as_deref(), Some("default/ReplicaSet/"));
    pod.owner = None;
    let protection = PodProtection::of(&pod, &rules);
    assert_eq!((protection.rate_limit_key.owner.clone(), protection.without_controller), (None, true));
    let allowing = annotated(pod, &[(DESCHEDULER_EVICT, "")]);
    assert!(!PodProtection::of(&allowing, &rules).without_controller);
}

#[test]
fn an_opt_out_holds_unless_the_policy_overrides_it_for_hard_memory() {
    let pods = || vec![annotated(owned("out", "x"), &[(EVICT, "false")])];
    let no = vec![("out".to_owned(), Refusal::OptedOut)];
    assert_eq!(Testbed::hard_memory(&without_limits(), pods()).sample(1), (None, no.clone()));

    let overriding = Preferences { hard: HardEvictions { override_opt_out: true }, ..without_limits() };
    let mut last = pods();
    last.push(owned("other", "y"));
    let mut testbed = Testbed::hard_memory(&overriding, last);
    assert_eq!(testbed.victim(1).as_deref(), Some("other"), "who did not opt out goes before");
    assert_eq!(testbed.victim(2).as_deref(), Some("out"), "the other one is gone");

    let mut both = pods();
    both.push(owned("other", "y"));
    let mut testbed = Testbed::hard_memory(&overriding, both.clone());
    assert_eq!(testbed.victim(1).as_deref(), Some("other"));
    let failed = Event::Evicted { uid: "other".into(), result: Err("it stayed".into()) };
    testbed.pods = both;
    step(&mut testbed.engine, 2, failed);
    assert_eq!(testbed.victim(20).as_deref(), Some("other"), "who did not go lately goes before, too");

    let soft = soft(MemoryAvailable, "100", 1);
    let mut testbed = Testbed::new(&overriding, soft, pods());
    testbed.sample(0);
    assert_eq!(testbed.sample(5), (None, no), "soft");
    let disk = hard(NodeFsAvailable, "100");
    let mut testbed = Testbed::new(&overriding, disk, pods());
    assert_eq!(testbed.victim(1), None, "no memory");
}

#[test]
fn pods_without_controller_are_not_evicted_for_soft_thresholds_by_default() {
    let evict_for_soft = |preferences: &Preferences, pod: Pod| {
        let mut testbed = Testbed::new(preferences, soft(MemoryAvailable, "100", 1), vec![pod]);
        testbed.sample(0);
        testbed.sample(5)
    };
    let refused = (None, vec![("a".to_owned(), Refusal::WithoutController)]);
    assert_eq!(evict_for_soft(&without_limits(), pod("a", "10")), refused);
    let allowing = annotated(pod("a", "10"), &[(DESCHEDULER_EVICT, "")]);
    assert_eq!(evict_for_soft(&without_limits(), allowing).0.as_deref(), Some("a"));
    let soft = SoftEvictions { evict_pods_without_controller: true, ..SoftEvictions::default() };
    assert_eq!(
        evict_for_soft(&Preferences { soft, ..without_limits() }, pod("a", "10")).0.as_deref(),
        Some("a")
    );
    let mut testbed = Testbed::hard_memory(&without_limits(), vec![pod("a", "10")]);
    assert_eq!(testbed.victim(1).as_deref(), Some("a"), "hard");
}

#[test]
fn pod_is_not_evicted_during_the_cool_down_after_an_oom_kill() {
    let preferences = Preferences { cool_down_after_oom_kill: GoDuration::from_secs(60), ..without_limits() };
    let mut testbed = Testbed::hard_memory(&preferences, vec![owned("hit", "x")]);
    testbed.oom_kill(100, "hit");
    let (victim, refused) = testbed.sample(130);
    let since = at(100);
    let remaining = GoDuration::from_secs(30);
    assert_eq!(
        (victim, refused),
        (None, vec![("hit".to_owned(), Refusal::CoolingDown { since, remaining })])
    );
    testbed.oom_kill(140, "hit");
    testbed.oom_kill(120, "hit");
    assert_eq!(testbed.victim(199), None, "the latest counts, in whatever order they arrive");
    assert_eq!(testbed.victim(200).as_deref(), Some("hit"));

    let off = Preferences { cool_down_after_oom_kill: GoDuration::ZERO, ..without_limits() };
    let mut testbed = Testbed::hard_memory(&off, vec![owned("hit", "x")]);
    testbed.oom_kill(1, "hit");
    assert_eq!(testbed.victim(1).as_deref(), Some("hit"));
}

#[test]
fn oom_kill_far_in_the_future_causes_no_cool_down() {
    let mut testbed = Testbed::hard_memory(&without_limits(), vec![owned("hit", "x")]);
    testbed.oom_kill(1_000_000, "hit");
    assert_eq!(testbed.victim(10).as_deref(), Some("hit"));
}

fn limit(scope: RateLimitScope, max_evictions: u32, seconds: i64) -> EvictionLimit {
    EvictionLimit { scope, max_evictions, window: GoDuration::from_secs(seconds) }
}

#[test]
fn rate_limit_per_owner_holds_for_its_window() {
    let preferences =
        Preferences { rate_limits: vec![limit(RateLimitScope::Owner, 2, 600)], ..Preferences::default() };
    let pods: Vec<_> = ["a", "b", "c"].map(|uid| owned(uid, "web")).into();
    let mut testbed = Testbed::hard_memory(&preferences, pods);
    assert_eq!([1, 2].map(|seconds| testbed.victim(seconds).unwrap()), ["a", "b"]);
    let reached = Refusal::RateLimit {
        scope: RateLimitScope::Owner,
        max_evictions: 2,
        window: GoDuration::from_secs(600),
    };
    assert_eq!(testbed.sample(3), (None, vec![("c".to_owned(), reached)]));
    assert_eq!(testbed.victim(600), None);
    testbed.pods.push(owned("z", "other"));
    assert_eq!(testbed.victim(600 + 1).as_deref(), Some("c"), "600 s after the first");
    assert_eq!(testbed.victim(602).as_deref(), Some("z"), "another owner");
}

#[test]
fn failed_eviction_does_not_count_against_rate_limits() {
    let preferences =
        Preferences { rate_limits: vec![limit(RateLimitScope::Namespace, 1, 600)], ..Preferences::default() };
    let mut testbed = Testbed::hard_memory(&preferences, vec![owned("a", "x"), owned("b", "y")]);
    assert_eq!(testbed.victim(1).as_deref(), Some("a"));
    assert_eq!(testbed.victim(2), None);
    let failed = Event::Evicted { uid: "a".into(), result: Err("busy".into()) };
    step(&mut testbed.engine, 3, failed);
    assert_eq!(testbed.victim(4).as_deref(), Some("b"));
    let done = Event::Evicted { uid: "b".into(), result: Ok(()) };
    step(&mut testbed.engine, 5, done);
    testbed.pods.push(owned("c", "z"));
    assert_eq!(testbed.victim(6), None);
}

#[test]
fn pods_without_controller_are_not_limited_by_owner() {
    let preferences =
        Preferences { rate_limits: vec![limit(RateLimitScope::Owner, 1, 600)], ..Preferences::default() };
    let mut testbed = Testbed::hard_memory(&preferences, vec![pod("a", "10"), pod("b", "10")]);
    assert_eq!([1, 2].map(|seconds| testbed.victim(seconds).unwrap()), ["a", "b"]);
}

#[test]
fn known_pod_holds_only_under_its_policy() {
    let (kubelet, enhanced_policy) = (policy(Vec::new()), enhanced(&without_limits(), Vec::new()));
    let protecting = Preferences {
        protection: vec![ProtectionRule { namespaces: vec!["default".into()], ..rule(EvictionOrder::Never) }],
        ..without_limits()
    };
    let known = KnownPod::new(owned("a", "x"), &enhanced_policy);
    assert!(known.holds_under(&enhanced_policy));
    assert!(!known.holds_under(&kubelet));
    assert!(!known.holds_under(&enhanced(&protecting, Vec::new())));
}
