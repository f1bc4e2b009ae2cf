//! Node reclaim before pods are evicted for a disk: one attempt for each crossing.

use std::sync::Arc;

use eviction_core::decision::{Decision, DecisionKind, Evaluation};
use eviction_core::disk_layout::{DiskLayout, GarbageEstimate, Reclaim};
use eviction_core::eviction::EvaluationEnd;
use eviction_core::input::{Event, Input};
use eviction_core::node::ContainerImage;
use eviction_core::policy::eviction_settings::NodeReclaim;
use eviction_core::reading::UnknownReason;
use eviction_core::signal::{Resource, Signal, SignalSet};
use eviction_core::snapshot::Snapshot;
use eviction_core::time::Timestamp;
use eviction_cri::removable::unused_bytes;
use eviction_cri::{ReclaimEnd, ReclaimOrder, ReclaimReport, Space};

use super::ControlLoop;
use crate::daemon::reclaim::{ATTEMPT_TIMEOUT, ReclaimExecutor, ShortFs};
use crate::telemetry::event_log;
use eviction_node::clock::mono_ns;

/// How long the kubelet has after the crossing, at most: it synchronizes every 10 s.
const KUBELET_WAIT_NS: u64 = 15_000_000_000;

/// After this time an executor is abandoned that should have ended by itself.
const EXECUTOR_TIMEOUT_NS: u64 = ATTEMPT_TIMEOUT.as_nanos() as u64 + 2_000_000_000;

/// The state of reclaim from one sample to the next.
#[derive(Debug, Default)]
pub(crate) struct ReclaimState {
    executor: Option<ReclaimExecutor>,
    /// `status.images` of the Node object.
    pub(super) images: Vec<ContainerImage>,
    /// Signals for which reclaim was attempted since their thresholds were met.
    attempted: SignalSet,
    /// The attempt of the executor.
    pub(super) running: Option<ReclaimAttempt>,
    /// The signals for which reclaim is left to the kubelet. Each has its own time: while the kubelet reclaims, a
    /// second threshold of the same disk may be met and resolved before the first.
    pub(super) left_to_kubelet: [Option<KubeletReclaim>; Signal::COUNT],
    /// Whether an attempt has just ended: the next sample shows its result.
    pub(super) has_ended: bool,
    /// Whether the last decision waits for an attempt: no pod is evicted before it ends.
    pub(super) is_awaited: bool,
}

/// An attempt of the executor for this signal, since `since_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReclaimAttempt {
    signal: Signal,
    pub(super) since_ns: u64,
    /// The driving signal of the last decision. It differs from `signal` if another threshold was met meanwhile.
    driving: Signal,
}

/// Reclaim has been left to the kubelet since `since_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KubeletReclaim {
    pub(super) since_ns: u64,
    pub(super) estimate: GarbageEstimate,
}

/// How a decision that waits for reclaim goes on.
enum ReclaimStep {
    /// No pod is evicted for this signal yet. With an estimate the kubelet reclaims.
    Wait(Option<GarbageEstimate>),
    /// Reclaim is over: this sample shows its result.
    Done,
    /// Reclaim was not attempted.
    Skip,
}

impl ReclaimState {
    pub(crate) fn new(executor: Option<ReclaimExecutor>) -> Self {
        Self { executor, ..Self::default() }
    }

    /// Waits for the end of an attempt. May be cancelled.
    pub(super) async fn report(&mut self) -> Option<ReclaimReport> {
        match &mut self.executor {
            Some(executor) => executor.report().await,
            None => std::future::pending().await,
        }
    }

    /// Ends the attempt for this signal: pods may be evicted for it.
    fn end_attempt(&mut self, signal: Signal) {
        self.running = None;
        self.attempted.insert(signal);
    }

    /// Allows one more attempt after a victim has terminated: its containers are garbage then.
    pub(super) fn allow_another_attempt(&mut self, mode: NodeReclaim) {
        if mode == NodeReclaim::Cri {
            self.attempted = SignalSet::EMPTY;
        }
    }

    /// Forgets the attempts for signals whose thresholds are not met any more. Without an observation a
    /// threshold may still be met.
    pub(super) fn forget_resolved(&mut self, evaluation: &Evaluation) {
        let may_be_met = |signal: &Signal| {
            evaluation.observations.get(*signal).is_none()
                || evaluation.met.iter().any(|met| evaluation.signal_of(met.threshold) == Some(*signal))
        };
        let mut still = SignalSet::EMPTY;
        self.attempted.iter().filter(may_be_met).for_each(|signal| still.insert(signal));
        self.attempted = still;
        for signal in Signal::ALL.into_iter().filter(|signal| !may_be_met(signal)) {
            self.left_to_kubelet[signal as usize] = None;
        }
    }
}

