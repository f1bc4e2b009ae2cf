//! One crossing: a hog grows beyond the threshold, and its eviction is requested and granted.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tests::agent::{Event, GUARD};
use tests::clock;
use tests::cluster::{Patch, manifest};
use tests::death::DeathWatcher;
use tests::growth::WorkingSetGrowth;
use tests::stamps::Record;
use tests::workload::Workload;

use super::population::{NODE, OTHER_NODE, PodPopulation, remove_pod};
use crate::hog_node::{idle_working_set, random_pause};

/// The measurements of one crossing.
pub(super) struct Run {
    pub(super) working_set: WorkingSetGrowth,
    /// The timestamp of the BPF program.
    pub(super) stamped_ns: Option<u64>,
    pub(super) decided_ns: u64,
    /// When the agent had read the server's 201 response.
    pub(super) granted_ns: u64,
    /// The time that the server takes for the same requests from an idle client, after a pause.
    pub(super) floor_ns: u64,
    /// The time of an eviction that such a client requests right after another one was granted.
    pub(super) next_ns: u64,
    /// The end of the victim, if the agent kills.
    pub(super) end: Option<VictimEnd>,
    pub(super) detected_by: String,
}

/// The end of a victim's processes.
pub(super) struct VictimEnd {
    /// When the last of them had been sent SIGKILL.
    pub(super) killed_ns: u64,
    /// When the last one was dead.
    pub(super) dead_ns: u64,
    /// The time from SIGKILL to the death of a process of the same size on a node without an agent.
    pub(super) floor_ns: u64,
}

/// The prefix of the keys of the agent's taints.
const TAINT_PREFIX: &str = "eviction-agent.io/";

