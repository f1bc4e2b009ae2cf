//! In which order the thresholds that may evict are dealt with.

use crate::policy::Urgency;
use crate::signal::Resource;
use crate::threshold::{Met, ResolvedThreshold};

impl Urgency {
    /// Writes the thresholds that may evict to `urgent`, the most urgent first.
    pub(super) fn order(self, met: &[Met], lines: &[ResolvedThreshold], urgent: &mut Vec<u8>) {
        urgent.clear();
        match self {
            Self::Kubelet => urgent.extend(most_urgent(met, lines)),
            Self::HardFirst => {
                urgent.extend(met.iter().filter(|met| met.fresh).map(|met| met.line));
                // Stable: what is alike keeps its place in the configuration.
                urgent.sort_by_key(|&line| {
                    lines.get(usize::from(line)).map(|ResolvedThreshold { threshold, .. }| {
                        (!threshold.is_hard(), threshold.signal.resource() != Resource::Memory)
                    })
                });
            }
        }
    }
}

/// The threshold that the pass deals with: `helpers.go: byEvictionPriority`.
///
/// Memory goes before everything else, and nothing is said about the rest. The kubelet's sort
/// turns thresholds of memory around and leaves the others as its map gave them. Of the
/// outcomes it can have, this is the one for thresholds in their configured order: the last
/// one of memory, else the first one.
fn most_urgent(met: &[Met], lines: &[ResolvedThreshold]) -> Option<u8> {
    let is_memory = |met: &&Met| {
        lines
            .get(usize::from(met.line))
            .is_some_and(|line| line.threshold.signal.resource() == Resource::Memory)
    };
    let fresh = || met.iter().filter(|met| met.fresh);
    let urgent = fresh().rfind(is_memory).or_else(|| fresh().next());
    urgent.map(|met| met.line)
}