impl ControlLoop {
    /// Lets the engine decide on a sample, with reclaim before evictions for a disk.
    pub(super) fn decide(&mut self, at: Timestamp, snapshot: &Arc<Snapshot>) -> Decision {
        self.reclaim.is_awaited = false;
        let goes_on = std::mem::take(&mut self.reclaim.has_ended) && self.engine.awaits_reclaim();
        if goes_on {
            return self.step(Input { at, event: Event::Reclaimed(Ok(Arc::clone(snapshot))) });
        }
        let mut decision = self.step(Input { at, event: Event::Sample(Arc::clone(snapshot)) });
        let DecisionKind::Evaluated(evaluation) = &mut decision.kind else { return decision };
        self.reclaim.forget_resolved(evaluation);
        let next = match evaluation.driving_signal() {
            Some(signal) if wants_reclaim(evaluation, signal) => self.reclaim_for(evaluation, signal),
            _ => return decision,
        };
        if let ReclaimStep::Wait(estimate) = next {
            self.reclaim.is_awaited = true;
            evaluation.left_to_kubelet = estimate;
        }
        // A pod that is evicted for a limit comes first; the next sample is about the threshold again.
        if !decision.awaits_reclaim() || decision.evictions().next().is_some() {
            return decision;
        }
        let answer = match next {
            ReclaimStep::Wait(_) => return decision,
            ReclaimStep::Done => Ok(Arc::clone(snapshot)),
            ReclaimStep::Skip => Err(UnknownReason::Absent),
        };
        self.engine.recycle(decision);
        self.step(Input { at, event: Event::Reclaimed(answer) })
    }

    fn reclaim_for(&mut self, evaluation: &Evaluation, signal: Signal) -> ReclaimStep {
        if self.reclaim.attempted.contains(signal) {
            return ReclaimStep::Done;
        }
        if let Some(running) = self.reclaim.running {
            return self.wait_for_executor(ReclaimAttempt { driving: signal, ..running });
        }
        match self.engine.policy().eviction.node_reclaim {
            NodeReclaim::Off => ReclaimStep::Skip,
            NodeReclaim::Kubelet => self.leave_to_kubelet(evaluation, signal),
            NodeReclaim::Cri => self.begin_reclaim(evaluation, signal),
        }
    }

    /// Waits for the executor, which has a time limit; but not for one that hangs in the kernel.
    fn wait_for_executor(&mut self, running: ReclaimAttempt) -> ReclaimStep {
        if mono_ns() < running.since_ns.saturating_add(EXECUTOR_TIMEOUT_NS) {
            self.reclaim.running = Some(running);
            return ReclaimStep::Wait(None);
        }
        self.drop_executor(running.signal, "the thread of node reclaim does not answer");
        ReclaimStep::Done
    }

    /// Gives up the executor. Without it pods are evicted at once.
    fn drop_executor(&mut self, signal: Signal, why: &str) {
        self.reclaim.executor = None;
        self.reclaim.end_attempt(signal);
        self.publish_reclaim(event_log::NodeReclaimEvent::failed(signal, why.to_owned()));
    }

    /// Starts the executor, which removes what the decision asks for.
    fn begin_reclaim(&mut self, evaluation: &Evaluation, signal: Signal) -> ReclaimStep {
        let Some(executor) = &self.reclaim.executor else {
            let why = "no thread of node reclaim: `eviction.nodeReclaim: CRI` is turned on by a restart";
            self.drop_executor(signal, why);
            return ReclaimStep::Skip;
        };
        let short = short_fs(signal, evaluation.layout);
        let removes = |kind| evaluation.layout.reclaims(signal).contains(&kind);
        let goal = goal(evaluation, short, self.engine.policy().rules.are_kubelets());
        let order =
            ReclaimOrder { containers: removes(Reclaim::Containers), images: removes(Reclaim::Images), goal };
        if !executor.begin(order, short) {
            self.drop_executor(signal, "the thread of node reclaim has ended");
            return ReclaimStep::Skip;
        }
        self.reclaim.running = Some(ReclaimAttempt { signal, since_ns: mono_ns(), driving: signal });
        ReclaimStep::Wait(None)
    }

    /// Waits for the kubelet for as long as the node's unused images are estimated to be enough.
    fn leave_to_kubelet(&mut self, evaluation: &Evaluation, signal: Signal) -> ReclaimStep {
        let now_ns = mono_ns();
        let estimate = self.sufficient_garbage(evaluation, signal);
        let left = &mut self.reclaim.left_to_kubelet[signal as usize];
        match (estimate, *left) {
            (Some(_), Some(left)) if now_ns < left.since_ns.saturating_add(KUBELET_WAIT_NS) => {
                ReclaimStep::Wait(Some(left.estimate))
            }
            (Some(estimate), None) => {
                *left = Some(KubeletReclaim { since_ns: now_ns, estimate });
                self.publish_reclaim(event_log::NodeReclaimEvent::left_to_kubelet(signal, estimate));
                ReclaimStep::Wait(Some(estimate))
            }
            (_, left) => {
                self.reclaim.attempted.insert(signal);
                if left.is_some() { ReclaimStep::Done } else { ReclaimStep::Skip }
            }
        }
    }

