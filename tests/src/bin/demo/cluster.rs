//! A runaway is evicted through a real API server; its neighbours are not.

use anyhow::{Context as _, Error, Result};
use serde_json::{Value, json};
use tests::agent::{Agent, Options, config_without_margin};
use tests::cluster::{self, Binaries, Cluster, Manifests, NAME, kubernetes_version, manifest};
use tests::node::{MIB, Node, PodSpec};

use crate::pods;
use crate::runaway::{Plan, Runaway};
use crate::testbed::{GUARD, Skip, Testbed};

const NODE: &str = "n1";
/// The memory of the node. Its cgroup cannot exceed it.
const MEMORY: u64 = 512 * MIB;
const PIDS: u64 = 100;
/// The memory that must stay available.
const THRESHOLD: u64 = 128 * MIB;
/// The runaway would grow beyond the threshold, and not to the node's limit.
const PLAN: Plan<'_> = Plan::grow(MEMORY - THRESHOLD);
/// The memory of the other pods, MiB.
const WEB: u64 = 64;
const SHOP: u64 = 16;

pub(crate) fn run(testbed: &mut Testbed<'_>) -> Result<()> {
    let binaries = Binaries::find().map_err(|why| Error::new(Skip(why)))?;
    let mut node = testbed.node(MEMORY, PIDS)?;
    testbed.printer.line("wait", "etcd and kube-apiserver start");
    let cluster = Cluster::start(&binaries, &cluster::Options::default(), testbed.interrupt)?;
    let version = kubernetes_version().context("find out which Kubernetes this is")?;
    let server = format!(
        "kube-apiserver {version} at {}, with etcd and the rights of deploy/manifests",
        cluster.url()
    );
    testbed.printer.line("server", server);
    cluster.add_node(NODE)?;
    let [report, web, shop] = ["report", "web", "shop"].map(|name| {
        let spec = PodSpec::new("default", name, &["main"], 8);
        cluster.place_pod(&manifest::pod(name, NODE), &mut node, spec)
    });
    let (report, web, shop) = (report?, web?, shop?);
    testbed.printer.line("pod", format_args!("default/report  grows at {} MiB/s", PLAN.rate / MIB));
    testbed.printer.line("pod", format_args!("default/web     {WEB} MiB"));
    testbed.printer.line("pod", format_args!("default/shop    {SHOP} MiB"));
    let mut bystanders = pods::bystanders(testbed, &node, &[(web, WEB), (shop, SHOP)])?;
    let mut agent = start(testbed, &cluster, &node)?;
    agent.wait_for_pods(3)?;
    testbed
        .printer
        .line("watch", "the agent knows the node's 3 pods by the API server, and found their cgroups");

    let mut runaway = Runaway::start(testbed, &node, report, PLAN)?;
    let decision = agent.wait_for_decision()?;
    let (chosen, expected) = (decision.pod(), node.pods[report].full_name());
    let what = format!("the agent chose {expected}, for memory.available");
    testbed.check(what, chosen == expected && decision.text("signal") == "memory.available", &decision.value);
    let answered = agent.wait_for("the API server's answer", GUARD, |event| {
        event.kind() == "eviction_progress" && event.number("id") == decision.number("id")
    })?;
    let result = answered.text("result");
    testbed.check(
        "the API server granted its eviction",
        result == "accepted",
        format_args!("{result} {}", answered.text("reason")),
    );
    let granted = answered.number("mono_ns").context("an answer has no time")?;
    check_object(testbed, &cluster, "report")?;

    // The kubelet does this when a pod is deleted.
    testbed.printer.line("kubelet", "there is none here: the demo ends the process in its place");
    runaway.process().process().child().kill().context("end the runaway")?;
    runaway.wait_for_death(testbed, &decision, &[("granted", granted, "the API server had answered 201")])?;
    cluster.finish_pod("default", "report")?;
    agent.wait_for("that the pod is gone", GUARD, |event| event.is_result("terminated"))?;
    testbed.check("and the agent knows that it is gone", true, "");
    for name in ["web", "shop"] {
        let terminating = is_terminating(&cluster.pod("default", name)?.unwrap_or_default());
        testbed.check(format!("default/{name} is not terminating"), !terminating, "it is being deleted");
    }
    pods::check_bystanders(testbed, &mut bystanders, ["it was not chosen", "the same"])?;
    let decisions = agent.count_decisions()?;
    testbed.check("one decision, one victim", decisions == 1, format_args!("{decisions} decisions"));
    agent.stop()
}

/// Starts an agent with the rights of deploy/manifests.
fn start(testbed: &mut Testbed<'_>, cluster: &Cluster, node: &Node) -> Result<Agent> {
    let rules = Manifests::read()?.of("ClusterRole")?["rules"].clone();
    let account = cluster.account(NAME, &rules)?;
    let kubeconfig = cluster.kubeconfig(NAME, &account.token)?;
    let kubelet = json!({"evictionHard": {"memory.available": format!("{}Mi", THRESHOLD / MIB)}});
    let options = testbed.options(node, &kubelet)?;
    // There is no kubelet here that the agent must precede, so its threshold is the one that the demo prints.
    let options = Options { action: "evict", config: Some(config_without_margin(node)?), ..options };
    testbed.start(&options.in_cluster(kubeconfig, NODE), "charge")
}

fn is_terminating(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_string()
}

/// Checks the pod's object on the API server.
fn check_object(testbed: &mut Testbed<'_>, cluster: &Cluster, name: &str) -> Result<()> {
    let pod = cluster.pod("default", name)?.unwrap_or_default();
    testbed.check("its object has a deletionTimestamp", is_terminating(&pod), &pod);
    let conditions = pod["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let target = conditions.iter().find(|it| it["type"] == "DisruptionTarget" && it["status"] == "True");
    let reason = target.map_or(&Value::Null, |it| &it["reason"]);
    testbed.check("and the condition DisruptionTarget", reason == "EvictionByEvictionAPI", reason);
    Ok(())
}
