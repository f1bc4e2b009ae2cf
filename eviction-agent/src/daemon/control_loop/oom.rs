//! OOM kills and terminated containers: reports them to the engine and publishes its results.

use std::collections::BTreeSet;
use std::time::Duration;

use eviction_bpf::{EventClass, OomKill as KernelOomKill, OomLimitOwner};
use eviction_core::decision::{Decision, DecisionKind};
use eviction_core::input::{Event, Input};
use eviction_core::oom::{ContainerEnded, Evictor, GroupKill, OomKill, OomUpdate, TerminationSource};
use eviction_core::pod::{Pod, PodCondition};
use eviction_core::time::Timestamp;
use eviction_node::clock::{Clock, Instant, mono_ns};
use eviction_node::pod_index::PodIndex;

use super::super::memory_notifier::root_id;
use super::super::oom_attribution::{CgroupNames, describe, knows_cgroup_of};
use super::super::oom_counters::NewOomKills;
use super::ControlLoop;
use super::cgroup_tree::TREE_READ_DELAY;
use crate::telemetry::event_log;

/// Kills of unknown processes are reported to the engine one by one, up to this many at once.
const MAX_REPORTED_KILLS: u64 = 1024;

impl ControlLoop {
    /// Passes an input to the engine, and publishes the containers whose cause it has decided.
    pub(super) fn step(&mut self, input: Input) -> Decision {
        if let Some(recorder) = &mut self.recorder {
            recorder.input(&input);
        }
        let mut decision = self.engine.step(input);
        for terminated in decision.ended.drain(..) {
            let event = event_log::Event::ContainerTerminated(Box::new(terminated));
            self.telemetry.publish(event, decision.at);
        }
        decision
    }

    /// Passes a kill to the engine, and returns its completed record. A repeated record is not published.
    fn step_kill(&mut self, at: Timestamp, kill: OomKill) -> Option<Box<OomKill>> {
        let decision = self.step(Input { at, event: Event::OomKill(Box::new(kill)) });
        let DecisionKind::Oom(OomUpdate::Kill(mut kill)) = decision.kind else { return None };
        let eviction = self.executing().find(|it| kill.pod_uid.as_ref() == Some(&it.pod.uid));
        kill.during_eviction = eviction.and_then(|eviction| eviction.decision);
        // The pod's cool-down is persisted.
        let protects = kill.pod_uid.is_some() && !self.engine.policy().rules.are_kubelets();
        self.state_sender.is_changed |= protects && !kill.repeated;
        (!kill.repeated).then_some(kill)
    }

    /// Handles kills that a BPF program reported. At the first kill in an unknown cgroup the tree is read
    /// again. A kill in a removed cgroup needs the tree as it was.
    pub(super) fn handle_oom_kills(&mut self, kills: &[KernelOomKill]) {
        for kill in kills {
            if self.is_in_node(kill) {
                if self.state.tree_due_ns.is_some() && !knows_cgroup_of(kill, &self.node_sampler.cgroups) {
                    self.refresh_tree();
                }
                self.handle_oom_kill(kill);
            }
        }
        if !kills.is_empty() {
            // A container may have terminated by it. Nothing else reports that before the next full sample.
            self.schedule_tree_read();
        }
    }

    /// Returns whether the victim is in the node's cgroup, if that is not the whole machine.
    fn is_in_node(&self, kill: &KernelOomKill) -> bool {
        let sampler = &self.node_sampler.cgroups;
        let root = root_id(sampler);
        let known = !kill.pid_only && !kill.truncated && !kill.chain.is_empty();
        sampler.root().whole_machine || !known || kill.chain.iter().any(|group| Some(group.id) == root)
    }