    /// Estimates what the kubelet can remove. Returns that if it has a threshold of this signal, and the garbage is
    /// sufficient. There is no estimate of inodes.
    pub(super) fn sufficient_garbage(
        &self,
        evaluation: &Evaluation,
        signal: Signal,
    ) -> Option<GarbageEstimate> {
        let policy = self.engine.policy();
        let acts = policy.kubelet_thresholds.iter().any(|threshold| threshold.signal == signal)
            && evaluation.layout.reclaims(signal).contains(&Reclaim::Images);
        let threshold = evaluation.driving_threshold()?;
        let seen = evaluation.observations.get(signal)?;
        if !acts || signal.resource() != Resource::EphemeralStorage {
            return None;
        }
        let goal = threshold.resolved_at(seen.capacity).units_rounded_up();
        let deficit = goal.saturating_sub(seen.available);
        let deficit_bytes = u64::try_from(deficit).unwrap_or_default().max(1);
        let unused_bytes = self.unused_image_bytes();
        (unused_bytes >= deficit_bytes).then_some(GarbageEstimate { unused_bytes, deficit_bytes })
    }

    fn unused_image_bytes(&self) -> u64 {
        let images = self.reclaim.images.iter().map(|image| (image.names.as_slice(), image.size_bytes));
        let pods = self.pod_index.known().iter().filter(|known| !known.pod.finished);
        unused_bytes(images, pods.flat_map(|known| &known.pod.images).map(|name| &**name))
    }

    /// Handles the end of an attempt. A sample must follow.
    pub(super) fn handle_reclaim_report(&mut self, report: Option<ReclaimReport>) {
        if report.is_none() {
            // Its thread has ended.
            self.reclaim.executor = None;
        }
        let Some(ReclaimAttempt { signal, driving, .. }) = self.reclaim.running else { return };
        // Enough for this signal may be too little for the one that drives the decision by now, which then
        // has its own attempt.
        let is_enough = report.as_ref().is_some_and(|report| report.end == ReclaimEnd::Enough);
        match report {
            Some(report) => {
                self.reclaim.end_attempt(signal);
                self.publish_reclaim(event_log::NodeReclaimEvent::ended(signal, report));
            }
            None => self.drop_executor(signal, "the thread of node reclaim has ended"),
        }
        let layout = self.node_sampler.disks.layout();
        // The attempt for the other signal would remove the same garbage.
        let is_over = !is_enough && layout.reclaims(signal) == layout.reclaims(driving);
        if is_over {
            self.reclaim.attempted.insert(driving);
        }
        self.reclaim.has_ended = is_over || driving == signal;
    }

    fn publish_reclaim(&mut self, event: event_log::NodeReclaimEvent) {
        self.telemetry.publish(event_log::Event::NodeReclaim(event), self.clock.now().wall);
    }
}

/// Returns whether a threshold of this signal asks for reclaim. Reclaim need not wait until the pods' usage of
/// the disk is known.
fn wants_reclaim(evaluation: &Evaluation, signal: Signal) -> bool {
    let ends = [EvaluationEnd::AwaitingReclaim, EvaluationEnd::CannotRank, EvaluationEnd::AwaitingSpace];
    ends.contains(&evaluation.end) && !evaluation.layout.reclaims(signal).is_empty()
}

fn short_fs(signal: Signal, layout: DiskLayout) -> ShortFs {
    match signal {
        Signal::NodeFsAvailable | Signal::NodeFsInodesFree => ShortFs::Node,
        Signal::ContainerFsAvailable | Signal::ContainerFsInodesFree if layout.split_image_fs => {
            ShortFs::Node
        }
        _ => ShortFs::Image,
    }
}

/// Returns the space at which reclaim of this file system is enough: all met thresholds are resolved, and under
/// the kubelet's rules also those that are not met.
fn goal(evaluation: &Evaluation, short: ShortFs, are_kubelets: bool) -> Space {
    let mut goal = Space::default();
    // Without a dedicated imagefs the thresholds of nodefs and of imagefs are about one file system.
    let is_shared = !evaluation.layout.dedicated_image_fs;
    let met = evaluation.met.iter().map(|met| met.threshold);
    let others = evaluation.visible.iter().copied().filter(|_| are_kubelets);
    for threshold in met.chain(others).filter_map(|index| evaluation.threshold(index)) {
        let signal = threshold.signal;
        let is_on_it = !evaluation.layout.reclaims(signal).is_empty()
            && (is_shared || short_fs(signal, evaluation.layout) == short);
        let (true, Some(seen)) = (is_on_it, evaluation.observations.get(signal)) else { continue };
        let needed = threshold.resolved_at(seen.capacity).units_rounded_up();
        let needed = u64::try_from(needed).unwrap_or_default();
        match signal.resource() {
            Resource::Inodes => goal.inodes = goal.inodes.max(Some(needed)),
            _ => goal.bytes = goal.bytes.max(needed),
        }
    }
    goal
}
