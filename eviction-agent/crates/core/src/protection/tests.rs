use std::sync::Arc;

use super::*;
use crate::disk_layout::DiskLayout;
use crate::engine::Engine;
use crate::fixture::{at, hard, memory_of, node, pod, policy, set_by, snapshot, soft, step, victims};
use crate::input::Event;
use crate::label_selector::LabelSelector;
use crate::oom::OomKill;
use crate::pod::{Owner, Pod};
use crate::pods::{
    AnnotationError, DESCHEDULER_EVICT, DESCHEDULER_PREFER_NO_EVICTION, EVICT, EvictionOrder, KnownPod,
    PRIORITY_HINT, PodAnnotations, PodProtection, PodSet,
};
use crate::policy::preferences::{
    EvictionLimit, HardEvictions, Preferences, Protection, ProtectionRule, RateLimitScope, SoftEvictions,
};
use crate::policy::{Policy, Rules, Threshold};
use crate::progress::EvictionResult;
use crate::signal::Signal::{MemoryAvailable, NodeFsAvailable};
use crate::units::GoDuration;

fn enhanced(preferences: &Preferences, thresholds: Vec<Threshold>) -> Policy {
    Policy { rules: Rules::enhanced(preferences), ..policy(thresholds) }
}

/// A pod of a ReplicaSet that requests 10 bytes.
fn owned(uid: &str, owner: &str) -> Pod {
    let owner = Owner { kind: "ReplicaSet".into(), name: owner.into(), uid: owner.into() };
    Pod { owner: Some(owner), ..pod(uid, "10") }
}

fn annotated(pod: Pod, annotations: &[(&str, &str)]) -> Pod {
    let entry = |(key, value): &(&str, &str)| ((*key).into(), (*value).into());
    Pod { annotations: annotations.iter().map(entry).collect(), ..pod }
}

fn wishes(annotations: &[(&str, &str)]) -> PodAnnotations {
    PodAnnotations::of(&annotated(pod("a", "1"), annotations).annotations)
}

/// An engine under pressure for as long as it is told to look.
struct Scene {
    engine: Engine,
    pods: Vec<Pod>,
    policy: Policy,
}

impl Scene {
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

