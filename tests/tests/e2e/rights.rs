//! The rights that deploy/manifests give the agent: all that it needs, and nothing that it does not.
//!
//! A proxy sees what it asks. It is brought to ask for everything that it ever asks for; agents that
//! lack one of the rules each are refused something.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use hyper::Method;
use serde_json::{Value, json};
use tests::agent::{Agent, Event, GUARD};
use tests::cluster::proxy::{Fault, Proxy, Seen, When};
use tests::cluster::{Cluster, Manifests, NAME, Options};
use tests::node::Node;

use crate::deploy;
use crate::fixture;

/// Group, resource with its subresource, verb.
type Right = (String, String, String);

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";

/// What the kubelet is asked, who asks the API server for that right.
const CONFIGZ: &str = "GET /configz";

/// Agents that run at the same time: most of the time they wait.
const AT_A_TIME: usize = 5;

/// The right that a request takes; none for what is no resource.
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
fn a_request_tells_the_right_that_it_takes() {
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

/// Every right of a rule.
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

/// An agent with rights of its own, on a node of its own.
struct Round<'a> {
    cluster: &'a Cluster,
    manifests: Manifests,
    /// Of the node, the pod and the account.
    name: String,
    /// Of its ClusterRole.
    role: String,
    token: String,
}

impl Round<'_> {
    fn until<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        fixture::interrupt().until(&format!("{}: {what}", self.name), GUARD, || Ok(look())).unwrap()
    }

    /// Gives the account these rules, and waits until the server's authorizer has heard of them.
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

    /// Lets the agent run into everything that it ever asks for, until `enough` of that was seen, and
    /// hands back all of it: it starts, its pod crosses the line, nobody hears what became of the
    /// request, the pod is looked at, its budget says no, and it is deleted all the same. If that is
    /// `all`, it happens once more, and it ends well.
    fn run(&self, all: bool, enough: impl Fn(&[Seen], &mut Agent) -> bool) -> Vec<Seen> {
        let Self { cluster, manifests, name, role: _, token } = self;
        cluster.add_node(name).unwrap();
        let node = deploy::node_with_pod(cluster, name, name);
        cluster.add_budget(name, name, 1, 0).unwrap();
        let (kubelet, proxy) = (deploy::kubelet(cluster, name), Proxy::start(cluster).unwrap());
        proxy.on(When::any().method(Method::POST).path("/eviction").times(1), Fault::Reset(0));
        let kubeconfig = cluster.kubeconfig_at(name, token, proxy.port()).unwrap();
        let options = deploy::options(&mut manifests.clone(), name, &node, &kubelet, &kubeconfig);
        let seen = || {
            let of_kubelet = kubelet.statuses().into_iter().map(|status| Seen {
                at: Instant::now(),
                request: CONFIGZ.to_owned(),
                status: Some(status),
            });
            proxy.seen().into_iter().chain(of_kubelet).collect::<Vec<_>>()
        };
        // One that lacks the right to know its pods does not start at all.
        if let Ok(mut agent) = Agent::start(&options, fixture::interrupt()) {
            let hog = deploy::hog(&node);
            self.until("the agent has asked", || enough(&seen(), &mut agent).then_some(()));
            drop(hog);
            if all {
                self.cross_again(&node, &proxy, &mut agent);
            }
            // One that was refused something may have ended by itself.
            let ended = agent.stop();
            assert!(!all || ended.unwrap().success());
        }
        cluster.finish_pod("default", name).unwrap();
        seen()
    }

    /// What happens again raises the count of an event.
    fn cross_again(&self, node: &Node, proxy: &Proxy, agent: &mut Agent) {
        let cleared = |event: &Event| event.kind() == "threshold" && event.text("state") == "cleared";
        agent.wait_for("that the threshold is cleared", GUARD, cleared).unwrap();
        let _hog = deploy::hog(node);
        let raises = |seen: &Seen| seen.request.starts_with("PATCH /apis/events.k8s.io/");
        self.until("a count is raised", || proxy.seen().iter().any(raises).then_some(()));
    }

    /// With all rules nothing is refused, and each of them is used.
    fn all_are_used(&self, rules: &[Value]) {
        self.grant(rules, None);
        let seen = self.run(true, |_, agent| is_deleted(agent));
        let refused: Vec<&Seen> = seen.iter().filter(|seen| is_refused(seen)).collect();
        assert!(refused.is_empty(), "{refused:?}");
        let used: BTreeSet<Right> = seen.iter().filter_map(|seen| right_of(&seen.request)).collect();
        let granted: BTreeSet<Right> = rules.iter().flat_map(rights_of).collect();
        assert_eq!(used, granted);
    }

    /// Without that one something is refused that it would have allowed.
    fn one_is_missing(&self, rules: &[Value], place: usize) {
        let mut others = rules.to_vec();
        let rule = others.remove(place);
        self.grant(&others, Some(&rule));
        let missing = rights_of(&rule);
        let fails = |seen: &Seen| {
            is_refused(seen) && right_of(&seen.request).is_some_and(|right| missing.contains(&right))
        };
        let seen = self.run(false, |seen, _| seen.iter().any(fails));
        assert!(seen.iter().any(fails), "nothing fails without {rule}: {seen:?}");
    }
}

fn is_refused(seen: &Seen) -> bool {
    seen.status == Some(403)
}

fn is_deleted(agent: &mut Agent) -> bool {
    let accepted = |event: &Event| event.kind() == "eviction_progress" && event.text("result") == "accepted";
    agent.wait_for("the deletion", GUARD, accepted).unwrap();
    true
}

#[test]
fn every_rule_is_needed_and_no_other() {
    let Some(mut cluster) = fixture::cluster(&Options::default()) else { return };
    let mut manifests = Manifests::read().unwrap();
    manifests.create(&cluster).unwrap();
    let rules = manifests.of("ClusterRole").unwrap()["rules"].as_array().unwrap().clone();

    // The account of the manifests has them all; each of the others lacks one.
    let (name, role) = ("rights-all".to_owned(), NAME.to_owned());
    let token = deploy::token(&mut cluster, &name);
    let mut rounds = vec![Round { cluster: &cluster, manifests: manifests.clone(), name, role, token }];
    for place in 0..rules.len() {
        let name = format!("rights-{place}");
        let token = cluster.account(&name, &json!([])).unwrap().token;
        let role = name.clone();
        rounds.push(Round { cluster: &cluster, manifests: manifests.clone(), name, role, token });
    }
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some((round, nth)) = {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    rounds.get(nth).map(|round| (round, nth))
                } {
                    match nth.checked_sub(1) {
                        None => round.all_are_used(&rules),
                        Some(place) => round.one_is_missing(&rules, place),
                    }
                }
            });
        }
    });
}
