//! Evictions: as the engine knows them, and as the hands do.

use std::sync::Arc;

use super::super::EvictionProgress;
use super::super::boottime::Clocks;
use super::super::record::{EvictionRecord, InFlightRecord};
use eviction_core::pod::PodName;
use eviction_core::state::{EvictionState, label_of};

pub(super) fn write_flight(clocks: Clocks, flight: &EvictionState) -> InFlightRecord {
    let EvictionState {
        uid,
        namespace,
        name,
        label,
        hard,
        decided_at,
        since,
        grace_period_seconds,
        expected,
        ended,
    } = flight;
    InFlightRecord {
        uid: uid.clone(),
        namespace: namespace.clone(),
        name: name.clone(),
        label: (*label).into(),
        hard: *hard,
        decided_ns: clocks.kept(*decided_at),
        since_ns: clocks.kept(*since),
        grace_period_seconds: *grace_period_seconds,
        expected: *expected,
        ended: ended.clone(),
    }
}

/// Nothing for a label that nobody gives.
pub(super) fn read_flight(clocks: Clocks, flight: InFlightRecord) -> Option<EvictionState> {
    let InFlightRecord {
        uid,
        namespace,
        name,
        label,
        hard,
        decided_ns,
        since_ns,
        grace_period_seconds,
        expected,
        ended,
    } = flight;
    let label = label_of(&label)?;
    let (decided_at, since) = (clocks.steady(decided_ns), clocks.steady(since_ns));
    Some(EvictionState {
        uid,
        namespace,
        name,
        label,
        hard,
        decided_at,
        since,
        grace_period_seconds,
        expected,
        ended,
    })
}

pub(super) fn write(clocks: Clocks, eviction: &EvictionProgress) -> EvictionRecord {
    let EvictionProgress {
        decision,
        pod,
        signal,
        resource,
        hard,
        decided_mono_ns,
        grace_seconds,
        by_api,
        by_kill,
        told_gone,
    } = eviction;
    let PodName { uid, namespace, name } = &**pod;
    EvictionRecord {
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
        told_gone: *told_gone,
    }
}

pub(super) fn read(clocks: Clocks, eviction: EvictionRecord) -> EvictionProgress {
    let EvictionRecord {
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
        told_gone,
    } = eviction;
    EvictionProgress {
        decision,
        pod: Arc::new(PodName { uid, namespace, name }),
        signal,
        resource,
        hard,
        decided_mono_ns: clocks.mono(decided_ns),
        grace_seconds,
        by_api,
        by_kill,
        told_gone,
    }
}
