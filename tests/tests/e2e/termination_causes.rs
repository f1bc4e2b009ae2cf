//! Causes of container terminations: OOM kills by the real kernel, evictions, and mismatches with the status in the
//! API.

use rustix::process::Signal;
use serde_json::{Value, json};
use tests::agent::{Agent, Event, GUARD};
use tests::node::PodSpec;

use crate::events::start;
use crate::testbed::Testbed;

/// Writes the status that the first container of a pod has terminated, as a kubelet does.
pub(crate) fn write_terminated_status(testbed: &Testbed, pod: usize, terminated: &Value) {
    write_status(
        testbed,
        pod,
        terminated,
        |terminated| json!({"state": {"terminated": terminated}, "restartCount": 0}),
        json!({}),
    );
}

/// Does the same with more in the pod's status; `status` makes the container's status from its termination.
fn write_status(
    testbed: &Testbed,
    pod: usize,
    terminated: &Value,
    status: impl Fn(&Value) -> Value,
    more: Value,
) {
    let pod = &testbed.node.pods[pod];
    let container = &pod.containers[0];
    let id = format!("containerd://{}", container.id);
    let mut terminated = terminated.clone();
    terminated["containerID"] = json!(id);
    // The API keeps whole seconds.
    terminated["finishedAt"] = json!(format!("{:.0}", jiff::Timestamp::now()));
    let mut reported = json!({
        "name": container.name, "image": "none.invalid/none:1", "imageID": "", "ready": false, "containerID": id,
    });
    for (key, value) in status(&terminated).as_object().unwrap() {
        reported[key] = value.clone();
    }
    let mut patch = json!({"status": {"containerStatuses": [reported]}});
    for (key, value) in more.as_object().unwrap() {
        patch["status"][key] = value.clone();
    }
    testbed.cluster.set_pod_status(pod.namespace(), &pod.spec().name, &patch).unwrap();
}

/// The pods, named by the way in which they end.
const PODS: [&str; 7] = ["main", "child", "unreported", "elsewhere", "kubelet", "unattributed", "late"];

fn wait_for_oom_kill(agent: &mut Agent, pid: u32) -> Event {
    let is_match = |event: &Event| event.kind() == "oom_kill" && event.number("pid") == Some(pid.into());
    agent.wait_for("the OOM kill", GUARD, is_match).unwrap()
}

fn wait_for_termination(agent: &mut Agent, pod: &str) -> Event {
    let full_name = format!("shop/{pod}");
    let is_match = |event: &Event| event.kind() == "container_terminated" && event.pod() == full_name;
    agent.wait_for(&format!("the termination of {pod}"), GUARD, is_match).unwrap()
}

/// Asserts that the container of that pod terminates with this cause and this mismatch, and returns the event.
fn assert_termination(agent: &mut Agent, pod: &str, cause: &str, mismatch: &str) -> Event {
    let reported = wait_for_termination(agent, pod);
    assert_eq!((reported.text("cause"), reported.text("mismatch")), (cause, mismatch), "{reported:?}");
    reported
}

