//! From what is kept to the file and back. Pure: clocks and identity are arguments.

use std::sync::Arc;

use thiserror::Error;

use super::clocks::Clocks;
use super::counts::Count;
use super::recalled::Recalled;
use super::record::{Condition, Document, Envelope, Eviction, Expected, Flight, KIND, Met, SaidOf, VERSION};
use super::{Kept, KeptEviction};
use crate::action::PodName;
use crate::agent::names::Names;
use crate::core::condition::Raised;
use crate::core::decision::LABELS;
use crate::core::memory::{Aloft, Memory, MetSince};
use crate::core::pressure::{CONDITIONS, Said};
use crate::core::release::Release;
use crate::core::signal::{NodeCondition, Signal};
use crate::core::time::Timestamp;
use crate::core::units::GoDuration;

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
pub(super) enum Unusable {
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
    names: Names,
    clocks: Clocks,
    kept: &Kept,
    counts: &[Count],
) -> Result<Vec<u8>, serde_json::Error> {
    let Kept { number: _, memory, evictions, decisions, said } = kept;
    let Memory { looked, met, conditions, flights } = memory;
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
        flights: flights.iter().map(|flight| write_flight(clocks, flight)).collect(),
        evictions: evictions.iter().map(|eviction| write_eviction(clocks, eviction)).collect(),
        said: said.iter().flat_map(|said| write_said(clocks, said)).collect(),
        counts: counts.iter().map(Count::write).collect(),
    };
    serde_json::to_vec(&document)
}

