//! The process that grows until it is ended, and how it is measured from outside.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use tests::agent::{Event, describe};
use tests::death::DeathWatcher;
use tests::growth::{Growth, Pages, WorkingSetGrowth};
use tests::node::{MIB, Node};
use tests::stamps::Record;
use tests::workload::Workload;

use crate::testbed::{GUARD, Testbed};
use crate::timeline::Timeline;

/// How a runaway grows, and the working set that the node must not exceed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan<'a> {
    /// `grow` or `spike`.
    pub(crate) mode: &'a str,
    /// The size to which it grows, bytes.
    pub(crate) size: u64,
    /// The rate, bytes per second.
    pub(crate) rate: u64,
    /// Other arguments.
    pub(crate) more: &'a [&'a str],
    /// The working set that the node must not exceed, bytes.
    pub(crate) max_working_set: u64,
    /// How much the working set may grow meanwhile without the runaway, bytes.
    pub(crate) by_others: u64,
}

impl Plan<'_> {
    /// Returns the usual plan: a process that grows and keeps its memory, and nothing else grows.
    pub(crate) const fn grow(max_working_set: u64) -> Self {
        Self { mode: "grow", size: 352 * MIB, rate: 256 * MIB, more: &[], max_working_set, by_others: 0 }
    }
}

/// A growing process that was let go.
#[derive(Debug)]
pub(crate) struct Runaway {
    process: Workload,
    pod: usize,
    stamps: PathBuf,
    base: u64,
    max_working_set: u64,
    by_others: u64,
    death: Option<DeathWatcher>,
}

impl Runaway {
    /// Starts a runaway in a pod and lets it go.
    pub(crate) fn start(testbed: &Testbed<'_>, node: &Node, pod: usize, plan: Plan<'_>) -> Result<Self> {
        let Plan { mode, size, rate, more, max_working_set, by_others } = plan;
        let stamps = node.file(&format!("stamps-{mode}"));
        let (size, rate, file) = (size.to_string(), rate.to_string(), stamps.display().to_string());
        let mut arguments = vec![mode, "--touch-first", "--size", &size, "--rate", &rate, "--stamps", &file];
        arguments.extend(more);
        let mut process = testbed.process(node.pods[pod].first()?, &arguments)?;
        let base = node.working_set()?;
        let death = DeathWatcher::start(&node.pods[pod].group, process.pid())?;
        process.go()?;
        Ok(Self { process, pod, stamps, base, max_working_set, by_others, death: Some(death) })
    }

    /// Returns its growth until now.
    pub(crate) fn working_set(&self) -> Result<WorkingSetGrowth> {
        Ok(WorkingSetGrowth::new(Growth::of(&self.record()?), self.base, self.max_working_set, Pages::Fresh))
    }

    /// Returns its stamps until now.
    pub(crate) fn record(&self) -> Result<Record> {
        Record::read(&self.stamps)
    }

    /// Waits until it and all other processes of its pod are dead, and records the timeline from the crossing
    /// on, with these other moments: key, time, description.
    pub(crate) fn wait_for_death(
        &mut self,
        testbed: &mut Testbed<'_>,
        decision: &Event,
        others: &[(&'static str, u64, &str)],
    ) -> Result<WorkingSetGrowth> {
        let death = self.death.take().context("its death was waited for before")?;
        let dead = death.wait(testbed.interrupt, GUARD)?;
        let working_set = self.working_set()?;
        let crossed = working_set.crossed().or_else(|| working_set.crossed_by_batched_charges(self.by_others)).with_context(|| {
            let last = working_set.growth().last();
            let (pod, base, value) = (decision.pod(), self.base, &decision.value);
            format!(
                "{pod} was chosen, but the threshold was never crossed: {last:?} above {base} bytes, by {value}"
            )
        })?;
        let what = format!(
            "the working set passed {} MiB, by the growing process's own clock",
            self.max_working_set / MIB
        );
        testbed.timeline = Timeline::crossed(crossed, what);
        testbed.mark_decision(decision);
        for (key, at, what) in others {
            testbed.timeline.mark(key, *at, *what);
        }
        testbed.timeline.mark("dead", dead, "its last process was gone");
        testbed.printer.timeline(testbed);

        let decided = decision.number("decided_mono_ns").context("the decision has no time")?;
        let mib = |ns| working_set.overshoot(ns).map(|bytes| bytes as f64 / MIB as f64);
        testbed.value("victim", decision.pod());
        testbed.value("max_working_set_bytes", self.max_working_set);
        testbed.value("overshoot_at_decision_mib", mib(decided));
        testbed.value("overshoot_at_death_mib", mib(dead));
        testbed.value("crossed_to_decided_us", decision.number("crossed_to_decided_us"));
        Ok(working_set)
    }

    /// Checks that a signal has ended it, and that no process of its pod is left.
    pub(crate) fn check_ended(&mut self, testbed: &mut Testbed<'_>, node: &Node) -> Result<()> {
        let pod = &node.pods[self.pod];
        let left = pod.group.processes();
        let expected = format!("no process of {} is left", pod.full_name());
        testbed.check(expected, left.is_empty(), format_args!("processes {left:?}"));
        let status = self.process.process().wait()?;
        let by = match (self.record()?.term, status.signal()) {
            (Some(_), _) => Some("SIGTERM"),
            (None, Some(9)) => Some("SIGKILL"),
            _ => None,
        };
        testbed.value("victim_ended_by", by);
        let expected = format!("its process was ended by {}", by.unwrap_or("a signal"));
        testbed.check(expected, by.is_some(), describe(status));
        Ok(())
    }

    /// Returns the process.
    pub(crate) fn process(&mut self) -> &mut Workload {
        &mut self.process
    }
}