    fn handle_oom_kill(&mut self, kill: &KernelOomKill) {
        let killed = self.clock.at(kill.ktime_ns);
        let near_since_ns = match kill.owner {
            OomLimitOwner::Memcg(limited) => self.near_since_ns(limited.id),
            OomLimitOwner::Global | OomLimitOwner::Unknown => None,
        };
        let cgroups = CgroupNames::of(kill, &self.node_sampler.cgroups, &self.pod_index);
        let inits = &mut self.container_inits;
        let described = OomKill {
            near_since: near_since_ns.map(|since_ns| self.clock.at(since_ns).wall),
            detected_by: self.notifier.bpf.backend(EventClass::Oom),
            ..describe(kill, killed.wall, &cgroups, &self.pod_index, inits)
        };
        let Some(kill) = self.step_kill(self.clock.now().wall, described) else { return };
        if let Some(kill) = self.state.oom_groups.add(kill, mono_ns()) {
            self.publish_oom_kill(kill);
        }
    }

    /// Publishes a kill that the engine completed, at its time.
    fn publish_oom_kill(&mut self, kill: Box<OomKill>) {
        let at = kill.at.unwrap_or_else(|| self.clock.now().wall);
        self.telemetry.publish(event_log::Event::OomKill(kill), at);
    }

    /// Publishes group kills of which no more victims are reported.
    pub(super) fn publish_group_kills(&mut self, now_ns: u64) {
        for (first, _) in self.state.oom_groups.take_complete(now_ns) {
            self.publish_oom_kill(first);
        }
    }

    /// Exports the machine's counter, and requests a read of the cgroups' counters at the end of the iteration.
    pub(super) fn count_oom_kills(&mut self) {
        let kills = self.oom_counters.vmstat.read().known();
        self.metrics.vmstat_oom_kills.set(kills.map(|kills| i64::try_from(kills).unwrap_or(i64::MAX)));
        self.oom_counters.request_read();
    }

    /// Publishes kills that only the counters show. This may read a file of every cgroup, so it is done at the
    /// end of an iteration.
    pub(super) fn publish_counted_kills(&mut self) {
        if self.notifier.bpf.reports(EventClass::Oom) {
            return self.oom_counters.reset();
        }
        let at = self.clock.now();
        let Some(kills) = self.oom_counters.read(self.node_sampler.cgroups.tree(), at.mono_ns) else {
            return;
        };
        let NewOomKills { groups, elsewhere, limited } = kills;
        for (cgroup, kills) in groups {
            let kill = self.describe_counted(cgroup, &limited);
            self.publish_counted(kill, kills, at);
        }
        if elsewhere > 0 {
            let kill = OomKill { detected_by: "vmstat", ..OomKill::default() };
            self.publish_counted(kill, elsewhere, at);
        }
    }

    /// Describes a counted kill. Its limit is that of the one ancestor whose own limit was hit meanwhile, if
    /// the kernel counts that.
    fn describe_counted(&mut self, cgroup: u64, limited: &[u64]) -> OomKill {
        let cgroups = CgroupNames::read(&self.node_sampler.cgroups);
        let detected_by = self.oom_counters.group_file();
        let mut kill = OomKill { inferred: true, detected_by, ..OomKill::default() };
        cgroups.name_victim(&mut kill, cgroup, &self.pod_index, &mut self.container_inits);
        let mut hit = cgroups.ancestors(cgroup).filter(|id| limited.contains(id));
        if let (Some(only), None) = (hit.next(), hit.next()) {
            cgroups.name_limit(&mut kill, only);
        }
        kill
    }

    fn publish_counted(&mut self, kill: OomKill, kills: u64, at: Instant) {
        let kill = OomKill { at: Some(at.wall), mono_ns: at.mono_ns, unattributed: Some(kills), ..kill };
        let mut last = None;
        for _ in 0..kills.min(MAX_REPORTED_KILLS) {
            last = self.step_kill(at.wall, kill.clone());
        }
        let Some(kill) = last else { return };
        self.publish_oom_kill(kill);
        self.schedule_tree_read();
        self.sync_within(TREE_READ_DELAY);
    }

    /// Lets the engine decide termination causes that are due, also while it makes no decision on samples.
    pub(super) fn decide_due_terminations(&mut self, now: Timestamp) {
        if self.engine.oom().due().is_some_and(|due| due <= now) {
            self.step_pods();
        }
    }

