//! The hand that asks for evictions, with a real API server: each answer means what it says.

use std::sync::Arc;
use std::time::Duration;

use eviction_core::pod::PodName;
use eviction_core::progress::{ApiOperation, ApiResult, KillProgress, KillUpdate};
use eviction_core::signal::Resource;
use eviction_kube::{Access, Client, EvictionRequest, Evictor, EvictorConfig};
use hyper::Method;
use serde_json::{Value, json};
use tests::cluster::proxy::{Fault, Proxy, When};
use tests::cluster::{Cluster, Options, Patch, manifest};
use tokio::sync::mpsc;

use crate::fixture;

/// A guard against a hand that hangs.
const GUARD: Duration = Duration::from_secs(90);

/// All that the hand may ask for.
fn rules() -> Value {
    json!([
        {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "delete"]},
        {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
    ])
}

/// The hand works while something is waited for, and the cluster is looked at in between.
struct Fixture {
    runtime: tokio::runtime::Runtime,
    hand: Evictor,
    outcomes: mpsc::Receiver<KillUpdate>,
    decisions: u64,
}

impl Fixture {
    fn new(cluster: &Cluster, account: &str, rules: &Value, config: EvictorConfig) -> Self {
        Self::at(cluster.port(), cluster, account, rules, config)
    }

    /// One that takes this port for the API server's.
    fn at(port: u16, cluster: &Cluster, account: &str, rules: &Value, config: EvictorConfig) -> Self {
        let account = cluster.account(account, rules).unwrap();
        let kubeconfig = cluster.kubeconfig_at(&account.name, &account.token, port).unwrap();
        let client = Client::new(Access::find(Some(&kubeconfig)).unwrap()).unwrap();
        let (sender, outcomes) = mpsc::channel(64);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let hand = Evictor::new(client, config, sender, None);
        Self { runtime, hand, outcomes, decisions: 0 }
    }

    /// Orders an eviction, and returns the next result.
    fn order(&mut self, pod: &PodName, grace: i64, ignores_budget: bool) -> (ApiOperation, ApiResult) {
        self.decisions += 1;
        let order = EvictionRequest {
            decision: self.decisions,
            at_ns: tests::clock::now(),
            pod: Arc::new(pod.clone()),
            grace_period_seconds: grace,
            resource: Resource::Memory,
            ignores_budget,
            after_update: 0,
            is_unconfirmed: false,
        };
        self.runtime.block_on(self.hand.evict(order));
        self.next()
    }

    fn next(&mut self) -> (ApiOperation, ApiResult) {
        // What became of a former one may be found out at any time.
        let last = self.decisions;
        let next = async {
            loop {
                let outcome = self.outcomes.recv().await.unwrap();
                if outcome.decision == last {
                    return outcome;
                }
            }
        };
        let outcome = self.runtime.block_on(async { tokio::time::timeout(GUARD, next).await }).unwrap();
        let KillProgress::Answered { operation, answered, .. } = outcome.progress else {
            panic!("{outcome:?}")
        };
        (operation, answered)
    }

    fn evict(&mut self, pod: &PodName) -> ApiResult {
        let (operation, answered) = self.order(pod, 1, false);
        assert_eq!(operation, ApiOperation::Eviction);
        answered
    }
}

/// The first answer of a server that comes to itself again.
fn until_heard(hand: &mut Fixture, pod: &PodName) -> ApiResult {
    loop {
        match hand.evict(pod) {
            ApiResult::NotSent { .. } | ApiResult::Unknown { .. } => {}
            answered => return answered,
        }
    }
}

fn name_of(pod: &Value) -> PodName {
    let text = |field: &str| pod["metadata"][field].as_str().unwrap().into();
    PodName { uid: text("uid"), namespace: text("namespace"), name: text("name") }
}

fn run(cluster: &Cluster, name: &str) -> PodName {
    name_of(&cluster.run_pod(&manifest::pod(name, "n1")).unwrap())
}

fn seen(cluster: &Cluster, pod: &PodName) -> Value {
    cluster.pod(&pod.namespace, &pod.name).unwrap().unwrap()
}

fn is_going(cluster: &Cluster, pod: &PodName) -> bool {
    seen(cluster, pod)["metadata"]["deletionTimestamp"].is_string()
}

/// The reasons of the conditions that say that a pod is being disrupted.
fn disruptions(pod: &Value) -> Vec<&str> {
    let conditions = pod["status"]["conditions"].as_array().unwrap().iter();
    let disruptions = conditions.filter(|it| it["type"] == "DisruptionTarget" && it["status"] == "True");
    disruptions.map(|it| it["reason"].as_str().unwrap()).collect()
}

