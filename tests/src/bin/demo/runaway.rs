//! The process that gets out of hand, and what is known of it from outside.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use tests::agent::{Event, describe};
use tests::death::Death;
use tests::growth::{Climb, Growth, Pages};
use tests::node::{MIB, Node};
use tests::stamps::Record;
use tests::workload::Workload;

use crate::testbed::{GUARD, Testbed};
use crate::timeline::Timeline;

/// How it behaves, and which working set of the node it must not bring about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan<'a> {
    /// `grow` or `spike`.
    pub(crate) mode: &'a str,
    /// As far as it goes.
    pub(crate) size: u64,
    /// Bytes per second.
    pub(crate) rate: u64,
    /// Arguments besides.
    pub(crate) more: &'a [&'a str],
    /// The line.
    pub(crate) line: u64,
    /// By how much the working set may grow meanwhile without it.
    pub(crate) by_others: u64,
}

/// A growing process that was let go.
#[derive(Debug)]
pub(crate) struct Runaway {
    process: Workload,
    pod: usize,
    stamps: PathBuf,
    base: u64,
    line: u64,
    by_others: u64,
    death: Option<Death>,
}

impl Runaway {
    /// Starts one in a pod and lets it go.
    pub(crate) fn start(testbed: &Testbed<'_>, node: &Node, pod: usize, plan: Plan<'_>) -> Result<Self> {
        let Plan { mode, size, rate, more, line, by_others } = plan;
        let stamps = node.file(&format!("stamps-{mode}"));
        let (size, rate, file) = (size.to_string(), rate.to_string(), stamps.display().to_string());
        let mut arguments = vec![mode, "--touch-first", "--size", &size, "--rate", &rate, "--stamps", &file];
        arguments.extend(more);
        let mut process = testbed.process(node.pods[pod].first()?, &arguments)?;
        let base = node.working_set()?;
        let death = Death::of(&node.pods[pod].group, process.pid())?;
        process.go()?;
        Ok(Self { process, pod, stamps, base, line, by_others, death: Some(death) })
    }

    /// How it has grown until now.
    pub(crate) fn climb(&self) -> Result<Climb> {
        Ok(Climb::new(Growth::of(&self.record()?), self.base, self.line, Pages::Fresh))
    }

    /// What it has stamped until now.
    pub(crate) fn record(&self) -> Result<Record> {
        Record::read(&self.stamps)
    }

    /// Waits for its death and for that of all others in its pod, and puts down what happened
    /// when, from the crossing on.
    pub(crate) fn follow(&mut self, testbed: &mut Testbed<'_>, decision: &Event) -> Result<Climb> {
        self.follow_to(testbed, decision, &[])
    }

    /// The same with other moments: key, time, what happened.
    pub(crate) fn follow_to(
        &mut self,
        testbed: &mut Testbed<'_>,
        decision: &Event,
        others: &[(&'static str, u64, &str)],
    ) -> Result<Climb> {
        let death = self.death.take().context("its death was waited for before")?;
        let dead = death.at(testbed.interrupt, GUARD)?;
        let climb = self.climb()?;
        let crossed = climb.crossed().or_else(|| climb.crossed_ahead(self.by_others)).with_context(|| {
            let last = climb.growth().last();
            let (pod, base, value) = (decision.pod(), self.base, &decision.value);
            format!(
                "{pod} was chosen, but the line was never crossed: {last:?} above {base} bytes, by {value}"
            )
        })?;
        let what =
            format!("the working set passed {} MiB, by the growing process's own clock", self.line / MIB);
        testbed.timeline = Timeline::crossed(crossed, what);
        testbed.mark_decision(decision);
        for (key, at, what) in others {
            testbed.timeline.mark(key, *at, *what);
        }
        testbed.timeline.mark("dead", dead, "its last process was gone");
        testbed.printer.timeline(testbed);

        let decided = decision.number("decided_mono_ns").context("the decision has no time")?;
        let mib = |ns| climb.overshoot(ns).map(|bytes| bytes as f64 / MIB as f64);
        testbed.value("victim", decision.pod());
        testbed.value("line_bytes", self.line);
        testbed.value("overshoot_at_decision_mib", mib(decided));
        testbed.value("overshoot_at_death_mib", mib(dead));
        testbed.value("crossed_to_decided_us", decision.number("crossed_to_decided_us"));
        Ok(climb)
    }

    /// Checks that it is dead because somebody ended it, and that nothing of its pod is left.
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

    /// The process.
    pub(crate) fn process(&mut self) -> &mut Workload {
        &mut self.process
    }
}
