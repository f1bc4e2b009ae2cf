//! One crossing: a hog grows beyond the line, and its eviction is asked for and granted.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tests::agent::{Event, GUARD};
use tests::clock;
use tests::cluster::{Patch, manifest};
use tests::death::Death;
use tests::growth::Climb;
use tests::stamps::Record;
use tests::workload::Workload;

use super::population::{BESIDE, NODE, PodPopulation, forget};

/// What was measured in a crossing.
pub(super) struct Run {
    pub(super) climb: Climb,
    /// The kernel program's stamp.
    pub(super) stamped_ns: Option<u64>,
    pub(super) decided_ns: u64,
    /// When the agent had read the server's 201.
    pub(super) granted_ns: u64,
    pub(super) floor: Floor,
    /// The victim's, where the agent kills.
    pub(super) end: Option<End>,
    pub(super) seen_by: String,
}

/// What the server takes for the same, from an idle client.
pub(super) struct Floor {
    /// When nobody has asked it for a while.
    pub(super) rested_ns: u64,
    /// An eviction that is asked for when another one was just granted.
    pub(super) next_ns: u64,
}

/// The end of a victim's processes.
pub(super) struct End {
    /// When the last of them had been sent SIGKILL.
    pub(super) killed_ns: u64,
    /// When the last one was dead.
    pub(super) dead_ns: u64,
    /// From SIGKILL to the death of as large a process that nobody else hears of.
    pub(super) floor_ns: u64,
}

/// Keys of the agent's taints begin so.
const OURS: &str = "eviction-agent.io/";

/// Any moment of the agent's own timers is as good as any other.
fn random_pause() -> Duration {
    Duration::from_millis(200 + clock::now() / 1000 % 500)
}