#[test]
fn one_pod_is_evicted_and_no_other() {
    let Some(cluster) = fixture::cluster(&Options::default()) else { return };
    cluster.add_node("n1").unwrap();
    let mut hand = Fixture::new(&cluster, "hand", &rules(), EvictorConfig::default());
    let web = run(&cluster, "web");
    // Never a grace period of 0, with which the object would be gone and its containers not.
    for (grace, granted) in [(7, 7), (0, 1)] {
        assert_eq!(hand.order(&web, grace, false), (ApiOperation::Eviction, ApiResult::Accepted));
        let pod = seen(&cluster, &web);
        assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], granted, "{pod}");
        assert_eq!(disruptions(&pod), ["EvictionByEvictionAPI"]);
    }
    // Another one of the same name is never meant.
    cluster.finish_pod("default", "web").unwrap();
    assert_eq!(hand.evict(&web), ApiResult::Terminated);
    let second = run(&cluster, "web");
    assert_ne!(second.uid, web.uid);
    assert_eq!(hand.evict(&web), ApiResult::Replaced);
    assert_eq!(hand.order(&web, 1, true), (ApiOperation::Condition, ApiResult::Replaced));
    assert_eq!(hand.next(), (ApiOperation::Deletion, ApiResult::Replaced));
    assert!(!is_going(&cluster, &second));
    assert_eq!(disruptions(&seen(&cluster, &second)), [""; 0]);
    // Too old a decision is not carried out.
    let order = EvictionRequest {
        decision: 99,
        at_ns: tests::clock::now() - 6_000_000_000,
        pod: Arc::new(second.clone()),
        grace_period_seconds: 1,
        resource: Resource::Memory,
        ignores_budget: false,
        after_update: 0,
        is_unconfirmed: false,
    };
    hand.runtime.block_on(hand.hand.evict(order));
    hand.decisions = 99;
    assert!(matches!(hand.next(), (ApiOperation::Eviction, ApiResult::NotSent { .. })));
    assert!(!is_going(&cluster, &second));
}

#[test]
fn a_budget_is_asked_and_only_then_ignored() {
    let Some(cluster) = fixture::cluster(&Options::default()) else { return };
    cluster.add_node("n1").unwrap();
    let mut hand = Fixture::new(&cluster, "hand", &rules(), EvictorConfig::default());
    let web = run(&cluster, "web");
    cluster.add_budget("one", "web", 1, 0).unwrap();
    let answered = hand.evict(&web);
    assert!(matches!(&answered, ApiResult::PdbDenied { why } if why.contains("one")), "{answered:?}");
    assert!(!is_going(&cluster, &web));
    // Its status is behind its specification: a Retry-After, and no all the same.
    let path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/one";
    cluster.admin().patch(Patch::Merge, path, &json!({"spec": {"minAvailable": 2}})).unwrap().ok().unwrap();
    let answered = hand.evict(&web);
    assert!(matches!(&answered, ApiResult::PdbDenied { why } if why.contains("processed")), "{answered:?}");
    // Two of them are answered by an error of the server's.
    cluster.add_budget("two", "web", 1, 1).unwrap();
    let answered = hand.evict(&web);
    assert!(
        matches!(&answered, ApiResult::PdbDenied { why } if why.contains("more than one")),
        "{answered:?}"
    );
    assert!(!is_going(&cluster, &web));
    assert_eq!(disruptions(&seen(&cluster, &web)), [""; 0]);

    assert_eq!(hand.order(&web, 3, true), (ApiOperation::Deletion, ApiResult::Accepted));
    let pod = seen(&cluster, &web);
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 3, "{pod}");
    assert_eq!(disruptions(&pod), ["TerminationByEvictionAgent"]);
    let others = pod["status"]["conditions"].as_array().unwrap().len();
    assert_eq!(others, 5, "the kubelet's conditions are still there: {pod}");
}

