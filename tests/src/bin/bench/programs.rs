//! The time that the agent's BPF programs take, by the kernel's own clock: a share of some 0.1 % would be lost in the
//! noise of any loop. What the reading of that clock takes is held against a program that does nothing; it is more than
//! a look that finds nothing new. The way into a program (a tracepoint's, a trampoline's) is not in it.

use std::collections::BTreeMap;

use ::tests::empty_program::EmptyProgram;
use ::tests::fdinfo::FdInfo;
use ::tests::program;
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

    /// Both.
    fn and(self, other: Self) -> Self {
        Self { count: self.count + other.count, ns: self.ns + other.ns }
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

/// Runs of the programs of a process, by the program's id.
#[derive(Clone, Debug)]
pub(crate) struct AllRuns(BTreeMap<u32, Runs>);

impl AllRuns {
    /// What was since.
    pub(crate) fn since(mut self, before: &Self) -> Self {
        for (id, runs) in &mut self.0 {
            *runs = runs.since(before.0.get(id).copied().unwrap_or_default());
        }
        self
    }

    /// Those of all programs together.
    pub(crate) fn sum(&self) -> Runs {
        self.0.values().fold(Runs::default(), |sum, &runs| sum.and(runs))
    }

    /// Those of each program that ran, by its name; of what is gone meanwhile, by its number. The kernel keeps the begin
    /// of a name: those that begin alike are one.
    pub(crate) fn by_name(&self) -> BTreeMap<String, Runs> {
        let mut named = BTreeMap::<String, Runs>::new();
        for (&id, &runs) in self.0.iter().filter(|(_, runs)| runs.count > 0.0) {
            let sum = named.entry(program::name(id).unwrap_or_else(|_| format!("program {id}"))).or_default();
            *sum = sum.and(runs);
        }
        named
    }
}

/// Runs of all programs of this process so far while they were [`Measured`](::tests::empty_program::Measured)
/// (`bpf_prog_show_fdinfo` in kernel/bpf/syscall.c).
pub(crate) fn runs(pid: u32) -> Result<AllRuns> {
    let all = FdInfo::all(pid).with_context(|| format!("list the descriptors of process {pid}"))?;
    // By id, since a process may have several descriptors of a program; a link's tells no time.
    let program = |info: &FdInfo| {
        let runs = Runs { count: info.field("run_cnt")? as f64, ns: info.field("run_time_ns")? as f64 };
        Some((u32::try_from(info.field("prog_id")?).ok()?, runs))
    };
    let programs: BTreeMap<_, _> = all.iter().filter_map(program).collect();
    anyhow::ensure!(!programs.is_empty(), "process {pid} has no BPF program");
    Ok(AllRuns(programs))
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
    use super::{AllRuns, Runs};

    #[test]
    fn the_clock_is_taken_off_each_run() {
        let (before, after) = (Runs { count: 10.0, ns: 1000.0 }, Runs { count: 30.0, ns: 3400.0 });
        let runs = after.since(before);
        assert_eq!((runs.count, runs.mean_ns()), (20.0, 120.0));
        assert_eq!((runs.less(50.0), runs.less(200.0)), (1400.0, 0.0));
    }

    #[test]
    fn a_program_that_came_later_has_all_its_runs_since() {
        let runs = |count| Runs { count, ns: 10.0 * count };
        let before = AllRuns([(1, runs(3.0))].into());
        let since = AllRuns([(1, runs(5.0)), (2, runs(7.0))].into()).since(&before);
        assert_eq!(since.0, [(1, runs(2.0)), (2, runs(7.0))].into());
        assert_eq!(since.sum(), runs(9.0));
    }
}