    /// Returns the time until a termination cause is due.
    pub(super) fn termination_due(&self, now: Timestamp) -> Option<Duration> {
        let due = self.engine.oom().due()?;
        let nanos = due.as_nanosecond().saturating_sub(now.as_nanosecond());
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)))
    }

    /// Reports containers that are missing in the tree that was just read, or whose init process has ended.
    pub(crate) fn watch_containers(&mut self) {
        let now = self.clock.now().wall;
        let ends = self.container_inits.update(now, &self.node_sampler.cgroups, &self.pod_index);
        self.report_terminations(ends);
    }

    /// Reports containers that have terminated according to the pods' statuses.
    pub(super) fn report_status_terminations(&mut self) {
        let ends = self.statuses.update(&self.pod_index, &self.clock);
        self.report_terminations(ends);
    }

    fn report_terminations(&mut self, ends: Vec<ContainerEnded>) {
        let at = self.clock.now().wall;
        for end in ends {
            let decision = self.step(Input { at, event: Event::ContainerEnded(Box::new(end)) });
            let DecisionKind::Oom(OomUpdate::End { mismatch, .. }) = decision.kind else { continue };
            if let Some(mismatch) = mismatch {
                self.telemetry.publish(event_log::Event::ContainerStatusMismatch(mismatch), at);
            }
        }
    }
}

/// The kernel kills a group in one go and logs some lines for each process: a group is complete when no kill was
/// reported for this long.
const QUIET_NS: u64 = 100_000_000;

/// Group kills whose victims are still being reported: the first kill, and when the latest one was reported, in
/// nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug, Default)]
pub(super) struct OomGroupCoalescer(Vec<(Box<OomKill>, u64)>);

impl OomGroupCoalescer {
    /// Adds a kill that the engine completed. Returns it if it is part of no group. The victims are collected
    /// here: the engine's list may contain those of an event that was published before.
    pub(super) fn add(&mut self, mut kill: Box<OomKill>, now_ns: u64) -> Option<Box<OomKill>> {
        let Some(group) = &kill.group else { return Some(kill) };
        let open = self.0.iter_mut().rfind(|(first, _)| first.oom_group == kill.oom_group);
        match open.filter(|_| group.kills > 1) {
            Some((first, latest_ns)) => {
                first.kills_in_pod = first.kills_in_pod.max(kill.kills_in_pod);
                first.group.get_or_insert_default().add(&kill);
                *latest_ns = now_ns;
            }
            None => {
                let mut victims = GroupKill::default();
                victims.add(&kill);
                kill.group = Some(victims);
                self.0.push((kill, now_ns));
            }
        }
        None
    }

    /// Removes and returns the group kills that are complete by now.
    fn take_complete(&mut self, now_ns: u64) -> Vec<(Box<OomKill>, u64)> {
        self.0.extract_if(.., |(_, latest_ns)| now_ns.saturating_sub(*latest_ns) >= QUIET_NS).collect()
    }

    /// Returns the nanoseconds until the next group kill is complete.
    pub(super) fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let due = |(_, latest_ns): &(_, u64)| latest_ns.saturating_add(QUIET_NS).saturating_sub(now_ns);
        self.0.iter().map(due).min()
    }
}

/// `status.reason` of a pod that the kubelet evicted: `eviction_manager.go: Reason`.
const EVICTED: &str = "Evicted";
/// The condition of a pod that is being disrupted, and the kubelet's reason for it.
const DISRUPTION_TARGET: &str = "DisruptionTarget";
const TERMINATION_BY_KUBELET: &str = "TerminationByKubelet";

/// Tracks which terminations are known.
#[derive(Debug)]
pub(crate) struct ContainerStatusTracker {
    /// Terminations before the start of the agent are not reported.
    since: Timestamp,
    /// The terminations in the last statuses. They include those that are not reported: if the system clock is set
    /// back, one from before the start seems to be after it.
    known: BTreeSet<Termination>,
}

