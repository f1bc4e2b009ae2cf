//! The rights that deploy/manifests give the agent: all that it needs, and nothing that it does not.
//!
//! A proxy sees what it asks. It is brought to ask for everything that it ever asks for; then each
//! rule is taken away, and something is refused.

use std::collections::BTreeSet;

use hyper::Method;
use serde_json::{Value, json};
use tests::agent::{Agent, Event, GUARD};
use tests::cluster::proxy::{Fault, Proxy, Seen, When};
use tests::cluster::{Cluster, Manifests, NAME, Options};
use tests::node::Node;

use crate::agent::NODE;
use crate::{deploy, rig};

/// Group, resource with its subresource, verb.
type Right = (String, String, String);

const ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/eviction-agent";

/// The right that a request takes; none for what is no resource.
fn right_of(request: &str) -> Option<Right> {
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

/// Gives the agent's account these rules, and waits until the server's authorizer has heard of them.
fn grant(cluster: &mut Cluster, token: &str, rules: &[Value], without: Option<&Value>) {
    let role = json!({"metadata": {"name": NAME}, "rules": rules});
    cluster.admin().put(ROLE, &role).unwrap().ok().unwrap();
    let client = cluster.client(token).unwrap();
    let wanted = rules.iter().map(|rule| (rule, true)).chain(without.map(|rule| (rule, false)));
    for (rule, expected) in wanted {
        for (group, resource, verb) in rights_of(rule) {
            let (resource, subresource) = resource.split_once('/').unwrap_or((&resource, ""));
            let review = json!({"spec": {"resourceAttributes": {
                "group": group, "resource": resource, "subresource": subresource, "verb": verb,
            }}});
            cluster
                .until("the rights are known", |_| {
                    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
                    let answer = client.post(path, &review)?.ok()?;
                    Ok((answer["status"]["allowed"] == expected).then_some(()))
                })
                .unwrap();
        }
    }
}

/// Lets an agent run into everything that it ever asks for, until `enough` of that was seen, and
/// hands back all of it: it starts, its pod crosses the line, nobody hears what became of the
/// request, the pod is looked at, its budget says no, and it is deleted all the same.
fn run(
    cluster: &mut Cluster,
    manifests: &mut Manifests,
    token: &str,
    round: usize,
    enough: impl Fn(&[Seen], &mut Agent) -> bool,
) -> Vec<Seen> {
    let pod = format!("web-{round}");
    let node = deploy::node_with_pod(cluster, "rights", &pod);
    cluster.add_budget(&pod, &pod, 1, 0).unwrap();
    let proxy = Proxy::start(cluster).unwrap();
    proxy.on(When::any().method(Method::POST).path("/eviction").times(1), Fault::Reset(0));
    let kubeconfig = cluster.kubeconfig_at("rights", token, proxy.port()).unwrap();
    // One that lacks the right to know its pods does not start at all.
    if let Ok(mut agent) = Agent::start(&deploy::options(manifests, &node, &kubeconfig), rig::interrupt()) {
        let hog = deploy::hog(&node);
        cluster
            .until("the agent has asked", |_| Ok(enough(&proxy.seen(), &mut agent).then_some(())))
            .unwrap();
        drop(hog);
        if round == 0 {
            cross_again(cluster, &node, &proxy, &mut agent);
        }
        // One that was refused something may have ended by itself.
        let ended = agent.stop();
        assert!(round > 0 || ended.unwrap().success());
    }
    cluster.finish_pod("default", &pod).unwrap();
    proxy.seen()
}

/// What happens again raises the count of an event.
fn cross_again(cluster: &mut Cluster, node: &Node, proxy: &Proxy, agent: &mut Agent) {
    let cleared = |event: &Event| event.kind() == "threshold" && event.text("state") == "cleared";
    agent.wait_for("that the threshold is cleared", GUARD, cleared).unwrap();
    let _hog = deploy::hog(node);
    let raises = |seen: &Seen| seen.request.starts_with("PATCH /apis/events.k8s.io/");
    cluster.until("a count is raised", |_| Ok(proxy.seen().iter().any(raises).then_some(()))).unwrap();
}

fn is_refused(seen: &Seen) -> bool {
    seen.status == Some(403)
}

fn is_deleted(agent: &mut Agent) -> bool {
    let accepted = |event: &Event| event.kind() == "eviction" && event.text("outcome") == "accepted";
    agent.wait_for("the deletion", GUARD, accepted).unwrap();
    true
}

#[test]
fn every_rule_is_needed_and_no_other() {
    let Some(mut cluster) = rig::cluster(&Options::default()) else { return };
    cluster.add_node(NODE).unwrap();
    let mut manifests = Manifests::read().unwrap();
    manifests.create(&cluster).unwrap();
    let rules = manifests.of("ClusterRole").unwrap()["rules"].as_array().unwrap().clone();
    let token = deploy::token(&mut cluster);

    grant(&mut cluster, &token, &rules, None);
    let seen = run(&mut cluster, &mut manifests, &token, 0, |_, agent| is_deleted(agent));
    let refused: Vec<&Seen> = seen.iter().filter(|seen| is_refused(seen)).collect();
    assert!(refused.is_empty(), "{refused:?}");
    let used: BTreeSet<Right> = seen.iter().filter_map(|seen| right_of(&seen.request)).collect();
    let granted: BTreeSet<Right> = rules.iter().flat_map(rights_of).collect();
    assert_eq!(used, granted);

    for (place, rule) in rules.iter().enumerate() {
        let mut others = rules.clone();
        others.remove(place);
        // What stands on the node's object already is not written again.
        cluster.admin().delete(&format!("/api/v1/nodes/{NODE}"), &Value::Null).unwrap().ok().unwrap();
        cluster.add_node(NODE).unwrap();
        grant(&mut cluster, &token, &others, Some(rule));
        let missing = rights_of(rule);
        let fails = |seen: &Seen| {
            is_refused(seen) && right_of(&seen.request).is_some_and(|right| missing.contains(&right))
        };
        let enough = |seen: &[Seen], _: &mut Agent| seen.iter().any(fails);
        let seen = run(&mut cluster, &mut manifests, &token, place + 1, enough);
        assert!(seen.iter().any(fails), "nothing fails without {rule}: {seen:?}");
    }
}
