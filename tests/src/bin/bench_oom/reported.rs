//! Compares what the agent reported with the kills that happened.

use std::collections::BTreeSet;

use serde_json::Value;
use tests::agent::Event;
use tests::bench::row::Row;

use crate::kill::{Kill, Level};

/// How the kills of a level were reported.
#[derive(Debug, Default)]
pub(crate) struct LevelReport {
    pub(crate) killed: usize,
    /// Kills that were reported exactly once.
    once: usize,
    owners_right: usize,
    /// Owners that the agent itself marks as inferred.
    inferred: usize,
    /// Events with the right pod, container and cgroup.
    names_right: usize,
    /// Events with all values: anonymous pages, oom_score_adj, usage and limit, trigger.
    whole: usize,
    /// The times from the event's timestamp to the line, microseconds.
    delays: Vec<f64>,
    /// The first error.
    wrong: Option<String>,
}

impl LevelReport {
    pub(crate) fn of(level: Level, expected: &[Kill], reported: &[Event]) -> Self {
        let mut report = Self::default();
        for kill in expected.iter().filter(|kill| kill.level == level) {
            report.killed += 1;
            let of_it: Vec<&Event> = reported.iter().filter(|event| is_report_of(event, kill)).collect();
            match of_it.as_slice() {
                [event] => report.check_report(kill, event),
                events => {
                    report.wrong.get_or_insert(format!("{} lines about {:?}", events.len(), kill.pids));
                }
            }
        }
        report
    }

    fn check_report(&mut self, kill: &Kill, event: &Event) {
        self.once += 1;
        let owner_cgroup = (!event.text("limit_cgroup").is_empty()).then(|| event.text("limit_cgroup"));
        let owner_right =
            event.text("limit_scope") == kill.level.owner() && owner_cgroup == kill.owner_cgroup.as_deref();
        let names_right = event.pod() == kill.pod
            && event.text("container") == kill.container
            && event.text("cgroup") == kill.cgroup;
        // A global kill has neither usage nor limit.
        let numbers = ["anon", "file", "shmem", "trigger_pid", "usage", "limit"];
        let numbers = &numbers[..if kill.level == Level::Global { 4 } else { 6 }];
        let whole = numbers.iter().all(|key| event.number(key).is_some())
            && event.value.get("oom_score_adj").is_some_and(|adj| adj == 1000)
            && !event.text("comm").is_empty()
            && !event.text("trigger_comm").is_empty();
        self.owners_right += usize::from(owner_right);
        self.names_right += usize::from(names_right);
        self.whole += usize::from(whole);
        self.inferred += usize::from(event.value.get("inferred").is_some_and(|it| it == true));
        if let Some(stamp) = event.number("mono_ns") {
            self.delays.push(event.read_ns.saturating_sub(stamp) as f64 / 1000.0);
        }
        if !(owner_right && names_right && whole) {
            self.wrong.get_or_insert(format!("{kill:?} was reported as {}", event.value));
        }
    }

    /// Returns whether every kill was reported once, and correctly.
    pub(crate) fn is_correct(&self) -> bool {
        [self.once, self.owners_right, self.names_right, self.whole].iter().all(|n| *n == self.killed)
    }

    pub(crate) fn row(&self, level: Level) -> Value {
        let mut row = Row::new(level.name(), "stamp to line", "us", self.delays.clone())
            .with("killed", self.killed)
            .with("reported_once", self.once)
            .with("owners_right", self.owners_right)
            .with("inferred", self.inferred)
            .with("names_right", self.names_right)
            .with("with_all_fields", self.whole)
            .with("ok", self.is_correct());
        if let Some(wrong) = &self.wrong {
            row = row.with("why", wrong.as_str());
        }
        row.json("oom")
    }

    pub(crate) fn line(&self, level: Level) -> String {
        let Self { killed, once, owners_right, inferred, names_right, whole, delays: _, wrong } = self;
        let mut line = format!(
            "{}: {killed} kills, {once} reported once, {owners_right} owners right ({inferred} inferred), {names_right} names right, {whole} with all figures\n",
            level.name()
        );
        if let Some(wrong) = wrong {
            line.push_str(&format!("  wrong: {wrong}\n"));
        }
        line
    }
}

/// Returns whether an event reports a kill. The event of a group has all of its victims; any other has one.
fn is_report_of(event: &Event, kill: &Kill) -> bool {
    let pids: BTreeSet<u32> = kill.pids.iter().copied().collect();
    match kill.level {
        Level::Group => victims(event) == pids && event.number("oom_group_kills") == Some(pids.len() as u64),
        _ => {
            victims(event).is_empty()
                && event.number("pid").is_some_and(|pid| kill.pids.iter().any(|own| u64::from(*own) == pid))
        }
    }
}

fn victims(event: &Event) -> BTreeSet<u32> {
    let victims = event.value.get("victims").and_then(Value::as_array).into_iter().flatten();
    victims.filter_map(|victim| u32::try_from(victim.get("pid")?.as_u64()?).ok()).collect()
}

/// Counts events about kills that the bench did not cause, of other processes on the machine.
pub(crate) fn count_unexpected(expected: &[Kill], reported: &[Event]) -> usize {
    reported.iter().filter(|event| !expected.iter().any(|kill| is_report_of(event, kill))).count()
}
