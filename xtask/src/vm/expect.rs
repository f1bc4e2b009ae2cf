//! The expectations for a guest besides its stories: it uses the backends that its kernel supports, and tests
//! skip themselves only for known reasons. Otherwise BPF could break on a kernel, with skips as the only sign.

use super::results::GuestResults;
use super::{Cgroups, Machine};

/// The backends that a guest must use, by source.
type Backends = &'static [(&'static str, &'static str)];

/// The backends where programs may read all kernel memory.
const OPEN: Backends = &[
    ("charge", "fexit page_counter_try_charge"),
    ("oom", "fentry oom_kill_process"),
    ("reclaim", "tp_btf mm_vmscan_memcg_reclaim_begin, mm_vmscan_memcg_reclaim_end"),
    ("cgroup", "tp_btf cgroup_mkdir, cgroup_rmdir"),
];
const OPEN_FROM_6_1: Backends = &[("charge near", "fexit page_counter_uncharge")];
/// On 5.10, a program can be attached to a function only once.
const OPEN_5_10: Backends = &[("charge near", "kprobe page_counter_uncharge")];

/// The backends with programs that only follow typed pointers.
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

/// Reasons for features that only other machines have.
const ANYWHERE: Reasons = &["this kernel shows every charge without an on-demand probe"];
const ON_V1: Reasons =
    &["that is cgroup v2's", "no unified hierarchy with cgroup.kill", "no memory.pressure of version 2"];
const ON_V2: Reasons = &[
    "what is frozen by cgroup v2 ends all the same",
    "frozen groups of cgroup v2 can be killed",
    "no memory controller of version 1",
];
/// `bpf_get_current_task_btf` came with 5.11, `cgroup.kill` with 5.14, `process_mrelease` with 5.15, and the
/// tracepoints of xfs later.
const ON_5_10: Reasons = &[
    "no unified hierarchy with cgroup.kill",
    "this kernel has no process_mrelease",
    "this kernel has no bpf_get_current_task_btf",
    "this kernel has no tracepoint xfs_iomap_alloc",
    "no hook on reservations of ext4",
];
const ON_LOCKDOWN: Reasons = &[
    "lockdown=confidentiality",
    "no source of OOM kills can be used here",
    "program of this type cannot use helper bpf_probe_read",
];

/// Adds the expectations that do not hold to the errors in `results`.
pub(super) fn check_expectations(machine: &Machine, results: &mut GuestResults) {
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
            results.errors.push(format!("{source} is watched by {found}, not by {backend}"));
        }
    }
    let mut reasons = [ANYWHERE, of_version].concat();
    reasons.extend(if is_old { ON_5_10 } else { &[] });
    reasons.extend(if is_locked { ON_LOCKDOWN } else { &[] });
    // If all tests of a program were skipped, each of them is reported.
    let skips = results.stories.iter().filter(|story| story.ok.is_none() && !story.name.ends_with(" tests"));
    let unexpected: Vec<_> = skips
        .filter(|story| !reasons.iter().any(|reason| story.why.contains(reason)))
        .map(|story| format!("{} was skipped, which it is not to be here: {}", story.title(), story.why))
        .collect();
    results.errors.extend(unexpected);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::MACHINES;

    fn machine(name: &str) -> &'static Machine {
        MACHINES.iter().find(|machine| machine.name == name).unwrap()
    }

    fn errors_of(name: &str, backends: &[Backends], story: &str) -> Vec<String> {
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
        check_expectations(machine(name), &mut results);
        results.errors
    }

    const FINE: &str = "{\"story\": \"hard\", \"ok\": true}";

    #[test]
    fn a_backend_that_is_not_used_is_a_failure() {
        assert_eq!(errors_of("6.12", &[OPEN, OPEN_FROM_6_1, V2, EVERYWHERE], FINE), [""; 0]);
        assert_eq!(errors_of("5.10-v1", &[OPEN, OPEN_5_10, V1, EVERYWHERE], FINE), [""; 0]);
        assert_eq!(errors_of("7.2-lockdown", &[LOCKED_DOWN, V2, EVERYWHERE], FINE), [""; 0]);
        let errors = errors_of("6.12", &[OPEN, OPEN_5_10, V2], FINE);
        assert!(errors[0].starts_with("charge near is watched by kprobe"), "{errors:?}");
        assert!(errors.iter().any(|it| it.starts_with("task is watched by nothing")), "{errors:?}");
    }

    #[test]
    fn skip_for_an_unexpected_reason_is_a_failure() {
        let skipped = |why: &str| format!("{{\"story\": \"a\", \"skipped\": true, \"why\": \"{why}\"}}");
        let open = [OPEN, OPEN_FROM_6_1];
        let of = |name, backends: [Backends; 2], why: &str| {
            errors_of(name, &[&backends[..], &[V2, EVERYWHERE]].concat(), &skipped(why)).len()
        };
        assert_eq!(of("6.12", open, "frozen groups of cgroup v2 can be killed"), 0);
        assert_eq!(of("6.12", open, "the kernel refuses BPF"), 1);
        assert_eq!(of("6.12", open, "lockdown=confidentiality withholds it"), 1);
        assert_eq!(of("7.2-lockdown", [LOCKED_DOWN, &[]], "lockdown=confidentiality withholds it"), 0);
    }
}