/// What a file says to an agent of this identity, at this moment.
pub(super) fn read(bytes: &[u8], identity: &Identity, clocks: Clocks) -> Result<Recalled, Unusable> {
    let value: serde_json::Value = serde_json::from_slice(bytes)?;
    // What is no object with these fields is no state of ours, whatever else it is.
    let Ok(Envelope { kind, version }) = serde_json::from_value(value.clone()) else {
        return Err(Unusable::Foreign);
    };
    match (&*kind, version) {
        (KIND, VERSION) => {}
        (KIND, version) => return Err(Unusable::Version(version)),
        _ => return Err(Unusable::Foreign),
    }
    let document: Document = serde_json::from_value(value)?;
    if document.boot_id != identity.boot_id {
        return Err(Unusable::Boot(document.boot_id));
    }
    if (&document.node, &document.cgroup_root) != (&identity.node, &identity.cgroup_root) {
        let Document { node, cgroup_root, .. } = document;
        return Err(Unusable::Node { node: node.unwrap_or_else(|| "without a name".into()), cgroup_root });
    }
    if document.times().any(|at| at > clocks.boot_ns) {
        return Err(Unusable::Future);
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
            .chain(self.said.iter().flat_map(|it| [it.since_ns, it.hard_ns]).flatten())
    }

    fn recalled(self, identity: &Identity, clocks: Clocks) -> Recalled {
        let same_hand = self.act == identity.act;
        // What another hand has begun is nothing that this one could go on with.
        let (flights, evictions) =
            if same_hand { (self.flights, self.evictions) } else { Default::default() };
        let conditions = self.conditions.into_iter();
        Recalled {
            written: clocks.steady(self.written_ns),
            memory: Memory {
                looked: self.looked_ns.map(|at| clocks.steady(at)),
                met: self.met.into_iter().map(|met| read_met(clocks, met)).collect(),
                conditions: conditions
                    .map(|Condition { condition, raised_ns }| Raised {
                        condition,
                        at: clocks.steady(raised_ns),
                    })
                    .collect(),
                flights: flights.into_iter().filter_map(|flight| read_flight(clocks, flight)).collect(),
            },
            evictions: evictions.into_iter().map(|eviction| read_eviction(clocks, eviction)).collect(),
            decisions: self.decisions,
            said: read_said(clocks, &self.said),
            names: Names::since(self.first_start_ms),
            counts: self.counts.iter().filter_map(Count::read).collect(),
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

fn write_said(clocks: Clocks, said: &[Said; NodeCondition::COUNT]) -> impl Iterator<Item = SaidOf> {
    let kept = move |at: Option<Timestamp>| at.map(|at| clocks.kept(at));
    CONDITIONS.into_iter().map(move |condition| {
        let Said { status, since, hard_at } = said[condition as usize];
        SaidOf { condition, status, since_ns: kept(since), hard_ns: kept(hard_at) }
    })
}

/// Nothing unless each condition is there.
fn read_said(clocks: Clocks, said: &[SaidOf]) -> Option<[Said; NodeCondition::COUNT]> {
    let steady = |kept: Option<i64>| kept.map(|kept| clocks.steady(kept));
    let of = |condition: NodeCondition| {
        let &SaidOf { condition: _, status, since_ns, hard_ns } =
            said.iter().find(|it| it.condition == condition)?;
        Some(Said { status, since: steady(since_ns), hard_at: steady(hard_ns) })
    };
    let [disk, memory, pids] = CONDITIONS.map(of);
    Some([disk?, memory?, pids?])
}

fn write_flight(clocks: Clocks, flight: &Aloft) -> Flight {
    let Aloft { uid, label, hard, decided_at, since, grace_period_seconds, expected } = flight;
    let expected = Signal::ALL.into_iter().zip(expected);
    let expected = expected.filter(|(_, release)| **release != Release::UNKNOWN);
    Flight {
        uid: uid.clone(),
        label: (*label).into(),
        hard: *hard,
        decided_ns: clocks.kept(*decided_at),
        since_ns: clocks.kept(*since),
        grace_period_seconds: *grace_period_seconds,
        expected: expected
            .map(|(signal, &Release { amount, basis })| Expected { signal, amount, basis })
            .collect(),
    }
}

/// Nothing for a label that nobody gives.
fn read_flight(clocks: Clocks, flight: Flight) -> Option<Aloft> {
    let Flight { uid, label, hard, decided_ns, since_ns, grace_period_seconds, expected: releases } = flight;
    let label = LABELS.into_iter().chain(Signal::ALL.map(Signal::name)).find(|known| **known == *label)?;
    let mut expected = [Release::UNKNOWN; Signal::COUNT];
    for Expected { signal, amount, basis } in releases {
        expected[signal as usize] = Release { amount: amount.max(0), basis };
    }
    let (decided_at, since) = (clocks.steady(decided_ns), clocks.steady(since_ns));
    Some(Aloft { uid, label, hard, decided_at, since, grace_period_seconds, expected })
}

fn write_eviction(clocks: Clocks, eviction: &KeptEviction) -> Eviction {
    let KeptEviction {
        decision,
        pod,
        signal,
        resource,
        hard,
        decided_mono_ns,
        grace_seconds,
        by_api,
        by_kill,
    } = eviction;
    let PodName { uid, namespace, name } = &**pod;
    Eviction {
        decision: *decision,
        uid: uid.clone(),
        namespace: namespace.clone(),
        name: name.clone(),
        signal: *signal,
        resource: *resource,
        hard: *hard,
        decided_ns: clocks.kept_mono(*decided_mono_ns),
        grace_seconds: *grace_seconds,
        by_api: *by_api,
        by_kill: *by_kill,
    }
}

fn read_eviction(clocks: Clocks, eviction: Eviction) -> KeptEviction {
    let Eviction {
        decision,
        uid,
        namespace,
        name,
        signal,
        resource,
        hard,
        decided_ns,
        grace_seconds,
        by_api,
        by_kill,
    } = eviction;
    KeptEviction {
        decision,
        pod: Arc::new(PodName { uid, namespace, name }),
        signal,
        resource,
        hard,
        decided_mono_ns: clocks.mono(decided_ns),
        grace_seconds,
        by_api,
        by_kill,
    }
}

#[cfg(test)]
mod tests;
