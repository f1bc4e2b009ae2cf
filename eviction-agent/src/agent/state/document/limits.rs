//! What counts against limits: those of the pace and of the policy, and kills by the kernel.

use std::sync::Arc;

use super::super::Pace;
use super::super::clocks::Clocks;
use super::super::record::{self, CountedEviction};
use eviction_core::memory::{Counted, PodAt};
use eviction_core::pod::PodName;
use eviction_core::protection::Account;
use eviction_kill::Kill;

/// Kills of a hand: more than any pace that is to be had lets count at a time.
const MOST_KILLS: usize = 1024;

pub(super) fn write_pace(clocks: Clocks, pace: &Pace) -> record::Pace {
    let write = |kills: &[Kill]| {
        let latest = kills.iter().skip(kills.len().saturating_sub(MOST_KILLS));
        latest.map(|kill| write_kill(clocks, kill)).collect()
    };
    let Pace { by_api, by_kill } = pace;
    record::Pace { by_api: write(by_api), by_kill: write(by_kill) }
}

pub(super) fn read_pace(clocks: Clocks, pace: record::Pace) -> Pace {
    let read = |kills: Vec<record::Kill>| {
        let latest = kills.len().saturating_sub(MOST_KILLS);
        kills.into_iter().skip(latest).map(|kill| read_kill(clocks, kill)).collect()
    };
    let record::Pace { by_api, by_kill } = pace;
    Pace { by_api: read(by_api), by_kill: read(by_kill) }
}

fn write_kill(clocks: Clocks, kill: &Kill) -> record::Kill {
    let Kill { pod, at_ns, decision } = kill;
    let PodName { uid, namespace, name } = &**pod;
    let (uid, namespace, name) = (uid.clone(), namespace.clone(), name.clone());
    record::Kill { decision: *decision, uid, namespace, name, at_ns: clocks.kept_mono(*at_ns) }
}

fn read_kill(clocks: Clocks, kill: record::Kill) -> Kill {
    let record::Kill { decision, uid, namespace, name, at_ns } = kill;
    Kill { pod: Arc::new(PodName { uid, namespace, name }), at_ns: clocks.mono(at_ns), decision }
}

pub(super) fn write_counted(clocks: Clocks, counted: &Counted) -> CountedEviction {
    let Counted { at, account } = counted;
    let Account { uid, namespace, owner } = (**account).clone();
    CountedEviction { uid, namespace, owner, at_ns: clocks.kept(*at) }
}

pub(super) fn read_counted(clocks: Clocks, counted: CountedEviction) -> Counted {
    let CountedEviction { uid, namespace, owner, at_ns } = counted;
    Counted { at: clocks.steady(at_ns), account: Arc::new(Account { uid, namespace, owner }) }
}

pub(super) fn write_pod_at(clocks: Clocks, pod: &PodAt) -> record::PodAt {
    let PodAt { uid, at } = pod;
    record::PodAt { uid: uid.clone(), at_ns: clocks.kept(*at) }
}

pub(super) fn read_pod_at(clocks: Clocks, pod: record::PodAt) -> PodAt {
    let record::PodAt { uid, at_ns } = pod;
    PodAt { uid, at: clocks.steady(at_ns) }
}