/// A termination: the pod, the container's instance, and whether the pod was known to be evicted.
type Termination = (Box<str>, Box<str>, bool);

impl ContainerStatusTracker {
    pub(crate) fn new(now: Timestamp) -> Self {
        // Times of the API have whole seconds.
        let since = Timestamp::from_second(now.as_second()).unwrap_or(now);
        Self { since, known: BTreeSet::new() }
    }

    /// Returns the new terminations in the statuses of these pods.
    pub(crate) fn update(&mut self, pod_index: &PodIndex, clock: &Clock) -> Vec<ContainerEnded> {
        let before = std::mem::take(&mut self.known);
        let mut ends = Vec::new();
        for known in pod_index.known() {
            let pod = &known.pod;
            let evicted = (&*pod.reason == EVICTED).then(|| evicted_at(pod).map(|at| clock.steady(at)));
            for end in &pod.ended {
                let Some(at) = end.finished_at.map(|at| clock.steady(at)) else { continue };
                let key = (pod.uid.clone(), end.instance.clone(), evicted.is_some());
                if at >= self.since && !before.contains(&key) {
                    ends.push(ContainerEnded {
                        at: Some(at),
                        pod_uid: pod.uid.clone(),
                        container: end.container.clone(),
                        container_id: (!end.instance.is_empty()).then(|| end.instance.clone()),
                        seen: TerminationSource::Status,
                        exit_code: Some(end.exit_code),
                        signal: (end.signal != 0).then_some(end.signal),
                        reason: end.reason.clone(),
                        evicted_by: evicted.map(|_| Evictor::Kubelet),
                        evicted_at: evicted.flatten(),
                    });
                }
                self.known.insert(key);
            }
        }
        ends
    }
}

