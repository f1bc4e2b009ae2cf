//! What counts against limits: those of the pace and of the policy, and kills by the kernel.

use std::sync::Arc;

use super::super::RateLimitState;
use super::super::boottime::Clocks;
use super::super::record::{self, CountedEvictionRecord};
use eviction_core::pod::PodName;
use eviction_core::pods::RateLimitKey;
use eviction_core::state::{CountedEviction, PodEventTime};
use eviction_kill::CountedKill;

/// Kills of a hand: more than any pace that is to be had lets count at a time.
const MOST_KILLS: usize = 1024;

pub(super) fn write_pace(clocks: Clocks, pace: &RateLimitState) -> record::RateLimitRecord {
    let write = |kills: &[CountedKill]| {
        let latest = kills.iter().skip(kills.len().saturating_sub(MOST_KILLS));
        latest.map(|kill| write_kill(clocks, kill)).collect()
    };
    let RateLimitState { by_api, by_kill } = pace;
    record::RateLimitRecord { by_api: write(by_api), by_kill: write(by_kill) }
}

pub(super) fn read_pace(clocks: Clocks, pace: record::RateLimitRecord) -> RateLimitState {
    let read = |kills: Vec<record::Kill>| {
        let latest = kills.len().saturating_sub(MOST_KILLS);
        kills.into_iter().skip(latest).map(|kill| read_kill(clocks, kill)).collect()
    };
    let record::RateLimitRecord { by_api, by_kill } = pace;
    RateLimitState { by_api: read(by_api), by_kill: read(by_kill) }
}

fn write_kill(clocks: Clocks, kill: &CountedKill) -> record::Kill {
    let CountedKill { pod, at_ns, decision } = kill;
    let PodName { uid, namespace, name } = &**pod;
    let (uid, namespace, name) = (uid.clone(), namespace.clone(), name.clone());
    record::Kill { decision: *decision, uid, namespace, name, at_ns: clocks.kept_mono(*at_ns) }
}

fn read_kill(clocks: Clocks, kill: record::Kill) -> CountedKill {
    let record::Kill { decision, uid, namespace, name, at_ns } = kill;
    CountedKill { pod: Arc::new(PodName { uid, namespace, name }), at_ns: clocks.mono(at_ns), decision }
}

pub(super) fn write_counted(clocks: Clocks, counted: &CountedEviction) -> CountedEvictionRecord {
    let CountedEviction { at, account } = counted;
    let RateLimitKey { uid, namespace, owner } = (**account).clone();
    CountedEvictionRecord { uid, namespace, owner, at_ns: clocks.kept(*at) }
}

pub(super) fn read_counted(clocks: Clocks, counted: CountedEvictionRecord) -> CountedEviction {
    let CountedEvictionRecord { uid, namespace, owner, at_ns } = counted;
    CountedEviction { at: clocks.steady(at_ns), account: Arc::new(RateLimitKey { uid, namespace, owner }) }
}

pub(super) fn write_pod_at(clocks: Clocks, pod: &PodEventTime) -> record::PodEventTimeRecord {
    let PodEventTime { uid, at } = pod;
    record::PodEventTimeRecord { uid: uid.clone(), at_ns: clocks.kept(*at) }
}

pub(super) fn read_pod_at(clocks: Clocks, pod: record::PodEventTimeRecord) -> PodEventTime {
    let record::PodEventTimeRecord { uid, at_ns } = pod;
    PodEventTime { uid, at: clocks.steady(at_ns) }
}
