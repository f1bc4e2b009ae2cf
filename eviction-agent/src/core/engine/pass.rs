//! One pass: `eviction_manager.go: synchronize`.

use std::mem::take;
use std::sync::Arc;

use crate::core::decision::{Action, NoPass, Pass, PassEnd, Subject};
use crate::core::layout::DiskLayout;
use crate::core::policy::Foresight;
use crate::core::preferences::Predict;
use crate::core::reading::Why;
use crate::core::sight::Seen;
use crate::core::signal::Resource;
use crate::core::snapshot::Snapshot;
use crate::core::threshold::{Line, Met};
use crate::core::time::Timestamp;

use super::{Engine, Layout};

impl Engine {
    /// Everything from the observations on.
    pub(super) fn pass(
        &mut self,
        at: Timestamp,
        layout: DiskLayout,
        snapshot: Arc<Snapshot>,
        actions: &mut Vec<Action>,
    ) -> Pass {
        let rules = &self.policy.rules;
        let mut sight = Seen {
            refused: take(&mut self.spare.refused),
            imminent: take(&mut self.spare.imminent),
            ..Seen::default()
        };
        let seen = self.sight.look(at, &snapshot, &self.policy.thresholds, rules, &mut sight);
        self.blind = sight.blind;
        let mut pass = Pass {
            end: PassEnd::Calm,
            seen,
            sight,
            met: take(&mut self.spare.met),
            handled: None,
            seen_after_reclaim: None,
            ranked: take(&mut self.spare.ranked),
            spared: take(&mut self.spare.spared),
            unknown_volumes: 0,
            layout,
            lines: Arc::clone(self.thresholds.lines()),
            visible: Arc::clone(self.thresholds.visible()),
            pods: Arc::clone(&self.pods),
            snapshot,
        };
        let predicted = self.look_ahead(&mut pass);
        let gate = pass.sight.gate;
        let acted_on: &[u8] = if predicted == Predict::Evict { &pass.sight.imminent } else { &[] };
        self.thresholds.observe(at, &pass.seen, gate, acted_on, &mut pass.met);
        let raising: &[u8] = if predicted == Predict::Off { &[] } else { &pass.sight.imminent };
        self.raise_conditions(at, &pass.met, raising);
        if self.policy.local_storage_capacity_isolation && self.evict_above_limits(&mut pass, actions) {
            pass.end = PassEnd::LocalStorage;
            return pass;
        }
        pass.handled = most_urgent(&pass.met, &pass.lines);
        let Some(signal) = pass.handled_signal() else {
            return pass;
        };
        actions.push(Action::Announce(signal.resource()));
        let reclaims = layout.reclaims(signal);
        if reclaims.is_empty() || !self.has_tables() {
            self.evict_for_threshold(&mut pass, actions);
        } else {
            actions.extend(reclaims.iter().copied().map(Action::Reclaim));
            pass.end = PassEnd::AwaitingReclaim;
            self.waiting = Some(Box::new(pass.clone()));
        }
        pass
    }

    /// `reclaimNodeLevelResources` from the second look on. Without a look it was no success.
    pub(super) fn resume(
        &mut self,
        second: Result<Arc<Snapshot>, Why>,
        actions: &mut Vec<Action>,
    ) -> Subject {
        let Some(mut pass) = self.waiting.take() else {
            return Subject::NoPass(NoPass::NotWaiting);
        };
        if let Ok(snapshot) = second {
            let seen = self.sight.look_again(&snapshot.node, &self.policy.rules);
            pass.seen_after_reclaim = Some(Box::new(seen));
            if !self.thresholds.any_unresolved(&seen) {
                pass.end = PassEnd::Reclaimed;
                return Subject::Pass(*pass);
            }
        }
        self.evict_for_threshold(&mut pass, actions);
        Subject::Pass(*pass)
    }

    /// Finds the thresholds that are about to be met; returns what is done about them.
    fn look_ahead(&self, pass: &mut Pass) -> Predict {
        let Foresight::Trend { predict, within } = self.policy.rules.foresight else {
            return Predict::Off;
        };
        let mut imminent = take(&mut pass.sight.imminent);
        for &place in pass.visible.iter() {
            let line = pass.line(place);
            if line.is_some_and(|line| pass.sight.is_imminent(line, &pass.seen, within)) {
                imminent.push(place);
            }
        }
        pass.sight.imminent = imminent;
        match predict {
            // Nobody goes by prediction on a look that saw no pod.
            Predict::Evict if pass.snapshot.is_empty() => Predict::Condition,
            predict => predict,
        }
    }

    fn raise_conditions(&mut self, at: Timestamp, met: &[Met], imminent: &[u8]) {
        let lines = self.thresholds.lines();
        let places = met.iter().map(|met| met.line).chain(imminent.iter().copied());
        let raised = places
            .filter_map(|place| lines.get(usize::from(place)))
            .map(|line| line.threshold.signal.condition());
        self.conditions.raise(at, raised, self.policy.pressure_transition_period);
    }

    /// Whether it is known how to collect garbage and to rank pods: not in a layout that the
    /// gates do not allow.
    pub(super) fn has_tables(&self) -> bool {
        matches!(self.layout, Layout::Known { .. })
    }
}

/// The threshold that the pass deals with: `helpers.go: byEvictionPriority`.
///
/// Memory goes before everything else, and nothing is said about the rest. The kubelet's sort
/// turns thresholds of memory around and leaves the others as its map gave them. Of the
/// outcomes it can have, this is the one for thresholds in their configured order: the last
/// one of memory, else the first one.
fn most_urgent(met: &[Met], lines: &[Line]) -> Option<u8> {
    let is_memory = |met: &&Met| {
        lines
            .get(usize::from(met.line))
            .is_some_and(|line| line.threshold.signal.resource() == Resource::Memory)
    };
    let fresh = || met.iter().filter(|met| met.fresh);
    let urgent = fresh().rfind(is_memory).or_else(|| fresh().next());
    urgent.map(|met| met.line)
}