/// Returns when the kubelet began to evict the pod.
fn evicted_at(pod: &Pod) -> Option<Timestamp> {
    let by_kubelet =
        |it: &&PodCondition| &*it.kind == DISRUPTION_TARGET && &*it.reason == TERMINATION_BY_KUBELET;
    pod.conditions.iter().find(by_kubelet)?.last_transition_time
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use eviction_core::fixture::policy;
    use eviction_core::pod::ContainerStateTerminated;
    use eviction_core::pods::KnownPod;
    use eviction_core::policy::preferences::Profile;

    use super::super::tests::fixture;
    use super::*;

    #[tokio::test]
    async fn a_kill_that_protects_its_pod_is_persisted() {
        for (profile, protects) in [(Profile::Kubelet, false), (Profile::Enhanced, true)] {
            let Some(mut fixture) = fixture(profile) else { ::tests::skip!("no cgroups can be made here") };
            let control_loop = &mut fixture.control_loop;
            control_loop.state_sender.is_changed = false;
            let pod_uid = Some(control_loop.pod_index.known()[0].pod.uid.clone());
            let at = control_loop.clock.now().wall;
            let kill = OomKill { at: Some(at), pid: 7, pod_uid, ..OomKill::default() };
            for expected in [protects, false] {
                control_loop.step_kill(at, kill.clone());
                let is_changed = std::mem::take(&mut control_loop.state_sender.is_changed);
                assert_eq!(is_changed, expected, "{profile:?}: a repeated record changes nothing");
            }
        }
    }

    fn member(oom_group: Option<u64>, kills: u64, pid: u32) -> Box<OomKill> {
        let group = oom_group.map(|_| GroupKill { kills, ..GroupKill::default() });
        Box::new(OomKill { pid, oom_group, group, ..OomKill::default() })
    }

    #[test]
    fn a_group_is_published_when_no_more_kills_come() {
        let victims = |complete: Vec<(Box<OomKill>, u64)>| {
            complete.iter().map(|(first, _)| (first.pid, first.kills())).collect::<Vec<_>>()
        };
        let mut groups = OomGroupCoalescer::default();
        assert!(groups.add(member(None, 1, 1), 0).is_some());
        for (kills, now_ns) in [(1, 0), (2, QUIET_NS / 2)] {
            assert_eq!(groups.add(member(Some(7), kills, 1 + kills as u32), now_ns), None);
        }
        assert_eq!(groups.add(member(Some(8), 1, 4), 0), None);
        assert_eq!(groups.due_ns(10), Some(QUIET_NS - 10));
        assert_eq!(victims(groups.take_complete(QUIET_NS)), [(4, 1)]);
        assert_eq!(groups.add(member(Some(7), 1, 5), QUIET_NS), None, "the same cgroup, killed again");
        assert_eq!(victims(groups.take_complete(u64::MAX)), [(2, 2), (5, 1)]);
        groups.add(member(Some(7), 2, 6), 2 * QUIET_NS);
        assert_eq!(victims(groups.take_complete(3 * QUIET_NS)), [(6, 1)], "one of two was published");
        assert_eq!(groups.due_ns(0), None);
    }

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod_index(reason: &str, ends: &[(&str, i64)]) -> PodIndex {
        let end = |(instance, at): &(&str, i64)| ContainerStateTerminated {
            container: "main".into(),
            instance: (*instance).into(),
            exit_code: 137,
            signal: 0,
            reason: "OOMKilled".into(),
            finished_at: Some(second(*at)),
        };
        let pod = Pod {
            uid: "u".into(),
            reason: reason.into(),
            ended: ends.iter().map(end).collect(),
            conditions: vec![PodCondition {
                kind: DISRUPTION_TARGET.into(),
                reason: TERMINATION_BY_KUBELET.into(),
                last_transition_time: Some(second(7)),
                ..PodCondition::default()
            }],
            ..Pod::default()
        };
        PodIndex::new(vec![Arc::new(KnownPod::new(pod, &policy(Vec::new())))])
    }

    fn update(statuses: &mut ContainerStatusTracker, pod_index: &PodIndex) -> Vec<ContainerEnded> {
        statuses.update(pod_index, &Clock::start())
    }

    #[test]
    fn terminations_are_reported_once_and_only_since_the_start() {
        let mut statuses = ContainerStatusTracker::new(Timestamp::new(100, 900_000_000).unwrap());
        let first = update(&mut statuses, &pod_index("", &[("old", 99), ("i1", 100)]));
        assert_eq!(first.len(), 1);
        let end = &first[0];
        assert_eq!((end.container_id.as_deref(), end.exit_code, end.signal), (Some("i1"), Some(137), None));
        assert_eq!((end.at, end.evicted_by), (Some(second(100)), None));
        assert!(update(&mut statuses, &pod_index("", &[("old", 99), ("i1", 100)])).is_empty());
        assert_eq!(update(&mut statuses, &pod_index("", &[("i1", 100), ("i2", 105)])).len(), 1);
    }

    #[test]
    fn old_termination_stays_unreported_when_the_system_clock_is_set_back() {
        let now = Clock::start().now().wall.as_second();
        let mut statuses = ContainerStatusTracker::new(second(now));
        let old = [("old", now - 60)];
        assert!(update(&mut statuses, &pod_index("", &old)).is_empty());
        // The steady time is an hour ahead of the system clock.
        let zero = Clock::start().at(0).wall + jiff::SignedDuration::from_hours(1);
        let set_back: Clock = serde_json::from_value(serde_json::json!(zero)).unwrap();
        assert!(set_back.steady(second(now - 60)) > second(now));
        assert!(statuses.update(&pod_index("", &old), &set_back).is_empty());
    }

    #[test]
    fn an_eviction_that_the_status_shows_later_is_reported() {
        let mut statuses = ContainerStatusTracker::new(second(5));
        assert_eq!(update(&mut statuses, &pod_index("", &[("i1", 8)]))[0].evicted_by, None);
        let evicted = update(&mut statuses, &pod_index(EVICTED, &[("i1", 8)]));
        assert_eq!((evicted[0].evicted_by, evicted[0].evicted_at), (Some(Evictor::Kubelet), Some(second(7))));
    }
}
