//! The run time of the agent's BPF programs, by the kernel's own clock: a share of about 0.1 % would be lost in
//! the noise of any loop. The time to read that clock is measured with an empty program and subtracted; it is
//! longer than a run that finds nothing new. The entry into a program (a tracepoint's, a trampoline's) is not
//! included.

use std::collections::BTreeMap;

use ::tests::empty_program::EmptyProgram;
use ::tests::fdinfo::FdInfo;
use ::tests::program;
use anyhow::{Context as _, Result};

/// The number of runs of programs, and their total time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Runs {
    pub(crate) count: f64,
    pub(crate) ns: f64,
}

impl Runs {
    /// Returns the runs since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self { count: self.count - before.count, ns: self.ns - before.ns }
    }

    /// Returns the sum of both.
    fn plus(self, other: Self) -> Self {
        Self { count: self.count + other.count, ns: self.ns + other.ns }
    }

    /// Returns the mean time of one run.
    pub(crate) fn mean_ns(self) -> f64 {
        self.ns / self.count
    }

    /// Returns the total time without the time that reading the clock adds to each run.
    pub(crate) fn without_clock(self, clock_ns: f64) -> f64 {
        (self.ns - self.count * clock_ns).max(0.0)
    }
}

/// The runs of the programs of a process, by program ID.
#[derive(Clone, Debug)]
pub(crate) struct ProcessRuns(BTreeMap<u32, Runs>);

impl ProcessRuns {
    /// Returns the runs since `before`.
    pub(crate) fn since(mut self, before: &Self) -> Self {
        for (id, runs) in &mut self.0 {
            *runs = runs.since(before.0.get(id).copied().unwrap_or_default());
        }
        self
    }

    /// Returns the runs of all programs together.
    pub(crate) fn sum(&self) -> Runs {
        self.0.values().fold(Runs::default(), |sum, &runs| sum.plus(runs))
    }

    /// Returns the runs of each program that ran, by its name, or by its ID if it was unloaded meanwhile. The
    /// kernel truncates names: programs with the same truncated name are added up.
    pub(crate) fn by_name(&self) -> BTreeMap<String, Runs> {
        let mut named = BTreeMap::<String, Runs>::new();
        for (&id, &runs) in self.0.iter().filter(|(_, runs)| runs.count > 0.0) {
            let sum = named.entry(program::name(id).unwrap_or_else(|_| format!("program {id}"))).or_default();
            *sum = sum.plus(runs);
        }
        named
    }
}

/// Returns the runs of all programs of a process so far while they were
/// [`BpfStats`](::tests::empty_program::BpfStats) (`bpf_prog_show_fdinfo` in kernel/bpf/syscall.c).
pub(crate) fn runs(pid: u32) -> Result<ProcessRuns> {
    let all = FdInfo::all(pid).with_context(|| format!("list the descriptors of process {pid}"))?;
    // By ID, since a process may have several descriptors of a program; the descriptor of a link has no run
    // time.
    let program = |info: &FdInfo| {
        let runs = Runs { count: info.field("run_cnt")? as f64, ns: info.field("run_time_ns")? as f64 };
        Some((u32::try_from(info.field("prog_id")?).ok()?, runs))
    };
    let programs: BTreeMap<_, _> = all.iter().filter_map(program).collect();
    anyhow::ensure!(!programs.is_empty(), "process {pid} has no BPF program");
    Ok(ProcessRuns(programs))
}

/// Returns the run time that the kernel measures for an empty program, while `trigger` makes it run.
pub(crate) fn clock_ns(mut trigger: impl FnMut() -> Result<()>) -> Result<f64> {
    let program = EmptyProgram::attach().context("attach a program that does nothing")?;
    let runs = || program.run().map(|(count, ns)| Runs { count: count as f64, ns: ns as f64 });
    // The first runs are slower, since the processor's caches are cold.
    trigger()?;
    let before = runs()?;
    trigger()?;
    let runs = runs()?.since(before);
    anyhow::ensure!(runs.count >= 100.0, "a program that does nothing ran {} times only", runs.count);
    Ok(runs.mean_ns())
}

#[cfg(test)]
mod tests {
    use super::{ProcessRuns, Runs};

    #[test]
    fn clock_time_is_subtracted_from_each_run() {
        let (before, after) = (Runs { count: 10.0, ns: 1000.0 }, Runs { count: 30.0, ns: 3400.0 });
        let runs = after.since(before);
        assert_eq!((runs.count, runs.mean_ns()), (20.0, 120.0));
        assert_eq!((runs.without_clock(50.0), runs.without_clock(200.0)), (1400.0, 0.0));
    }

    #[test]
    fn all_runs_of_a_program_loaded_later_are_counted() {
        let runs = |count| Runs { count, ns: 10.0 * count };
        let before = ProcessRuns([(1, runs(3.0))].into());
        let since = ProcessRuns([(1, runs(5.0)), (2, runs(7.0))].into()).since(&before);
        assert_eq!(since.0, [(1, runs(2.0)), (2, runs(7.0))].into());
        assert_eq!(since.sum(), runs(9.0));
    }
}