#[test]
fn a_missing_right_is_reported_and_costs_no_pod() {
    let Some(cluster) = fixture::cluster(&Options::default()) else { return };
    cluster.add_node("n1").unwrap();
    let mut hand = Fixture::new(&cluster, "hand", &json!([]), EvictorConfig::default());
    let web = run(&cluster, "web");
    let answered = hand.evict(&web);
    assert!(
        matches!(&answered, ApiResult::Forbidden { why } if why.contains("pods/eviction")),
        "{answered:?}"
    );
    assert!(matches!(hand.order(&web, 1, true), (ApiOperation::Condition, ApiResult::Forbidden { .. })));
    assert!(matches!(hand.next(), (ApiOperation::Deletion, ApiResult::Forbidden { .. })));
    assert!(!is_going(&cluster, &web));
    cluster.set_rules("hand", &rules()).unwrap();
    let mut tries = 0;
    while hand.evict(&web) != ApiResult::Accepted {
        tries += 1;
        assert!(tries < 600, "the authorizer hears of it a moment later");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(is_going(&cluster, &web));
}

#[test]
fn a_dry_run_is_checked_and_writes_nothing() {
    let Some(cluster) = fixture::cluster(&Options::default()) else { return };
    cluster.add_node("n1").unwrap();
    let config = EvictorConfig { is_dry: true, ..EvictorConfig::default() };
    let mut hand = Fixture::new(&cluster, "hand", &rules(), config);
    let web = run(&cluster, "web");
    let before = seen(&cluster, &web);
    assert_eq!(hand.evict(&web), ApiResult::Accepted);
    assert_eq!(hand.order(&web, 1, true), (ApiOperation::Deletion, ApiResult::Accepted));
    cluster.add_budget("one", "web", 1, 0).unwrap();
    assert!(matches!(hand.evict(&web), ApiResult::PdbDenied { .. }));
    assert_eq!(seen(&cluster, &web), before);
}

#[test]
fn what_became_of_a_request_without_an_answer_is_found_out_and_not_tried_again() {
    let Some(mut cluster) = fixture::cluster(&Options::default()) else { return };
    cluster.add_node("n1").unwrap();
    let config = EvictorConfig { within: Duration::from_secs(1), ..EvictorConfig::default() };
    let mut hand = Fixture::new(&cluster, "hand", &rules(), config);
    let (web, shop) = (run(&cluster, "web"), run(&cluster, "shop"));
    // A connection is there, and the server hangs.
    assert_eq!(hand.evict(&shop), ApiResult::Accepted);
    cluster.freeze_server().unwrap();
    let answered = hand.evict(&web);
    assert!(matches!(answered, ApiResult::Unknown { .. }), "{answered:?}");
    cluster.thaw_server().unwrap();
    let found = hand.next().1;
    // The server gave up with the connection, or it did not: what is reported is what is.
    let reported = match found {
        ApiResult::Accepted => true,
        ApiResult::NotSent { .. } => false,
        other => panic!("{other:?}"),
    };
    assert_eq!(is_going(&cluster, &web), reported);

    // Nobody is there: nothing was sent, and that is known.
    cluster.kill_server().unwrap();
    let answered = hand.evict(&web);
    assert!(matches!(answered, ApiResult::NotSent { .. } | ApiResult::Unknown { .. }), "{answered:?}");
    let again = hand.evict(&web);
    assert!(matches!(again, ApiResult::NotSent { .. }), "{again:?}");
    cluster.start_server().unwrap();
    assert_eq!(until_heard(&mut hand, &web), ApiResult::Accepted);
}

#[test]
fn a_network_in_distress_evicts_nobody_twice() {
    let Some(cluster) = fixture::cluster(&Options::default()) else { return };
    cluster.add_node("n1").unwrap();
    let proxy = Proxy::start(&cluster).unwrap();
    let config = EvictorConfig { within: Duration::from_secs(2), ..EvictorConfig::default() };
    let mut hand = Fixture::at(proxy.port(), &cluster, "hand", &rules(), config);
    let asked_for = |pod: &PodName| {
        let path = format!("POST /api/v1/namespaces/default/pods/{}/eviction", pod.name);
        proxy.seen().iter().filter(|seen| seen.request.starts_with(&path)).count()
    };
    let once = |path| When::any().method(Method::POST).path(path).times(1);

    // Carried out, but nobody says so: no answer, half of one, or one that comes too late.
    for (name, fault) in [
        ("mute", Fault::Reset(0)),
        ("half", Fault::Truncate(20)),
        ("late", Fault::Late(Duration::from_secs(3))),
    ] {
        let pod = run(&cluster, name);
        proxy.on(once("/eviction"), fault);
        let answered = hand.evict(&pod);
        assert!(matches!(answered, ApiResult::Unknown { .. }), "{name}: {answered:?}");
        assert_eq!(hand.next().1, ApiResult::Accepted, "{name}");
        assert!(is_going(&cluster, &pod));
        assert_eq!(asked_for(&pod), 1, "{name}");
    }

    // Not carried out, and nobody says so either.
    let pod = run(&cluster, "lost");
    proxy.on(once("/eviction"), Fault::Lost);
    let answered = hand.evict(&pod);
    assert!(matches!(answered, ApiResult::Unknown { .. }), "{answered:?}");
    let found = hand.next().1;
    assert!(matches!(found, ApiResult::NotSent { .. }), "{found:?}");
    assert!(!is_going(&cluster, &pod));
    assert_eq!(asked_for(&pod), 1);

    // Answers that the server is not to be brought to.
    let wait = vec![("retry-after", "7".to_owned())];
    proxy.on(
        once("/eviction"),
        Fault::Answer(429, wait, json!({"kind": "Status", "reason": "TooManyRequests"})),
    );
    assert_eq!(hand.evict(&pod), ApiResult::Throttled { pause: Duration::from_secs(7) });
    proxy.on(once("/eviction"), Fault::status(503));
    let answered = hand.evict(&pod);
    assert!(matches!(answered, ApiResult::Unknown { .. }), "{answered:?}");
    assert!(matches!(hand.next().1, ApiResult::NotSent { .. }));
    proxy.on(once("/eviction"), Fault::status(401));
    let before = proxy.connections();
    assert!(matches!(hand.evict(&pod), ApiResult::Unauthorized { .. }));
    // A token is said with each request: the connection is as good as before, and nobody storms the server.
    assert_eq!(hand.evict(&run(&cluster, "believed")), ApiResult::Accepted);
    assert_eq!(proxy.connections(), before);

    // The line hangs: no answer, and nothing can be found out before it is whole again.
    proxy.hang();
    let answered = hand.evict(&pod);
    assert!(matches!(answered, ApiResult::Unknown { .. } | ApiResult::NotSent { .. }), "{answered:?}");
    proxy.heal();
    assert_eq!(until_heard(&mut hand, &pod), ApiResult::Accepted);
}