impl PodPopulation<'_> {
    pub(super) fn cross(&mut self, pod: usize) -> Result<Run> {
        let (floor_ns, next_ns) = self.measure_server_floor()?;
        let kill_floor = self.mode.kills().then(|| self.measure_kill_floor()).transpose()?;
        let interrupt = self.testbed.interrupt.clone();
        let stamps = self.node.file(&format!("stamps-{pod}"));
        let arguments =
            self.case.hog.arguments(self.case.size(), self.case.rate, &stamps, &self.testbed.disk()?);
        let name = self.node.pods[pod].full_name();
        let mut hog = Workload::start(self.node.pods[pod].first()?, arguments)?;
        interrupt.sleep(random_pause())?;
        let base = idle_working_set(&self.node, self.case)?;
        let death = match self.mode.kills() {
            true => Some(DeathWatcher::start(&self.node.pods[pod].group, hog.pid())?),
            false => None,
        };
        hog.go()?;

        let decision =
            self.agent.wait_for_nth(self.decisions + 1, "a decision", GUARD, Event::is_decision)?;
        ensure!(decision.pod() == name, "{} was chosen, and not {name}", decision.pod());
        let id = decision.number("id");
        let answered = self.agent.wait_for("what the server answered", GUARD, |event| {
            event.kind() == "eviction_progress" && event.number("id") == id && is_answer(event.text("result"))
        })?;
        ensure!(answered.text("result") == "accepted", "the server did not grant it: {}", answered.value);
        self.decisions += 1;
        self.check_is_terminating(pod)?;
        let end = match (death, kill_floor) {
            (Some(death), Some(floor_ns)) => {
                let killed = self.agent.wait_for("that it has killed", GUARD, |event| {
                    event.is_result("killed") && event.number("id") == id
                })?;
                let killed_ns = killed.number("mono_ns").context("a result has no time")?;
                Some(VictimEnd { killed_ns, dead_ns: death.wait(&interrupt, GUARD)?, floor_ns })
            }
            _ => {
                self.wait_until_grown(&stamps)?;
                None
            }
        };
        drop(hog);
        let record = Record::read(&stamps)?;
        std::fs::remove_file(&stamps).context("remove the stamps of a run")?;
        self.finish_crossing(pod)?;
        Ok(Run {
            working_set: WorkingSetGrowth::new(
                self.case.hog.growth(&record),
                base,
                self.case.max_working_set,
                self.case.hog.pages(),
            ),
            stamped_ns: decision.number("crossed_mono_ns"),
            decided_ns: decision.number("decided_mono_ns").context("a decision has no time")?,
            granted_ns: answered.number("mono_ns").context("an answer has no time")?,
            floor_ns,
            next_ns,
            end,
            detected_by: decision.text("detected_by").to_owned(),
        })
    }

    /// Checks that the pod and the node in the API server match what the agent reported.
    fn check_is_terminating(&self, pod: usize) -> Result<()> {
        let name = &self.node.pods[pod].spec().name;
        let object = self.cluster.pod("default", name)?.context("its object is gone at once")?;
        ensure!(object["metadata"]["deletionTimestamp"].is_string(), "{name} is not terminating: {object}");
        ensure!(self.is_tainted()? == self.mode.taints(), "the node's taints are not what they should be");
        Ok(())
    }

    /// Returns whether the node has a taint of the agent.
    fn is_tainted(&self) -> Result<bool> {
        let node = self.cluster.admin().get(&format!("/api/v1/nodes/{NODE}"))?.ok()?;
        let is_ours = |taint: &Value| taint["key"].as_str().is_some_and(|key| key.starts_with(TAINT_PREFIX));
        Ok(node["spec"]["taints"].as_array().is_some_and(|taints| taints.iter().any(is_ours)))
    }

    /// Waits until the hog has grown to its full size, so that its own stamps go beyond the threshold.
    fn wait_until_grown(&self, stamps: &std::path::Path) -> Result<()> {
        self.testbed
            .interrupt
            .until("the hog has grown to its end", GUARD, || Ok(Record::read(stamps)?.done.map(drop)))
    }

    /// Finishes the pod as a kubelet does in the end. Waits until the agent has reported the end of its victim
    /// and of the pressure, and has removed its taint.
    fn finish_crossing(&mut self, pod: usize) -> Result<()> {
        self.cluster.finish_pod("default", &self.node.pods[pod].spec().name)?;
        self.agent.wait_for_recovery(self.decisions)?;
        let what = "the node's taint is taken away";
        self.testbed.interrupt.until(what, GUARD, || Ok((!self.is_tainted()?).then_some(())))
    }

    /// Measures the same requests for a pod without processes and its node, from an idle client over its open
    /// connection, and then at once an eviction of another pod, nanoseconds.
    fn measure_server_floor(&self) -> Result<(u64, u64)> {
        let names = ["floor", "floor-next"];
        let mut uids = Vec::new();
        for name in names {
            remove_pod(self.cluster, name)?;
            let pod = self.cluster.run_pod(&manifest::pod(name, OTHER_NODE))?;
            uids.push(pod["metadata"]["uid"].clone());
        }
        let node = format!("/api/v1/nodes/{OTHER_NODE}");
        let untainted = json!({"spec": {"taints": null}});
        let object = self.cluster.admin().patch(Patch::Merge, &node, &untainted)?.ok()?;
        let taint = json!([
            {"op": "test", "path": "/metadata/uid", "value": object["metadata"]["uid"]},
            {"op": "test", "path": "/metadata/resourceVersion", "value": object["metadata"]["resourceVersion"]},
            {"op": "add", "path": "/spec/taints", "value": [
                {"key": "eviction-agent.io/memory-pressure", "effect": "NoSchedule"},
            ]},
        ]);
        // The connection is open, and as idle as the agent's own.
        self.idle_client.get("/version")?.ok()?;
        self.testbed.interrupt.sleep(Duration::from_millis(200))?;
        let start = clock::now();
        if self.mode.taints() {
            self.idle_client.patch(Patch::Json, &node, &taint)?.ok()?;
        }
        self.evict_by_idle_client(names[0], &uids[0])?;
        let rested = clock::now();
        self.evict_by_idle_client(names[1], &uids[1])?;
        let floor = (rested - start, clock::now() - rested);
        for name in names {
            self.cluster.finish_pod("default", name)?;
        }
        Ok(floor)
    }

    fn evict_by_idle_client(&self, name: &str, uid: &Value) -> Result<()> {
        let options = json!({"gracePeriodSeconds": 1, "preconditions": {"uid": uid}});
        let path = format!("/api/v1/namespaces/default/pods/{name}/eviction?timeout=6s");
        let answer = self.idle_client.post(&path, &manifest::eviction(name, &options))?;
        ensure!(answer.status == 201, "the server did not grant an eviction: {}", answer.body);
        Ok(())
    }

    /// Measures the time that the kernel takes to end a process of that size after SIGKILL.
    fn measure_kill_floor(&self) -> Result<u64> {
        let pod = &self.floor_node.pods[0];
        let size = self.case.max_working_set.to_string();
        let mut large = Workload::hold(pod.first()?, &size)?;
        let death = DeathWatcher::start(&pod.group, large.pid())?;
        self.testbed.interrupt.sleep(Duration::from_millis(100))?;
        let start = clock::now();
        large.process().child().kill().context("kill a process")?;
        Ok(death.wait(&self.testbed.interrupt, GUARD)?.saturating_sub(start))
    }
}

/// Returns whether a result is the server's answer to the request, and not the state of processes.
fn is_answer(result: &str) -> bool {
    !matches!(result, "signalled" | "killed" | "terminated" | "error" | "processes_remaining")
}
