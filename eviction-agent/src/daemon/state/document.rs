//! From what is kept to the file and back. Pure: clocks and identity are arguments.

mod evictions;
mod limits;

use thiserror::Error;

use super::LoopState;
use super::boottime::Clocks;
use super::record::{Condition, Document, Envelope, KIND, Met, PublishedConditionRecord, VERSION};
use super::restore::RestoredState;
use crate::daemon::decision_id::DecisionIds;
use eviction_core::condition::Raised;
use eviction_core::node_conditions::pressure::{CONDITIONS, PublishedCondition};
use eviction_core::signal::NodeCondition;
use eviction_core::state::{EngineState, MetSince};
use eviction_core::time::Timestamp;
use eviction_core::units::GoDuration;

/// What a file must agree with to be of use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) boot_id: Box<str>,
    /// The name of the node's object, where the agent has one.
    pub(crate) node: Option<Box<str>>,
    pub(crate) cgroup_root: Box<str>,
    pub(crate) act: Box<str>,
}

/// Why a file is of no use.
#[derive(Debug, Error)]
pub(super) enum UnusableState {
    #[error("it is spoiled: {0}")]
    Spoiled(#[from] serde_json::Error),
    #[error("it is something else")]
    Foreign,
    #[error("it is of version {0}; this agent knows version {VERSION}")]
    Version(u64),
    #[error("it is of another boot of this machine, {0}")]
    Boot(Box<str>),
    #[error("it is of another node, {node} below cgroup {cgroup_root}")]
    Node { node: Box<str>, cgroup_root: Box<str> },
    #[error("it holds times that are still to come")]
    Future,
}

/// The file's content.
pub(super) fn write(
    identity: &Identity,
    names: DecisionIds,
    clocks: Clocks,
    kept: &LoopState,
) -> Result<Vec<u8>, serde_json::Error> {
    let LoopState { number: _, memory, evictions: under_way, pace, decisions, said } = kept;
    let EngineState { looked, met, conditions, flights, counted, oom_killed, forbidden, held_until } = memory;
    let Identity { boot_id, node, cgroup_root, act } = identity.clone();
    let document = Document {
        kind: KIND.into(),
        version: VERSION,
        boot_id,
        node,
        cgroup_root,
        act,
        written_ns: clocks.boot_ns,
        looked_ns: looked.map(|at| clocks.kept(at)),
        decisions: *decisions,
        first_start_ms: names.first_start_ms(),
        met: met.iter().map(|met| write_met(clocks, met)).collect(),
        conditions: conditions
            .iter()
            .map(|&Raised { condition, at }| Condition { condition, raised_ns: clocks.kept(at) })
            .collect(),
        flights: flights.iter().map(|flight| evictions::write_flight(clocks, flight)).collect(),
        evictions: under_way.iter().map(|eviction| evictions::write(clocks, eviction)).collect(),
        pace: limits::write_pace(clocks, pace),
        counted: counted.iter().map(|counted| limits::write_counted(clocks, counted)).collect(),
        oom_killed: oom_killed.iter().map(|pod| limits::write_pod_at(clocks, pod)).collect(),
        forbidden: forbidden.iter().map(|pod| limits::write_pod_at(clocks, pod)).collect(),
        held_until_ns: held_until.map(|at| clocks.kept(at)),
        said: said.iter().flat_map(|said| write_said(clocks, said)).collect(),
    };
    serde_json::to_vec(&document)
}

/// What a file says to an agent of this identity, at this moment.
pub(super) fn read(
    bytes: &[u8],
    identity: &Identity,
    clocks: Clocks,
) -> Result<RestoredState, UnusableState> {
    let value: serde_json::Value = serde_json::from_slice(bytes)?;
    // What is no object with these fields is no state of ours, whatever else it is.
    let Ok(Envelope { kind, version }) = serde_json::from_value(value.clone()) else {
        return Err(UnusableState::Foreign);
    };
    match (&*kind, version) {
        (KIND, VERSION) => {}
        (KIND, version) => return Err(UnusableState::Version(version)),
        _ => return Err(UnusableState::Foreign),
    }
    let document: Document = serde_json::from_value(value)?;
    if document.boot_id != identity.boot_id {
        return Err(UnusableState::Boot(document.boot_id));
    }
    if (&document.node, &document.cgroup_root) != (&identity.node, &identity.cgroup_root) {
        let Document { node, cgroup_root, .. } = document;
        return Err(UnusableState::Node {
            node: node.unwrap_or_else(|| "without a name".into()),
            cgroup_root,
        });
    }
    if document.times().any(|at| at > clocks.boot_ns) {
        return Err(UnusableState::Future);
    }
    Ok(document.recalled(identity, clocks))
}

impl Document {
    fn times(&self) -> impl Iterator<Item = i64> {
        let flights = self.flights.iter().flat_map(|it| [it.decided_ns, it.since_ns]);
        let own = [self.written_ns].into_iter().chain(self.looked_ns);
        own.chain(self.met.iter().map(|it| it.first_seen_ns))
            .chain(self.conditions.iter().map(|it| it.raised_ns))
            .chain(flights)
            .chain(self.evictions.iter().map(|it| it.decided_ns))
            .chain(self.pace.by_api.iter().chain(&self.pace.by_kill).map(|it| it.at_ns))
            .chain(self.counted.iter().map(|it| it.at_ns))
            .chain(self.oom_killed.iter().chain(&self.forbidden).map(|it| it.at_ns))
            .chain(self.said.iter().flat_map(|it| [it.since_ns, it.hard_ns]).flatten())
    }