#[test]
#[expect(clippy::too_many_lines, reason = "one scenario, in the order of its steps")]
fn terminations_have_one_cause_and_mismatches_are_explained() {
    let pod = |name: &&str| PodSpec { limit_mib: Some(16), ..PodSpec::new("shop", *name, &["app"], 8) };
    let Some(mut testbed) = Testbed::new("mismatch", PODS.iter().map(pod)) else { return };
    let index_of = |name: &str| PODS.iter().position(|it| *it == name).unwrap();
    let grow = ["grow", "--size", "64M"];
    let hold = ["hold", "--size", "1M"];
    let mut main = testbed.workload(index_of("main"), &grow);
    let mut child = testbed.workload(index_of("child"), &["child", "--size", "64M"]);
    let mut unreported = testbed.workload(index_of("unreported"), &grow);
    let mut others =
        ["elsewhere", "kubelet", "unattributed", "late"].map(|name| testbed.workload(index_of(name), &hold));
    let mut agent =
        start(&testbed, &json!({"evictionHard": {"memory.available": "1Mi"}}), testbed.cluster.port());

    let mut owners = Vec::new();
    // The kernel kills the main process, and the status has that reason, or another one.
    for (process, name, reason) in
        [(&mut main, "main", "OOMKilled"), (&mut unreported, "unreported", "Error")]
    {
        process.go().unwrap();
        owners.push(wait_for_oom_kill(&mut agent, process.pid()).text("limit_scope").to_owned());
        process.process().wait().unwrap();
        write_terminated_status(&testbed, index_of(name), &json!({"exitCode": 137, "reason": reason}));
    }
    let reported = wait_for_termination(&mut agent, "main");
    // A pod of one container has the container's limit, and more charges count against it.
    assert!(["container", "pod"].contains(&owners[0].as_str()), "{owners:?}");
    assert_eq!(
        (reported.text("cause"), reported.text("limit_scope")),
        ("oom_killed", &*owners[0]),
        "{reported:?}"
    );
    assert_eq!(reported.value.get("mismatch"), None, "{reported:?}");
    assert_termination(&mut agent, "unreported", "oom_killed", "kill_not_in_status");

    // The kernel kills a child; the main process survives that, exits by itself, and the container was restarted.
    child.go().unwrap();
    let killed = child.wait_event("child").unwrap()["child"].as_u64().unwrap();
    assert_eq!(wait_for_oom_kill(&mut agent, u32::try_from(killed).unwrap()).text("victim"), "child");
    tests::process::signal(child.pid(), Signal::TERM).unwrap();
    assert!(child.process().wait().unwrap().success());
    let restarted = |terminated: &Value| {
        json!({
            "lastState": {"terminated": terminated},
            "state": {"running": {"startedAt": terminated["finishedAt"]}},
            "containerID": "containerd://0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "restartCount": 1,
        })
    };
    write_status(
        &testbed,
        index_of("child"),
        &json!({"exitCode": 0, "reason": "OOMKilled"}),
        restarted,
        json!({}),
    );
    let reported = assert_termination(&mut agent, "child", "other", "only_a_child_killed");
    assert!(reported.text("mismatch_explanation").contains("the main process survived it"), "{reported:?}");

    // Another process sends SIGKILL; its identity is visible only from elsewhere.
    for process in &mut others {
        process.go().unwrap();
        process.wait_event("holding").unwrap();
        tests::process::signal(process.pid(), Signal::KILL).unwrap();
        process.process().wait().unwrap();
    }
    let killed = json!({"exitCode": 137, "reason": "Error"});
    write_terminated_status(&testbed, index_of("elsewhere"), &killed);
    write_terminated_status(
        &testbed,
        index_of("unattributed"),
        &json!({"exitCode": 137, "reason": "OOMKilled"}),
    );
    let evicted = json!({
        "phase": "Failed",
        "reason": "Evicted",
        "message": "The node was low on resource: memory. ",
        "conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet",
            "lastTransitionTime": format!("{:.0}", jiff::Timestamp::now()),
        }],
    });
    let ended = |terminated: &Value| json!({"state": {"terminated": terminated}, "restartCount": 0});
    write_status(&testbed, index_of("kubelet"), &killed, ended, evicted);
    assert_termination(&mut agent, "elsewhere", "other", "killed_by_other_process");
    assert_termination(&mut agent, "kubelet", "evicted_by_kubelet", "killed_by_eviction");
    let reported = assert_termination(&mut agent, "unattributed", "oom_killed", "no_kill_seen");
    assert_eq!(reported.value["inferred"], true, "{reported:?}");

    // A status that comes after the event line is still compared with it.
    let reported = wait_for_termination(&mut agent, "late");
    assert_eq!((reported.text("cause"), reported.value.get("mismatch")), ("other", None), "{reported:?}");
    write_terminated_status(&testbed, index_of("late"), &killed);
    let reported = agent
        .wait_for("the late status", GUARD, |event| event.kind() == "container_status_mismatch")
        .unwrap();
    assert_eq!(
        (&*reported.pod(), reported.text("mismatch")),
        ("shop/late", "killed_by_other_process"),
        "{reported:?}"
    );

    // The counters stay when the pods are removed.
    while let Some(pod) = testbed.node.pods.pop() {
        testbed.cluster.end_pod(&pod).unwrap();
    }
    crate::agent::wait_for_pods(&mut agent, "no pods", |it| it["pods_known"] == 0);
    let metrics = agent.metrics().unwrap();
    let ended = |cause| {
        metrics.sum("eviction_agent_container_terminations_total", &[("namespace", "shop"), ("cause", cause)])
    };
    let terminations = ["evicted_by_agent", "evicted_by_kubelet", "oom_killed", "other"].map(ended);
    assert_eq!(terminations, [0.0, 1.0, 3.0, 3.0]);
    for (difference, times) in [
        ("no_kill_seen", 1.0),
        ("only_a_child_killed", 1.0),
        ("kill_not_in_status", 1.0),
        ("child_not_in_status", 0.0),
        ("killed_by_eviction", 1.0),
        ("killed_by_other_process", 2.0),
    ] {
        let labels = [("namespace", "shop"), ("difference", difference)];
        assert_eq!(
            metrics.sum("eviction_agent_container_status_mismatches_total", &labels),
            times,
            "{difference}"
        );
    }
    let terminations =
        agent.events().unwrap().iter().filter(|event| event.kind() == "container_terminated").count();
    assert_eq!(terminations, PODS.len(), "one for each");
    agent.stop().unwrap();
}