impl PodPopulation<'_> {
    pub(super) fn cross(&mut self, pod: usize) -> Result<Run> {
        let floor = self.floor()?;
        let kill_floor = self.way.kills().then(|| self.kill_floor()).transpose()?;
        let interrupt = self.testbed.interrupt.clone();
        let stamps = self.node.file(&format!("stamps-{pod}"));
        let arguments =
            self.case.hog.arguments(self.case.size(), self.case.rate, &stamps, self.testbed.disk()?);
        let name = self.node.pods[pod].full_name();
        let mut hog = Workload::start(&self.testbed.workload, self.node.pods[pod].first()?, arguments)?;
        interrupt.sleep(random_pause())?;
        let base = self.base()?;
        let death = match self.way.kills() {
            true => Some(Death::of(&self.node.pods[pod].group, hog.pid())?),
            false => None,
        };
        hog.go()?;

        let decision = self.nth("eviction_decision", |_| true)?;
        ensure!(decision.pod() == name, "{} was chosen, and not {name}", decision.pod());
        let id = decision.number("id");
        let answered = self.agent.wait_for("what the server answered", GUARD, |event| {
            event.kind() == "eviction_progress" && event.number("id") == id && is_answer(event.text("result"))
        })?;
        ensure!(answered.text("result") == "accepted", "the server did not grant it: {}", answered.value);
        self.decisions += 1;
        self.is_going(pod)?;
        let end = match (death, kill_floor) {
            (Some(death), Some(floor_ns)) => {
                let killed = self.agent.wait_for("that it has killed", GUARD, |event| {
                    event.kind() == "eviction_progress"
                        && event.number("id") == id
                        && event.text("result") == "killed"
                })?;
                let killed_ns = killed.number("mono_ns").context("an outcome has no time")?;
                Some(End { killed_ns, dead_ns: death.at(&interrupt, GUARD)?, floor_ns })
            }
            _ => {
                self.until_grown(&stamps)?;
                None
            }
        };
        drop(hog);
        let record = Record::read(&stamps)?;
        std::fs::remove_file(&stamps).context("remove the stamps of a run")?;
        self.settle(pod)?;
        Ok(Run {
            climb: Climb::new(self.case.hog.growth(&record), base, self.case.line, self.case.hog.pages()),
            stamped_ns: decision.number("crossed_mono_ns"),
            decided_ns: decision.number("decided_mono_ns").context("a decision has no time")?,
            granted_ns: answered.number("mono_ns").context("an answer has no time")?,
            floor,
            end,
            seen_by: decision.text("detected_by").to_owned(),
        })
    }

    /// The next event of that kind, those of former crossings not counted.
    fn nth(&mut self, kind: &str, fits: impl Fn(&Event) -> bool) -> Result<Event> {
        let (agent, nth) = (&mut self.agent, self.decisions);
        self.testbed.interrupt.until(&format!("the agent says `{kind}`"), GUARD, || {
            let mut heard = agent.heard()?.iter().filter(|event| event.kind() == kind && fits(event));
            Ok(heard.nth(nth).cloned())
        })
    }

    /// Holds what the agent says against what the server has.
    fn is_going(&self, pod: usize) -> Result<()> {
        let name = &self.node.pods[pod].spec().name;
        let object = self.cluster.pod("default", name)?.context("its object is gone at once")?;
        ensure!(object["metadata"]["deletionTimestamp"].is_string(), "{name} is not on its way: {object}");
        ensure!(self.is_tainted()? == self.way.taints(), "the node's taints are not what they should be");
        Ok(())
    }

    /// Whether the node has a taint of the agent's.
    fn is_tainted(&self) -> Result<bool> {
        let node = self.cluster.admin().get(&format!("/api/v1/nodes/{NODE}"))?.ok()?;
        let is_ours = |taint: &Value| taint["key"].as_str().is_some_and(|key| key.starts_with(OURS));
        Ok(node["spec"]["taints"].as_array().is_some_and(|taints| taints.iter().any(is_ours)))
    }

    /// Lets the hog grow to its end, so that its own stamps go beyond the line.
    fn until_grown(&self, stamps: &std::path::Path) -> Result<()> {
        self.testbed
            .interrupt
            .until("the hog has grown to its end", GUARD, || Ok(Record::read(stamps)?.done.map(drop)))
    }

    /// Does what a kubelet does in the end, and waits until the agent knows that its victim is gone
    /// and the pressure over.
    fn settle(&mut self, pod: usize) -> Result<()> {
        self.cluster.finish_pod("default", &self.node.pods[pod].spec().name)?;
        let (agent, decisions) = (&mut self.agent, self.decisions);
        self.testbed.interrupt.until("the agent sees the end of its victim", GUARD, || {
            Ok(agent.is_settled(decisions)?.then_some(()))
        })?;
        let what = "the node's taint is taken away";
        self.testbed.interrupt.until(what, GUARD, || Ok((!self.is_tainted()?).then_some(())))
    }

    /// The same requests for a pod that nobody runs and its node, by a client that has nothing else to
    /// do, over the connection that it has; and then at once an eviction of another one.
    fn floor(&self) -> Result<Floor> {
        let names = ["floor", "floor-next"];
        let mut uids = Vec::new();
        for name in names {
            forget(self.cluster, name)?;
            let pod = self.cluster.run_pod(&manifest::pod(name, BESIDE))?;
            uids.push(pod["metadata"]["uid"].clone());
        }
        let node = format!("/api/v1/nodes/{BESIDE}");
        let untainted = json!({"spec": {"taints": null}});
        let object = self.cluster.admin().patch(Patch::Merge, &node, &untainted)?.ok()?;
        let taint = json!([
            {"op": "test", "path": "/metadata/uid", "value": object["metadata"]["uid"]},
            {"op": "test", "path": "/metadata/resourceVersion", "value": object["metadata"]["resourceVersion"]},
            {"op": "add", "path": "/spec/taints", "value": [
                {"key": "eviction-agent.io/memory-pressure", "effect": "NoSchedule"},
            ]},
        ]);
        // The connection is there, and as idle as the agent's own.
        self.beside.get("/version")?.ok()?;
        self.testbed.interrupt.sleep(Duration::from_millis(200))?;
        let start = clock::now();
        if self.way.taints() {
            self.beside.patch(Patch::Json, &node, &taint)?.ok()?;
        }
        self.evict_beside(names[0], &uids[0])?;
        let rested = clock::now();
        self.evict_beside(names[1], &uids[1])?;
        let floor = Floor { rested_ns: rested - start, next_ns: clock::now() - rested };
        for name in names {
            self.cluster.finish_pod("default", name)?;
        }
        Ok(floor)
    }

    fn evict_beside(&self, name: &str, uid: &Value) -> Result<()> {
        let options = json!({"gracePeriodSeconds": 1, "preconditions": {"uid": uid}});
        let path = format!("/api/v1/namespaces/default/pods/{name}/eviction?timeout=6s");
        let answer = self.beside.post(&path, &manifest::eviction(name, &options))?;
        ensure!(answer.status == 201, "the server did not grant an eviction: {}", answer.body);
        Ok(())
    }

    /// What the kernel takes to end a process of that size, once it is sent SIGKILL.
    fn kill_floor(&self) -> Result<u64> {
        let pod = &self.elsewhere.pods[0];
        let size = self.case.line.to_string();
        let mut large = Workload::run(&self.testbed.workload, pod.first()?, ["hold", "--size", &size])?;
        large.wait_event("holding")?;
        let death = Death::of(&pod.group, large.pid())?;
        self.testbed.interrupt.sleep(Duration::from_millis(100))?;
        let start = clock::now();
        large.process().child().kill().context("kill a process")?;
        Ok(death.at(&self.testbed.interrupt, GUARD)?.saturating_sub(start))
    }
}

/// Whether an outcome is what the server said of the request, and not what became of processes.
fn is_answer(outcome: &str) -> bool {
    !matches!(outcome, "signalled" | "killed" | "terminated" | "error" | "processes_remaining")
}