    fn recalled(self, identity: &Identity, clocks: Clocks) -> RestoredState {
        let same_hand = self.act == identity.act;
        // What another hand has begun is nothing that this one could go on with, nor does it count.
        let (flights, under_way, pace, counted) = match same_hand {
            true => (self.flights, self.evictions, self.pace, self.counted),
            false => Default::default(),
        };
        let conditions = self.conditions.into_iter();
        let (oom_killed, forbidden) = (self.oom_killed.into_iter(), self.forbidden.into_iter());
        RestoredState {
            written: clocks.steady(self.written_ns),
            memory: EngineState {
                looked: self.looked_ns.map(|at| clocks.steady(at)),
                met: self.met.into_iter().map(|met| read_met(clocks, met)).collect(),
                conditions: conditions
                    .map(|Condition { condition, raised_ns }| Raised {
                        condition,
                        at: clocks.steady(raised_ns),
                    })
                    .collect(),
                flights: flights.into_iter().filter_map(|it| evictions::read_flight(clocks, it)).collect(),
                counted: counted.into_iter().map(|it| limits::read_counted(clocks, it)).collect(),
                oom_killed: oom_killed.map(|pod| limits::read_pod_at(clocks, pod)).collect(),
                forbidden: forbidden.map(|pod| limits::read_pod_at(clocks, pod)).collect(),
                held_until: self.held_until_ns.map(|at| clocks.steady(at)),
            },
            evictions: under_way.into_iter().map(|it| evictions::read(clocks, it)).collect(),
            pace: limits::read_pace(clocks, pace),
            decisions: self.decisions,
            said: read_said(clocks, &self.said),
            names: DecisionIds::since(self.first_start_ms),
        }
    }
}

fn write_met(clocks: Clocks, met: &MetSince) -> Met {
    let MetSince { signal, value, grace_period, first_seen, ripe } = met;
    Met {
        signal: *signal,
        value: value.clone(),
        grace_ns: grace_period.as_nanos(),
        first_seen_ns: clocks.kept(*first_seen),
        ripe: *ripe,
    }
}

fn read_met(clocks: Clocks, met: Met) -> MetSince {
    let Met { signal, value, grace_ns, first_seen_ns, ripe } = met;
    let (grace_period, first_seen) = (GoDuration::from_nanos(grace_ns), clocks.steady(first_seen_ns));
    MetSince { signal, value, grace_period, first_seen, ripe }
}

fn write_said(
    clocks: Clocks,
    said: &[PublishedCondition; NodeCondition::COUNT],
) -> impl Iterator<Item = PublishedConditionRecord> {
    let kept = move |at: Option<Timestamp>| at.map(|at| clocks.kept(at));
    CONDITIONS.into_iter().map(move |condition| {
        let PublishedCondition { status, since, hard_at } = said[condition as usize];
        PublishedConditionRecord { condition, status, since_ns: kept(since), hard_ns: kept(hard_at) }
    })
}

/// Nothing unless each condition is there.
fn read_said(
    clocks: Clocks,
    said: &[PublishedConditionRecord],
) -> Option<[PublishedCondition; NodeCondition::COUNT]> {
    let steady = |kept: Option<i64>| kept.map(|kept| clocks.steady(kept));
    let of = |condition: NodeCondition| {
        let &PublishedConditionRecord { condition: _, status, since_ns, hard_ns } =
            said.iter().find(|it| it.condition == condition)?;
        Some(PublishedCondition { status, since: steady(since_ns), hard_at: steady(hard_ns) })
    };
    let [disk, memory, pids] = CONDITIONS.map(of);
    Some([disk?, memory?, pids?])
}

#[cfg(test)]
mod tests;
