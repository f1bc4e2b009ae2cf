//! The evictor with a real API server: each response leads to the right result.

use std::sync::Arc;
use std::time::Duration;

use eviction_core::pod::PodName;
use eviction_core::progress::{ApiOperation, ApiResult, KillProgress, KillUpdate};
use eviction_core::signal::Resource;
use eviction_kube::{Access, Client, EvictionRequest, Evictor, EvictorConfig};
use hyper::Method;
use serde_json::{Value, json};
use tests::agent::GUARD;
use tests::cluster::proxy::{Fault, Proxy, When};
use tests::cluster::{Cluster, Options, Patch, manifest};
use tokio::sync::mpsc;

use crate::fixture;

/// Returns all rights that the evictor needs.
fn rules() -> Value {
    json!([
        {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "delete"]},
        {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
    ])
}

/// An evictor with its runtime. The evictor works only while a test waits for something; in between, the test reads
/// the cluster.
struct Fixture {
    runtime: tokio::runtime::Runtime,
    evictor: Evictor,
    updates: mpsc::Receiver<KillUpdate>,
    decisions: u64,
}

impl Fixture {
    fn new(cluster: &Cluster, account: &str, rules: &Value, config: EvictorConfig) -> Self {
        Self::at(cluster.port(), cluster, account, rules, config)
    }

    /// Creates an evictor that uses this port as the API server's.
    fn at(port: u16, cluster: &Cluster, account: &str, rules: &Value, config: EvictorConfig) -> Self {
        let account = cluster.account(account, rules).unwrap();
        let kubeconfig = cluster.kubeconfig_at(&account.name, &account.token, port).unwrap();
        let client = Client::new(Access::find(Some(&kubeconfig)).unwrap()).unwrap();
        let (sender, updates) = mpsc::channel(64);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let evictor = Evictor::new(client, config, sender);
        Self { runtime, evictor, updates, decisions: 0 }
    }

    /// Orders an eviction, and returns the next result.
    fn order(&mut self, pod: &PodName, grace: i64, ignores_budget: bool) -> (ApiOperation, ApiResult) {
        self.decisions += 1;
        self.send(EvictionRequest { ignores_budget, ..request(self.decisions, pod, grace) });
        self.next()
    }

    fn send(&mut self, request: EvictionRequest) {
        self.runtime.block_on(self.evictor.evict(request));
    }

    fn next(&mut self) -> (ApiOperation, ApiResult) {
        // The result of an earlier request may arrive at any time.
        let last = self.decisions;
        let next = async {
            loop {
                let update = self.updates.recv().await.unwrap();
                if update.decision == last {
                    return update;
                }
            }
        };
        let update = self.runtime.block_on(async { tokio::time::timeout(GUARD, next).await }).unwrap();
        let KillProgress::Answered { operation, answered: result, .. } = update.progress else {
            panic!("{update:?}")
        };
        (operation, result)
    }

    fn evict(&mut self, pod: &PodName) -> ApiResult {
        let (operation, result) = self.order(pod, 1, false);
        assert_eq!(operation, ApiOperation::Eviction);
        result
    }
}

/// Returns a request for a decision made now.
fn request(decision: u64, pod: &PodName, grace_period_seconds: i64) -> EvictionRequest {
    EvictionRequest {
        decision,
        at_ns: tests::clock::now(),
        pod: Arc::new(pod.clone()),
        grace_period_seconds,
        resource: Resource::Memory,
        ignores_budget: false,
        after_update: 0,
        is_unconfirmed: false,
    }
}