    /// The first pod that goes, if memory is short at this second, and what was refused. It is
    /// gone afterwards.
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
fn annotations_say_what_they_say_and_nothing_else() {
    let none = PodAnnotations::default();
    assert_eq!(wishes(&[]), none);
    for no in ["false", "False", "FALSE"] {
        assert!(wishes(&[(EVICT, no)]).opts_out, "{no}");
    }
    assert_eq!(wishes(&[(EVICT, "true")]), PodAnnotations { allows_eviction: true, ..none.clone() });
    let torn = wishes(&[(EVICT, "false"), (DESCHEDULER_EVICT, "true")]);
    assert_eq!((torn.opts_out, torn.allows_eviction), (true, false), "our own is the more specific");
    for (hint, value) in [("-100", -100), ("0", 0), ("+7", 7), ("100", 100)] {
        let wishes = wishes(&[(PRIORITY_HINT, hint)]);
        assert_eq!((wishes.hint, wishes.ignored.len()), (value, 0), "{hint}");
    }
}

#[test]
fn the_descheduler_reads_presence_and_so_do_we_but_for_a_false_yes() {
    for value in ["", "true", "whatever"] {
        assert!(wishes(&[(DESCHEDULER_EVICT, value)]).allows_eviction, "{value}");
        assert!(wishes(&[(DESCHEDULER_PREFER_NO_EVICTION, value)]).prefers_to_stay, "{value}");
    }
    assert!(wishes(&[(DESCHEDULER_PREFER_NO_EVICTION, "false")]).prefers_to_stay);
    let no = wishes(&[(DESCHEDULER_EVICT, "false")]);
    assert_eq!((no.allows_eviction, no.ignored[0].mistake), (false, AnnotationError::SaysFalse));
}

#[test]
fn mistaken_values_are_kept_in_part_and_do_nothing() {
    let long = "\u{1f980}".repeat(300);
    for hint in ["", " 1", "1.5", "-101", "101", "300", "first", &long] {
        let wishes = wishes(&[(PRIORITY_HINT, hint)]);
        assert_eq!((wishes.hint, wishes.ignored.len()), (0, 1), "{hint}");
        assert_eq!(wishes.ignored[0].mistake, AnnotationError::NotANumberInRange);
        assert!(wishes.ignored[0].value.chars().count() <= 64);
    }
    let no = wishes(&[(EVICT, "no")]);
    assert_eq!((no.opts_out, no.ignored[0].mistake), (false, AnnotationError::NotTrueOrFalse));
}

fn rule(evict: Protection) -> ProtectionRule {
    ProtectionRule { namespaces: Vec::new(), selector: None, priority_classes: Vec::new(), order: evict }
}

#[test]
fn the_first_rule_that_fits_decides_and_all_its_conditions_must_fit() {
    let selector: LabelSelector =
        serde_json::from_value(serde_json::json!({"matchLabels": {"app": "db"}})).unwrap();
    let protection = vec![
        ProtectionRule {
            namespaces: vec!["prod".into()],
            selector: Some(selector),
            ..rule(Protection::Never)
        },
        ProtectionRule { namespaces: vec!["prod".into(), "kube-system".into()], ..rule(Protection::Last) },
        ProtectionRule { priority_classes: vec!["batch".into()], ..rule(Protection::First) },
    ];
    let rules = Rules::enhanced(&Preferences { protection, ..Preferences::default() });
    let turn = |namespace: &str, app: &str, class: &str, annotations: &[(&str, &str)]| {
        let mut pod = annotated(owned("a", "rs"), annotations);
        (pod.namespace, pod.priority_class) = (namespace.into(), class.into());
        pod.labels.insert("app", app.into());
        let protection = PodProtection::of(&pod, &rules);
        (protection.order, protection.rule)
    };
    assert_eq!(turn("prod", "db", "batch", &[]), (EvictionOrder::Never, Some(0)));
    assert_eq!(turn("prod", "web", "batch", &[]), (EvictionOrder::Last, Some(1)));
    assert_eq!(turn("test", "db", "batch", &[]), (EvictionOrder::First, Some(2)));
    assert_eq!(turn("test", "db", "", &[]), (EvictionOrder::Normal, None));
    let stay = [(DESCHEDULER_PREFER_NO_EVICTION, "")];
    assert_eq!(turn("test", "db", "", &stay), (EvictionOrder::Last, None));
    assert_eq!(turn("test", "db", "batch", &stay), (EvictionOrder::First, Some(2)), "the operator's word");
    let out = [(EVICT, "false")];
    assert_eq!(turn("test", "db", "batch", &out), (EvictionOrder::OptedOut, Some(2)));
    assert_eq!(turn("prod", "db", "", &[(EVICT, "true")]), (EvictionOrder::Never, Some(0)));
}

#[test]
fn nobody_is_protected_in_the_kubelets_profile() {
    let everything = [(EVICT, "false"), (PRIORITY_HINT, "9"), (DESCHEDULER_PREFER_NO_EVICTION, "")];
    let protection = PodProtection::of(&annotated(pod("a", "1"), &everything), &Rules::kubelet());
    assert_eq!(
        protection,
        PodProtection { rate_limit_key: Arc::clone(&protection.rate_limit_key), ..PodProtection::default() }
    );
}

#[test]
fn an_owner_without_a_uid_is_known_by_its_name() {
    let rules = Rules::enhanced(&Preferences::default());
    let mut pod = owned("a", "");
    assert_eq!(PodProtection::of(&pod, &rules).rate_limit_key.owner.as_deref(), Some("default/ReplicaSet/"));
    pod.owner = None;
    let protection = PodProtection::of(&pod, &rules);
    assert_eq!((protection.rate_limit_key.owner.clone(), protection.without_controller), (None, true));
    let consenting = annotated(pod, &[(DESCHEDULER_EVICT, "")]);
    assert!(!PodProtection::of(&consenting, &rules).without_controller);
}

#[test]
fn an_opt_out_holds_unless_the_policy_overrides_it_for_hard_memory() {
    let pods = || vec![annotated(owned("out", "x"), &[(EVICT, "false")])];
    let no = vec![("out".to_owned(), Refusal::OptedOut)];
    assert_eq!(Scene::hard_memory(&without_limits(), pods()).sample(1), (None, no.clone()));

    let overriding = Preferences { hard: HardEvictions { override_opt_out: true }, ..without_limits() };
    let mut last = pods();
    last.push(owned("other", "y"));
    let mut scene = Scene::hard_memory(&overriding, last);
    assert_eq!(scene.victim(1).as_deref(), Some("other"), "who did not opt out goes before");
    assert_eq!(scene.victim(2).as_deref(), Some("out"), "the other one is gone");

    let mut both = pods();
    both.push(owned("other", "y"));
    let mut scene = Scene::hard_memory(&overriding, both.clone());
    assert_eq!(scene.victim(1).as_deref(), Some("other"));
    let failed = EvictionResult { uid: "other".into(), result: Err("it stayed".into()) };
    scene.pods = both;
    step(&mut scene.engine, 2, Event::Evicted(failed));
    assert_eq!(scene.victim(20).as_deref(), Some("other"), "who did not go lately goes before, too");

    let soft = soft(MemoryAvailable, "100", 1);
    let mut scene = Scene::new(&overriding, soft, pods());
    scene.sample(0);
    assert_eq!(scene.sample(5), (None, no), "soft");
    let disk = hard(NodeFsAvailable, "100");
    let mut scene = Scene::new(&overriding, disk, pods());
    assert_eq!(scene.victim(1), None, "no memory");
}

#[test]
fn pods_without_controller_never_go_for_a_soft_threshold_unless_configured() {
    let go = |preferences: &Preferences, pod: Pod| {
        let mut scene = Scene::new(preferences, soft(MemoryAvailable, "100", 1), vec![pod]);
        scene.sample(0);
        scene.sample(5)
    };
    let refused = (None, vec![("a".to_owned(), Refusal::WithoutController)]);
    assert_eq!(go(&without_limits(), pod("a", "10")), refused);
    let consenting = annotated(pod("a", "10"), &[(DESCHEDULER_EVICT, "")]);
    assert_eq!(go(&without_limits(), consenting).0.as_deref(), Some("a"));
    let soft = SoftEvictions { evict_pods_without_controller: true, ..SoftEvictions::default() };
    assert_eq!(go(&Preferences { soft, ..without_limits() }, pod("a", "10")).0.as_deref(), Some("a"));
    let mut scene = Scene::hard_memory(&without_limits(), vec![pod("a", "10")]);
    assert_eq!(scene.victim(1).as_deref(), Some("a"), "hard");
}

#[test]
fn a_pod_that_was_just_killed_in_is_left_alone_for_a_while() {
    let preferences = Preferences { cool_down_after_oom_kill: GoDuration::from_secs(60), ..without_limits() };
    let mut scene = Scene::hard_memory(&preferences, vec![owned("hit", "x")]);
    scene.oom_kill(100, "hit");
    let (victim, refused) = scene.sample(130);
    let since = at(100);
    let remaining = GoDuration::from_secs(30);
    assert_eq!(
        (victim, refused),
        (None, vec![("hit".to_owned(), Refusal::CoolingDown { since, remaining })])
    );
    scene.oom_kill(140, "hit");
    scene.oom_kill(120, "hit");
    assert_eq!(scene.victim(199), None, "the latest counts, in whatever order they are told");
    assert_eq!(scene.victim(200).as_deref(), Some("hit"));

    let off = Preferences { cool_down_after_oom_kill: GoDuration::ZERO, ..without_limits() };
    let mut scene = Scene::hard_memory(&off, vec![owned("hit", "x")]);
    scene.oom_kill(1, "hit");
    assert_eq!(scene.victim(1).as_deref(), Some("hit"));
}

#[test]
fn a_clock_that_goes_back_makes_no_pod_cool_for_ever() {
    let mut scene = Scene::hard_memory(&without_limits(), vec![owned("hit", "x")]);
    scene.oom_kill(1_000_000, "hit");
    assert_eq!(scene.victim(10).as_deref(), Some("hit"));
}

fn limit(scope: RateLimitScope, max_evictions: u32, seconds: i64) -> EvictionLimit {
    EvictionLimit { scope, max_evictions, window: GoDuration::from_secs(seconds) }
}

#[test]
fn a_deployment_is_not_emptied() {
    let preferences =
        Preferences { rate_limits: vec![limit(RateLimitScope::Owner, 2, 600)], ..Preferences::default() };
    let pods: Vec<_> = ["a", "b", "c"].map(|uid| owned(uid, "web")).into();
    let mut scene = Scene::hard_memory(&preferences, pods);
    assert_eq!([1, 2].map(|seconds| scene.victim(seconds).unwrap()), ["a", "b"]);
    let reached =
        Refusal::Limit { scope: RateLimitScope::Owner, max_evictions: 2, window: GoDuration::from_secs(600) };
    assert_eq!(scene.sample(3), (None, vec![("c".to_owned(), reached)]));
    assert_eq!(scene.victim(600), None);
    scene.pods.push(owned("z", "other"));
    assert_eq!(scene.victim(600 + 1).as_deref(), Some("c"), "600 s after the first");
    assert_eq!(scene.victim(602).as_deref(), Some("z"), "another owner");
}

#[test]
fn a_failed_eviction_does_not_count() {
    let preferences =
        Preferences { rate_limits: vec![limit(RateLimitScope::Namespace, 1, 600)], ..Preferences::default() };
    let mut scene = Scene::hard_memory(&preferences, vec![owned("a", "x"), owned("b", "y")]);
    assert_eq!(scene.victim(1).as_deref(), Some("a"));
    assert_eq!(scene.victim(2), None);
    let failed = EvictionResult { uid: "a".into(), result: Err("busy".into()) };
    step(&mut scene.engine, 3, Event::Evicted(failed));
    assert_eq!(scene.victim(4).as_deref(), Some("b"));
    let done = EvictionResult { uid: "b".into(), result: Ok(()) };
    step(&mut scene.engine, 5, Event::Evicted(done));
    scene.pods.push(owned("c", "z"));
    assert_eq!(scene.victim(6), None);
}

#[test]
fn pods_without_controller_are_not_limited_by_owner() {
    let preferences =
        Preferences { rate_limits: vec![limit(RateLimitScope::Owner, 1, 600)], ..Preferences::default() };
    let mut scene = Scene::hard_memory(&preferences, vec![pod("a", "10"), pod("b", "10")]);
    assert_eq!([1, 2].map(|seconds| scene.victim(seconds).unwrap()), ["a", "b"]);
}

#[test]
fn what_is_known_of_a_pod_holds_for_its_policy_alone() {
    let (kubelet, ours) = (policy(Vec::new()), enhanced(&without_limits(), Vec::new()));
    let sparing = Preferences {
        protection: vec![ProtectionRule { namespaces: vec!["default".into()], ..rule(Protection::Never) }],
        ..without_limits()
    };
    let known = KnownPod::new(owned("a", "x"), &ours);
    assert!(known.holds_under(&ours));
    assert!(!known.holds_under(&kubelet));
    assert!(!known.holds_under(&enhanced(&sparing, Vec::new())));
}
