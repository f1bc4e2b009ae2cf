//! The rights that deploy/manifests give the agent: all that it needs, and none that it does not need.
//!
//! A proxy records the agent's requests. The test makes the agent send every kind of request. Agents without one of
//! the rules get a refusal each.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use hyper::Method;
use serde_json::{Value, json};
use tests::agent::{Agent, GUARD};
use tests::cluster::proxy::{Fault, Proxy, ReceivedRequest, When};
use tests::cluster::{Cluster, Manifests, NAME, Options};
use tests::node::Node;

use crate::deploy;
use crate::fixture;

/// An API group, a resource with its subresource, and a verb.
type Right = (String, String, String);

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";

/// The agent's request to the kubelet, which asks the API server for that right.
const CONFIGZ: &str = "GET /configz";

/// The number of agents that run at the same time: most of the time they wait.
const AT_A_TIME: usize = 5;

/// Returns the right that a request needs; `None` if it is for no resource.
fn right_of(request: &str) -> Option<Right> {
    if request == CONFIGZ {
        return Some((String::new(), "nodes/configz".to_owned(), "get".to_owned()));
    }
    let (method, path) = request.split_once(' ')?;
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let (group, rest) = match segments.as_slice() {
        ["api", "v1", rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => return None,
    };
    let rest = match rest {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        rest => rest,
    };
    let (resource, is_one) = match rest {
        [resource] => ((*resource).to_owned(), false),
        [resource, _] => ((*resource).to_owned(), true),
        [resource, _, sub] => (format!("{resource}/{sub}"), true),
        _ => return None,
    };
    let verb = match method {
        "GET" if is_one => "get",
        "GET" if query.split('&').any(|word| word == "watch=true") => "watch",
        "GET" => "list",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        other => panic!("{other} of {request}"),
    };
    Some((group.to_owned(), resource, verb.to_owned()))
}

#[test]
fn a_request_maps_to_the_right_it_needs() {
    let of = |request| right_of(request).map(|(group, resource, verb)| [group, resource, verb].join(" "));
    assert_eq!(of("GET /version"), None);
    assert_eq!(of(CONFIGZ).as_deref(), Some(" nodes/configz get"));
    assert_eq!(of("GET /api/v1/pods?fieldSelector=a&watch=true").as_deref(), Some(" pods watch"));
    assert_eq!(of("GET /api/v1/nodes/n1").as_deref(), Some(" nodes get"));
    assert_eq!(of("PATCH /api/v1/nodes/n1/status").as_deref(), Some(" nodes/status patch"));
    let eviction = "POST /api/v1/namespaces/default/pods/a/eviction?timeout=6s";
    assert_eq!(of(eviction).as_deref(), Some(" pods/eviction create"));
    let event = "POST /apis/events.k8s.io/v1/namespaces/default/events";
    assert_eq!(of(event).as_deref(), Some("events.k8s.io events create"));
}

/// Returns every right of a rule.
fn rights_of(rule: &Value) -> BTreeSet<Right> {
    let list = |field: &str| {
        let all = rule[field].as_array().unwrap().iter();
        all.map(|it| it.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let mut rights = BTreeSet::new();
    for group in list("apiGroups") {
        for resource in list("resources") {
            for verb in list("verbs") {
                rights.insert((group.clone(), resource.clone(), verb));
            }
        }
    }
    rights
}

/// An agent with its own rights on its own node.
struct RightsCase<'a> {
    cluster: &'a Cluster,
    manifests: Manifests,
    /// The name of the node, the pod and the account.
    name: String,
    /// The name of the account's ClusterRole.
    role: String,
    token: String,
}

impl RightsCase<'_> {
    fn until<T>(&self, what: &str, mut find: impl FnMut() -> Option<T>) -> T {
        fixture::interrupt().until(&format!("{}: {what}", self.name), GUARD, || Ok(find())).unwrap()
    }

    /// Gives the account these rules, and waits until the server's authorizer applies them.
    fn grant(&self, rules: &[Value], without: Option<&Value>) {
        let role = json!({"metadata": {"name": self.role}, "rules": rules});
        self.cluster.admin().put(&format!("{ROLES}/{}", self.role), &role).unwrap().ok().unwrap();
        let client = self.cluster.client(&self.token).unwrap();
        let wanted = rules.iter().map(|rule| (rule, true)).chain(without.map(|rule| (rule, false)));
        for (rule, expected) in wanted {
            for (group, resource, verb) in rights_of(rule) {
                let (resource, subresource) = resource.split_once('/').unwrap_or((&resource, ""));
                let review = json!({"spec": {"resourceAttributes": {
                    "group": group, "resource": resource, "subresource": subresource, "verb": verb,
                }}});
                self.until("the rights are known", || {
                    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
                    let answer = client.post(path, &review).unwrap().ok().unwrap();
                    (answer["status"]["allowed"] == expected).then_some(())
                });
            }
        }
    }

    /// Makes the agent send every kind of request until `enough` of them were seen, and returns all of them: the
    /// agent starts, its pod crosses the threshold, the response to the eviction request is lost, the agent reads the
    /// pod, the PDB refuses the eviction, and the pod is deleted all the same. With `all` the threshold is crossed
    /// once more, and the agent must stop without an error.
    fn run(
        &self,
        all: bool,
        enough: impl Fn(&[ReceivedRequest], &mut Agent) -> bool,
    ) -> Vec<ReceivedRequest> {
        let Self { cluster, manifests, name, role: _, token } = self;
        cluster.add_node(name).unwrap();
        let node = deploy::node_with_pod(cluster, name, name);
        cluster.add_budget(name, name, 1, 0).unwrap();
        let (kubelet, proxy) = (deploy::kubelet(cluster, name), Proxy::start(cluster).unwrap());
        proxy.on(When::any().method(Method::POST).path("/eviction").times(1), Fault::Reset(0));
        let kubeconfig = cluster.kubeconfig_at(name, token, proxy.port()).unwrap();
        let options = deploy::options(&mut manifests.clone(), name, &node, &kubelet, &kubeconfig);
        let seen = || {
            let of_kubelet = kubelet.statuses().into_iter().map(|status| ReceivedRequest {
                at: Instant::now(),
                request: CONFIGZ.to_owned(),
                status: Some(status),
            });
            proxy.requests().into_iter().chain(of_kubelet).collect::<Vec<_>>()
        };
        // An agent without the right to read its pods does not start at all.
        if let Ok(mut agent) = Agent::start(&options, fixture::interrupt()) {
            let hog = deploy::hog(&node);
            self.until("the agent has asked", || enough(&seen(), &mut agent).then_some(()));
            drop(hog);
            if all {
                self.cross_threshold_again(&node, &proxy, &mut agent);
            }
            // An agent that was refused something may have ended by itself.
            let ended = agent.stop();
            if all {
                ended.unwrap();
            }
        }
        cluster.finish_pod("default", name).unwrap();
        seen()
    }

    /// Crosses the threshold again: a repeated event raises the count of an Event object.
    fn cross_threshold_again(&self, node: &Node, proxy: &Proxy, agent: &mut Agent) {
        agent.wait_for_threshold("cleared").unwrap();
        let _hog = deploy::hog(node);
        let is_count_update = |seen: &ReceivedRequest| seen.request.starts_with("PATCH /apis/events.k8s.io/");
        self.until("a count is raised", || proxy.requests().iter().any(is_count_update).then_some(()));
    }

    /// Asserts that with all rules no request is refused, and that each rule is used.
    fn assert_all_rules_are_used(&self, rules: &[Value]) {
        self.grant(rules, None);
        let seen = self.run(true, |_, agent| wait_for_deletion(agent));
        let refused: Vec<&ReceivedRequest> = seen.iter().filter(|seen| is_refused(seen)).collect();
        assert!(refused.is_empty(), "{refused:?}");
        let used: BTreeSet<Right> = seen.iter().filter_map(|seen| right_of(&seen.request)).collect();
        let granted: BTreeSet<Right> = rules.iter().flat_map(rights_of).collect();
        assert_eq!(used, granted);
    }

    /// Asserts that without one rule a request is refused that the rule would have allowed.
    fn assert_rule_is_needed(&self, rules: &[Value], index: usize) {
        let mut others = rules.to_vec();
        let rule = others.remove(index);
        self.grant(&others, Some(&rule));
        let missing = rights_of(&rule);
        let fails = |seen: &ReceivedRequest| {
            is_refused(seen) && right_of(&seen.request).is_some_and(|right| missing.contains(&right))
        };
        let seen = self.run(false, |seen, _| seen.iter().any(fails));
        assert!(seen.iter().any(fails), "nothing fails without {rule}: {seen:?}");
    }
}

fn is_refused(seen: &ReceivedRequest) -> bool {
    seen.status == Some(403)
}

fn wait_for_deletion(agent: &mut Agent) -> bool {
    agent.wait_for("the deletion", GUARD, |event| event.is_result("accepted")).unwrap();
    true
}

#[test]
fn every_rbac_rule_is_needed_and_none_is_missing() {
    let Some(mut cluster) = fixture::cluster(&Options::default()) else { return };
    let mut manifests = Manifests::read().unwrap();
    manifests.create(&cluster).unwrap();
    let rules = manifests.of("ClusterRole").unwrap()["rules"].as_array().unwrap().clone();

    // The account of the manifests has all rules; each of the others lacks one.
    let (name, role) = ("rights-all".to_owned(), NAME.to_owned());
    let token = deploy::token(&mut cluster, &name);
    let mut cases = vec![RightsCase { cluster: &cluster, manifests: manifests.clone(), name, role, token }];
    for index in 0..rules.len() {
        let name = format!("rights-{index}");
        let token = cluster.account(&name, &json!([])).unwrap().token;
        let role = name.clone();
        cases.push(RightsCase { cluster: &cluster, manifests: manifests.clone(), name, role, token });
    }
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some((case, nth)) = {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    cases.get(nth).map(|case| (case, nth))
                } {
                    match nth.checked_sub(1) {
                        None => case.assert_all_rules_are_used(&rules),
                        Some(index) => case.assert_rule_is_needed(&rules, index),
                    }
                }
            });
        }
    });
}
