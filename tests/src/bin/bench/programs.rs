//! The time that the agent's BPF programs take, by the kernel's own clock: a share of some 0.1 % would be lost in the
//! noise of any loop. What the reading of that clock takes is held against a program that does nothing; it is more than
//! a look that finds nothing new. The way into a program (a tracepoint's, a trampoline's) is not in it.

use std::collections::BTreeMap;

use ::tests::empty_program::EmptyProgram;
use ::tests::fdinfo::FdInfo;
use anyhow::{Context as _, Result};

/// How often programs ran, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Runs {
    pub(crate) count: f64,
    pub(crate) ns: f64,
}

impl Runs {
    /// What was since.
    pub(crate) fn since(self, before: Self) -> Self {
        Self { count: self.count - before.count, ns: self.ns - before.ns }
    }

    /// The mean of one.
    pub(crate) fn mean_ns(self) -> f64 {
        self.ns / self.count
    }

    /// Without what each run is too long by for being measured.
    pub(crate) fn less(self, clock_ns: f64) -> f64 {
        (self.ns - self.count * clock_ns).max(0.0)
    }
}

/// Runs of all programs of this process so far while they were [`Measured`](::tests::empty_program::Measured)
/// (`bpf_prog_show_fdinfo` in kernel/bpf/syscall.c).
pub(crate) fn runs(pid: u32) -> Result<Runs> {
    let all = FdInfo::all(pid).with_context(|| format!("list the descriptors of process {pid}"))?;
    // By id, since a process may have several descriptors of a program; a link's tells no time.
    let program =
        |info: &FdInfo| Some((info.field("prog_id")?, (info.field("run_cnt")?, info.field("run_time_ns")?)));
    let programs: BTreeMap<u64, (u64, u64)> = all.iter().filter_map(program).collect();
    anyhow::ensure!(!programs.is_empty(), "process {pid} has no BPF program");
    let sum = programs.values().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    Ok(Runs { count: sum.0 as f64, ns: sum.1 as f64 })
}

/// What the kernel says that a program takes which does nothing, while `stir` makes it run.
pub(crate) fn clock_ns(mut stir: impl FnMut() -> Result<()>) -> Result<f64> {
    let program = EmptyProgram::attach().context("attach a program that does nothing")?;
    let runs = || program.run().map(|(count, ns)| Runs { count: count as f64, ns: ns as f64 });
    // The first ones find nothing in the processor's caches.
    stir()?;
    let before = runs()?;
    stir()?;
    let runs = runs()?.since(before);
    anyhow::ensure!(runs.count >= 100.0, "a program that does nothing ran {} times only", runs.count);
    Ok(runs.mean_ns())
}

#[cfg(test)]
mod tests {
    use super::Runs;

    #[test]
    fn the_clock_is_taken_off_each_run() {
        let (before, after) = (Runs { count: 10.0, ns: 1000.0 }, Runs { count: 30.0, ns: 3400.0 });
        let runs = after.since(before);
        assert_eq!((runs.count, runs.mean_ns()), (20.0, 120.0));
        assert_eq!((runs.less(50.0), runs.less(200.0)), (1400.0, 0.0));
    }
}
