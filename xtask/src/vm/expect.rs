//! What must be so in a guest, whatever its stories say: a backend that a kernel has is used there, and a test
//! skips itself for a known reason alone. Else BPF could break on a kernel and leave nothing but skips.

use super::results::GuestResults;
use super::{Cgroups, Machine};

/// What each guest is watched by at the least, source by source.
type Backends = &'static [(&'static str, &'static str)];

/// Where programs may read what they like.
const OPEN: Backends = &[
    ("charge", "fexit page_counter_try_charge"),
    ("oom", "fentry oom_kill_process"),
    ("reclaim", "tp_btf mm_vmscan_memcg_reclaim_begin, mm_vmscan_memcg_reclaim_end"),
    ("cgroup", "tp_btf cgroup_mkdir, cgroup_rmdir"),
];
const OPEN_FROM_6_1: Backends = &[("charge near", "fexit page_counter_uncharge")];
/// A program is attached to a function once in its life there.
const OPEN_5_10: Backends = &[("charge near", "kprobe page_counter_uncharge")];

/// Programs that only follow typed pointers.
const LOCKED_DOWN: Backends =
    &[("charge", "tp_btf mod_memcg_state"), ("charge near", "tp_btf count_memcg_events")];

const EVERYWHERE: Backends = &[
    ("task", "tp_btf sched_process_fork, sched_process_exec, sched_process_exit"),
    ("timer", "timerfd"),
    ("control loop thread", "SCHED_FIFO"),
    ("memory lock", "mlockall on fault"),
    ("oom protection", "oom_score_adj -999"),
];

const V1: Backends = &[("usage", "cgroup v1 threshold")];
const V2: Backends = &[("pressure", "memory.pressure trigger")];

/// Parts of the reasons for which a test may skip itself.
type Reasons = &'static [&'static str];

/// What only other machines have.
const ANYWHERE: Reasons = &["this kernel shows every charge without a dense hook"];
const ON_V1: Reasons =
    &["that is cgroup v2's", "no unified hierarchy with cgroup.kill", "no memory.pressure of version 2"];
const ON_V2: Reasons = &[
    "what is frozen by cgroup v2 ends all the same",
    "frozen groups of cgroup v2 can be killed",
    "no memory controller of version 1",
];
/// `cgroup.kill` came with 5.14, `process_mrelease` with 5.15.
const ON_5_10: Reasons = &["no unified hierarchy with cgroup.kill", "this kernel has no process_mrelease"];
const ON_LOCKDOWN: Reasons = &[
    "lockdown=confidentiality",
    "or a lockdown",
    "no source of OOM kills can be used here",
    "no iterator",
    "program of this type cannot use helper bpf_probe_read",
];

/// Adds what is not as it must be to what went wrong.
pub(super) fn judge(machine: &Machine, results: &mut GuestResults) {
    if results.release.is_empty() {
        return;
    }
    let is_locked = machine.append.contains("lockdown=confidentiality");
    let is_old = machine.series == "5.10";
    let by_kernel = match (is_locked, is_old) {
        (true, _) => [LOCKED_DOWN, &[]],
        (_, true) => [OPEN, OPEN_5_10],
        _ => [OPEN, OPEN_FROM_6_1],
    };
    let (by_version, of_version) = match machine.cgroups {
        Cgroups::V1 => (V1, ON_V1),
        Cgroups::V2 => (V2, ON_V2),
    };
    for (source, backend) in by_kernel.into_iter().chain([by_version, EVERYWHERE]).flatten() {
        let found = results
            .backends
            .iter()
            .find(|(name, _)| name == source)
            .map_or("nothing", |(_, backend)| backend);
        if found != *backend {
            results.wrong.push(format!("{source} is watched by {found}, not by {backend}"));
        }
    }
    let mut reasons = [ANYWHERE, of_version].concat();
    reasons.extend(if is_old { ON_5_10 } else { &[] });
    reasons.extend(if is_locked { ON_LOCKDOWN } else { &[] });
    // A program of which nothing is left was skipped test by test.
    let skips = results.stories.iter().filter(|story| story.ok.is_none() && !story.name.ends_with(" tests"));
    let wrong: Vec<_> = skips
        .filter(|story| !reasons.iter().any(|reason| story.why.contains(reason)))
        .map(|story| format!("{} was skipped, which it is not to be here: {}", story.title(), story.why))
        .collect();
    results.wrong.extend(wrong);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::MACHINES;

    fn machine(name: &str) -> &'static Machine {
        MACHINES.iter().find(|machine| machine.name == name).unwrap()
    }

    fn wrong(name: &str, backends: &[Backends], story: &str) -> Vec<String> {
        let sources: Vec<_> = backends
            .iter()
            .flat_map(|backends| backends.iter())
            .map(|(source, backend)| serde_json::json!({"source": source, "backend": backend}))
            .collect();
        let check = serde_json::json!({"would_start": true, "sources": sources});
        let mut results = GuestResults::read(&format!(
            "@@vm host k\n@@vm release\n6.12.0\n@@vm check\n{check}\n@@vm run demo\n{story}\n@@vm status demo 0\n\
             @@vm leftovers\n@@vm end\n"
        ));
        judge(machine(name), &mut results);
        results.wrong
    }

    const FINE: &str = "{\"story\": \"hard\", \"ok\": true}";

    #[test]
    fn a_backend_that_is_not_used_is_a_failure() {
        assert_eq!(wrong("6.12", &[OPEN, OPEN_FROM_6_1, V2, EVERYWHERE], FINE), [""; 0]);
        assert_eq!(wrong("5.10-v1", &[OPEN, OPEN_5_10, V1, EVERYWHERE], FINE), [""; 0]);
        assert_eq!(wrong("7.2-lockdown", &[LOCKED_DOWN, V2, EVERYWHERE], FINE), [""; 0]);
        let wrong = wrong("6.12", &[OPEN, OPEN_5_10, V2], FINE);
        assert!(wrong[0].starts_with("charge near is watched by kprobe"), "{wrong:?}");
        assert!(wrong.iter().any(|it| it.starts_with("task is watched by nothing")), "{wrong:?}");
    }

    #[test]
    fn a_skip_for_another_reason_is_a_failure() {
        let skipped = |why: &str| format!("{{\"story\": \"a\", \"skipped\": true, \"why\": \"{why}\"}}");
        let open = [OPEN, OPEN_FROM_6_1];
        let of = |name, backends: [Backends; 2], why: &str| {
            wrong(name, &[&backends[..], &[V2, EVERYWHERE]].concat(), &skipped(why)).len()
        };
        assert_eq!(of("6.12", open, "frozen groups of cgroup v2 can be killed"), 0);
        assert_eq!(of("6.12", open, "the kernel refuses BPF"), 1);
        assert_eq!(of("6.12", open, "lockdown=confidentiality withholds it"), 1);
        assert_eq!(of("7.2-lockdown", [LOCKED_DOWN, &[]], "lockdown=confidentiality withholds it"), 0);
    }
}
