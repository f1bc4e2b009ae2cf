//! The programs that each guest runs after `check`, in this order: **the list to add to**.
//!
//! There are two kinds of programs, both static files:
//! - *stories*: a binary of the package `tests` (`tests/src/bin/NAME`) that prints JSON lines on standard
//!   output, one for each story: `{"story": "…", "ok": true}` and, where it applies, `"backend"` (the backend
//!   that was used), `"forced"` (the backend that had to be used), `"skipped": true`, `"why"`, `"values"`.
//!   Other lines, of text or of other JSON, are ignored. It is built like the agent that is shipped, so that
//!   what is compared is what is shipped.
//! - *tests*: an integration test of that package (`tests/tests/NAME`), with every check of an unoptimised
//!   build, and run one at a time. It is one row of the table, and each test that skips itself has its own row.
//!
//! So another program needs only a new line here. It runs as root in the guest's own root cgroup, with its own
//! folder as the current one. The agent, `demo`, `workload` and every program of this list are beside it
//! (`tests::binary::find` finds them there; `env!("CARGO_BIN_EXE_…")` is a path of the building machine, and
//! does not work). It must not leave anything running and must not assert timings: a guest is slower than a
//! machine by a factor of 5 to 20.

use super::Cgroups;

/// A program that guests run.
#[derive(Debug)]
pub(super) struct Program {
    /// The name in the guest's output and in the table: one word, and unique.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// The name of the binary, or of the integration test.
    pub(super) target: &'static str,
    /// Its arguments, as a shell reads them.
    pub(super) arguments: &'static str,
    /// The version of cgroups that it requires of its guest, if any.
    pub(super) cgroups: Option<Cgroups>,
    /// Whether it starts `earlyoom/earlyoom`, which is then beside it with its loader and libc.
    pub(super) needs_earlyoom: bool,
    /// Whether it is part of `--short`.
    pub(super) short: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Stories,
    Tests,
}

const fn stories(name: &'static str, arguments: &'static str) -> Program {
    let (target, cgroups, needs_earlyoom) = ("demo", None, false);
    Program { name, kind: Kind::Stories, target, arguments, cgroups, needs_earlyoom, short: false }
}

const fn tests(name: &'static str, target: &'static str) -> Program {
    tests_of(name, target, "")
}

/// Returns some tests of a file, by libtest's filters.
const fn tests_of(name: &'static str, target: &'static str, arguments: &'static str) -> Program {
    Program { kind: Kind::Tests, target, ..stories(name, arguments) }
}

const KILLS: &str = "--json --stories --kills 100 --pods 10 --groups 3 --global 2";

/// The same without the backends that report the owner of the limit themselves.
const KILLS_BY_TRACEPOINT: &str = "--json --stories --kills 40 --pods 5 --groups 2 --global 1 \
    --disable-backend 'fentry oom_kill_process' \
    --disable-backend 'fentry oom_kill_process, oom_kill_memcg_member' \
    --disable-backend 'kprobe oom_kill_process' \
    --disable-backend 'kprobe oom_kill_process, oom_kill_memcg_member'";

/// Without the tests of reclaim, which need containerd, and without those whose times an emulated CPU does not
/// keep: the timer comes before the record of a write or of an allocation, or a decision comes in the middle of an
/// allocation.
const DISK: &str = "--skip reclaim:: --skip a_buffered_write_that_crosses --skip an_allocation_over_the_threshold \
    --skip bytes_in_other_directories --skip each_kind_of_writer_on_ext4 --skip each_kind_of_writer_on_xfs";

/// Four pairs take some five minutes in a guest.
const OVERHEAD: &str = "--json overhead --stories --pairs 4";

/// The stories that change the whole machine.
const OWN_MACHINE: &str = "--json --slow --own-machine 'oom, pod' 'oom, node' 'hard, cgroups come and go' \
    'hard, a CPU goes' 'hard, the clock steps' 'soft, the clock steps' 'disk, the clock steps'";

/// The test is split, so that a part of it can be run again alone. New tests are in the part of the hooks.
const HOOKS: &str =
    "--skip disk:: --skip oom:: --skip reclaim:: --skip kernel_kill:: --skip storm:: --skip tasks::";

pub(super) const PROGRAMS: &[Program] = &[
    Program { short: true, ..stories("demo", "--json --slow") },
    stories("more", OWN_MACHINE),
    Program { cgroups: Some(Cgroups::V2), ..stories("group", "--json 'oom, group'") },
    stories("backends", "--json --each-backend"),
    Program { target: "bench_oom", ..stories("kills", KILLS) },
    Program { target: "bench_oom", ..stories("kills-tracepoint", KILLS_BY_TRACEPOINT) },
    Program { target: "bench", ..stories("overhead", OVERHEAD) },
    tests("privileges", "privileges"),
    tests("sources", "sources"),
    tests("oom", "oom"),
    tests("figures", "memory_values"),
    tests_of("bpf-hooks", "bpf", HOOKS),
    tests_of("bpf-disk", "bpf", "disk::"),
    tests_of("bpf-oom", "bpf", "oom:: reclaim::"),
    tests_of("bpf-kernel-kill", "bpf", "kernel_kill::"),
    tests_of("bpf-storm", "bpf", "storm::"),
    tests_of("bpf-tasks", "bpf", "tasks::"),
    tests("kernel-kill", "kernel_kill"),
    tests("failover", "failover"),
    tests("kill", "kill"),
    tests("limits", "limits"),
    tests_of("disk", "disk", DISK),
    tests("quota", "quota"),
    Program {
        cgroups: Some(Cgroups::V2),
        needs_earlyoom: true,
        ..stories("peer", "--json 'beside earlyoom, 128 MiB/s' 'beside earlyoom, full speed'")
    },
];

impl Program {
    /// Returns whether a guest with these cgroups runs it.
    pub(super) fn is_for(&self, cgroups: Cgroups, short: bool) -> bool {
        self.cgroups.is_none_or(|required| required == cgroups) && (self.short || !short)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn program_names_are_single_words_and_unique() {
        let names: BTreeSet<_> = PROGRAMS.iter().map(|program| program.name).collect();
        assert_eq!(names.len(), PROGRAMS.len());
        assert!(names.iter().all(|name| !name.contains(' ')), "{names:?}");
    }
}