/// Evicts until the recovering server responds, and returns that response.
fn evict_until_response(fixture: &mut Fixture, pod: &PodName) -> ApiResult {
    loop {
        match fixture.evict(pod) {
            ApiResult::NotSent { .. } | ApiResult::Unknown { .. } => {}
            result => return result,
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

fn read_pod(cluster: &Cluster, pod: &PodName) -> Value {
    cluster.pod(&pod.namespace, &pod.name).unwrap().unwrap()
}

fn is_terminating(cluster: &Cluster, pod: &PodName) -> bool {
    read_pod(cluster, pod)["metadata"]["deletionTimestamp"].is_string()
}

/// Returns the reasons of the conditions that mark a pod as being disrupted.
fn disruptions(pod: &Value) -> Vec<&str> {
    let conditions = pod["status"]["conditions"].as_array().unwrap().iter();
    let disruptions = conditions.filter(|it| it["type"] == "DisruptionTarget" && it["status"] == "True");
    disruptions.map(|it| it["reason"].as_str().unwrap()).collect()
}

#[test]
fn only_the_requested_pod_is_evicted() {
    let Some(cluster) = fixture::cluster(&Options::default()) else { return };
    cluster.add_node("n1").unwrap();
    let mut fixture = Fixture::new(&cluster, "evictor", &rules(), EvictorConfig::default());
    let web = run(&cluster, "web");
    // The grace period is never 0: that would remove the object while its containers still run.
    for (grace, granted) in [(7, 7), (0, 1)] {
        assert_eq!(fixture.order(&web, grace, false), (ApiOperation::Eviction, ApiResult::Accepted));
        let pod = read_pod(&cluster, &web);
        assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], granted, "{pod}");
        assert_eq!(disruptions(&pod), ["EvictionByEvictionAPI"]);
    }
    // Another pod of the same name is never evicted.
    cluster.finish_pod("default", "web").unwrap();
    assert_eq!(fixture.evict(&web), ApiResult::Terminated);
    let second = run(&cluster, "web");
    assert_ne!(second.uid, web.uid);
    assert_eq!(fixture.evict(&web), ApiResult::Replaced);
    assert_eq!(fixture.order(&web, 1, true), (ApiOperation::Condition, ApiResult::Replaced));
    assert_eq!(fixture.next(), (ApiOperation::Deletion, ApiResult::Replaced));
    assert!(!is_terminating(&cluster, &second));
    assert_eq!(disruptions(&read_pod(&cluster, &second)), [""; 0]);
    // A decision that is too old is not carried out.
    let old = tests::clock::now() - 6_000_000_000;
    fixture.decisions = 99;
    fixture.send(EvictionRequest { at_ns: old, ..request(99, &second, 1) });
    assert!(matches!(fixture.next(), (ApiOperation::Eviction, ApiResult::NotSent { .. })));
    assert!(!is_terminating(&cluster, &second));
}

#[test]
fn a_pdb_refuses_evictions_unless_it_is_ignored() {
    let Some(cluster) = fixture::cluster(&Options::default()) else { return };
    cluster.add_node("n1").unwrap();
    let mut fixture = Fixture::new(&cluster, "evictor", &rules(), EvictorConfig::default());
    let web = run(&cluster, "web");
    cluster.add_budget("one", "web", 1, 0).unwrap();
    let result = fixture.evict(&web);
    assert!(matches!(&result, ApiResult::PdbDenied { why } if why.contains("one")), "{result:?}");
    assert!(!is_terminating(&cluster, &web));
    // The status of the PDB is older than its specification: the response has a Retry-After, and is a refusal all the
    // same.
    let path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/one";
    cluster.admin().patch(Patch::Merge, path, &json!({"spec": {"minAvailable": 2}})).unwrap().ok().unwrap();
    let result = fixture.evict(&web);
    assert!(matches!(&result, ApiResult::PdbDenied { why } if why.contains("processed")), "{result:?}");
    // The server responds to two PDBs for one pod with a server error.
    cluster.add_budget("two", "web", 1, 1).unwrap();
    let result = fixture.evict(&web);
    assert!(matches!(&result, ApiResult::PdbDenied { why } if why.contains("more than one")), "{result:?}");
    assert!(!is_terminating(&cluster, &web));
    assert_eq!(disruptions(&read_pod(&cluster, &web)), [""; 0]);

    assert_eq!(fixture.order(&web, 3, true), (ApiOperation::Deletion, ApiResult::Accepted));
    let pod = read_pod(&cluster, &web);
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 3, "{pod}");
    assert_eq!(disruptions(&pod), ["TerminationByEvictionAgent"]);
    let others = pod["status"]["conditions"].as_array().unwrap().len();
    assert_eq!(others, 5, "the kubelet's conditions are still there: {pod}");
}

#[test]
fn a_missing_right_is_reported_and_no_pod_is_evicted() {
    let Some(cluster) = fixture::cluster(&Options::default()) else { return };
    cluster.add_node("n1").unwrap();
    let mut fixture = Fixture::new(&cluster, "evictor", &json!([]), EvictorConfig::default());
    let web = run(&cluster, "web");
    let result = fixture.evict(&web);
    assert!(matches!(&result, ApiResult::Forbidden { why } if why.contains("pods/eviction")), "{result:?}");
    assert!(matches!(fixture.order(&web, 1, true), (ApiOperation::Condition, ApiResult::Forbidden { .. })));
    assert!(matches!(fixture.next(), (ApiOperation::Deletion, ApiResult::Forbidden { .. })));
    assert!(!is_terminating(&cluster, &web));
    cluster.set_rules("evictor", &rules()).unwrap();
    let mut tries = 0;
    while fixture.evict(&web) != ApiResult::Accepted {
        tries += 1;
        assert!(tries < 600, "the authorizer hears of it a moment later");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(is_terminating(&cluster, &web));
}

#[test]
fn a_dry_run_is_checked_and_writes_nothing() {
    let Some(cluster) = fixture::cluster(&Options::default()) else { return };
    cluster.add_node("n1").unwrap();
    let config = EvictorConfig { is_dry: true, ..EvictorConfig::default() };
    let mut fixture = Fixture::new(&cluster, "evictor", &rules(), config);
    let web = run(&cluster, "web");
    let before = read_pod(&cluster, &web);
    assert_eq!(fixture.evict(&web), ApiResult::Accepted);
    assert_eq!(fixture.order(&web, 1, true), (ApiOperation::Deletion, ApiResult::Accepted));
    cluster.add_budget("one", "web", 1, 0).unwrap();
    assert!(matches!(fixture.evict(&web), ApiResult::PdbDenied { .. }));
    assert_eq!(read_pod(&cluster, &web), before);
}

#[test]
fn an_unanswered_request_is_looked_up_and_not_repeated() {
    let Some(mut cluster) = fixture::cluster(&Options::default()) else { return };
    cluster.add_node("n1").unwrap();
    let config = EvictorConfig { within: Duration::from_secs(1), ..EvictorConfig::default() };
    let mut fixture = Fixture::new(&cluster, "evictor", &rules(), config);
    let (web, shop) = (run(&cluster, "web"), run(&cluster, "shop"));
    // The connection is open, and the server hangs.
    assert_eq!(fixture.evict(&shop), ApiResult::Accepted);
    cluster.freeze_server().unwrap();
    let result = fixture.evict(&web);
    assert!(matches!(result, ApiResult::Unknown { .. }), "{result:?}");
    cluster.thaw_server().unwrap();
    let found = fixture.next().1;
    // The server may or may not have given up with the connection: the reported result must be the real one.
    let reported = match found {
        ApiResult::Accepted => true,
        ApiResult::NotSent { .. } => false,
        other => panic!("{other:?}"),
    };
    assert_eq!(is_terminating(&cluster, &web), reported);

    // The server does not run: nothing was sent, and the evictor reports that.
    cluster.kill_server().unwrap();
    let result = fixture.evict(&web);
    assert!(matches!(result, ApiResult::NotSent { .. } | ApiResult::Unknown { .. }), "{result:?}");
    let again = fixture.evict(&web);
    assert!(matches!(again, ApiResult::NotSent { .. }), "{again:?}");
    cluster.start_server().unwrap();
    assert_eq!(evict_until_response(&mut fixture, &web), ApiResult::Accepted);
}

#[test]
fn network_faults_evict_no_pod_twice() {
    let Some(cluster) = fixture::cluster(&Options::default()) else { return };
    cluster.add_node("n1").unwrap();
    let proxy = Proxy::start(&cluster).unwrap();
    let config = EvictorConfig { within: Duration::from_secs(2), ..EvictorConfig::default() };
    let mut fixture = Fixture::at(proxy.port(), &cluster, "evictor", &rules(), config);
    let count_eviction_requests = |pod: &PodName| {
        let path = format!("POST /api/v1/namespaces/default/pods/{}/eviction", pod.name);
        proxy.requests().iter().filter(|seen| seen.request.starts_with(&path)).count()
    };
    let once = |path| When::any().method(Method::POST).path(path).times(1);

    // The server carries the eviction out, but the response is missing, truncated or too late.
    for (name, fault) in [
        ("mute", Fault::Reset(0)),
        ("half", Fault::Truncate(20)),
        ("late", Fault::DelayResponse(Duration::from_secs(3))),
    ] {
        let pod = run(&cluster, name);
        proxy.on(once("/eviction"), fault);
        let result = fixture.evict(&pod);
        assert!(matches!(result, ApiResult::Unknown { .. }), "{name}: {result:?}");
        assert_eq!(fixture.next().1, ApiResult::Accepted, "{name}");
        assert!(is_terminating(&cluster, &pod));
        assert_eq!(count_eviction_requests(&pod), 1, "{name}");
    }

    // The server does not carry the eviction out, and there is no response either.
    let pod = run(&cluster, "lost");
    proxy.on(once("/eviction"), Fault::DropRequest);
    let result = fixture.evict(&pod);
    assert!(matches!(result, ApiResult::Unknown { .. }), "{result:?}");
    let found = fixture.next().1;
    assert!(matches!(found, ApiResult::NotSent { .. }), "{found:?}");
    assert!(!is_terminating(&cluster, &pod));
    assert_eq!(count_eviction_requests(&pod), 1);

    // Responses that the real server cannot be made to send.
    let wait = vec![("retry-after", "7".to_owned())];
    proxy.on(
        once("/eviction"),
        Fault::Answer(429, wait, json!({"kind": "Status", "reason": "TooManyRequests"})),
    );
    assert_eq!(fixture.evict(&pod), ApiResult::Throttled { pause: Duration::from_secs(7) });
    proxy.on(once("/eviction"), Fault::status(503));
    let result = fixture.evict(&pod);
    assert!(matches!(result, ApiResult::Unknown { .. }), "{result:?}");
    assert!(matches!(fixture.next().1, ApiResult::NotSent { .. }));
    proxy.on(once("/eviction"), Fault::status(401));
    let before = proxy.connections();
    assert!(matches!(fixture.evict(&pod), ApiResult::Unauthorized { .. }));
    // Each request has the token: the connection is still good, and the agent does not flood the server with new
    // ones.
    assert_eq!(fixture.evict(&run(&cluster, "believed")), ApiResult::Accepted);
    assert_eq!(proxy.connections(), before);

    // The connection hangs: there is no response, and the result cannot be found out before the connection works
    // again.
    proxy.hang();
    let result = fixture.evict(&pod);
    assert!(matches!(result, ApiResult::Unknown { .. } | ApiResult::NotSent { .. }), "{result:?}");
    proxy.heal();
    assert_eq!(evict_until_response(&mut fixture, &pod), ApiResult::Accepted);
}
