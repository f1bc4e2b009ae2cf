//! What the agent reported, held against what was done.

use std::collections::BTreeSet;

use serde_json::Value;
use tests::agent::Event;
use tests::bench::row::Row;

use crate::kill::{Kill, Level};

/// How the kills of a level were reported.
#[derive(Debug)]
pub(crate) struct Tally {
    level: Level,
    pub(crate) killed: usize,
    /// Told exactly once.
    once: usize,
    owners_right: usize,
    /// Owners that the agent itself calls a conclusion.
    inferred: usize,
    /// Pod, container and group.
    names_right: usize,
    /// Anonymous pages, oom_score_adj, usage and limit, trigger: all there.
    whole: usize,
    /// From the kernel's stamp to the line, microseconds.
    delays: Vec<f64>,
    /// The first that was wrong.
    wrong: Option<String>,
}

impl Tally {
    pub(crate) fn of(level: Level, expected: &[Kill], reported: &[Event]) -> Self {
        let mut tally = Self {
            level,
            killed: 0,
            once: 0,
            owners_right: 0,
            inferred: 0,
            names_right: 0,
            whole: 0,
            delays: Vec::new(),
            wrong: None,
        };
        for kill in expected.iter().filter(|kill| kill.level == level) {
            tally.killed += 1;
            let of_it: Vec<&Event> = reported.iter().filter(|event| is_of(event, kill)).collect();
            match of_it.as_slice() {
                [event] => tally.judge(kill, event),
                events => {
                    tally.wrong.get_or_insert(format!("{} lines about {:?}", events.len(), kill.pids));
                }
            }
        }
        tally
    }

    fn judge(&mut self, kill: &Kill, event: &Event) {
        self.once += 1;
        let owner_cgroup = (!event.text("limit_cgroup").is_empty()).then(|| event.text("limit_cgroup"));
        let owner_right =
            event.text("limit_scope") == kill.level.owner() && owner_cgroup == kill.owner_cgroup.as_deref();
        let names_right = event.pod() == kill.pod
            && event.text("container") == kill.container
            && event.text("cgroup") == kill.cgroup;
        // The machine has neither usage nor limit.
        let figures = ["anon", "file", "shmem", "trigger_pid", "usage", "limit"];
        let figures = &figures[..if kill.level == Level::Global { 4 } else { 6 }];
        let whole = figures.iter().all(|key| event.number(key).is_some())
            && event.value.get("oom_score_adj").is_some_and(|adj| adj == 1000)
            && !event.text("comm").is_empty()
            && !event.text("trigger_comm").is_empty();
        self.owners_right += usize::from(owner_right);
        self.names_right += usize::from(names_right);
        self.whole += usize::from(whole);
        self.inferred += usize::from(event.value.get("inferred").is_some_and(|it| it == true));
        if let Some(stamp) = event.number("mono_ns") {
            self.delays.push(event.heard_ns.saturating_sub(stamp) as f64 / 1000.0);
        }
        if !(owner_right && names_right && whole) {
            self.wrong.get_or_insert(format!("{kill:?} was reported as {}", event.value));
        }
    }

    /// Whether every one was reported once, and reported right.
    pub(crate) fn is_right(&self) -> bool {
        [self.once, self.owners_right, self.names_right, self.whole].iter().all(|n| *n == self.killed)
    }

    pub(crate) fn row(&self) -> Value {
        let mut row = Row::new(self.level.name(), "stamp to line", "us", self.delays.clone())
            .with("killed", self.killed)
            .with("reported_once", self.once)
            .with("owners_right", self.owners_right)
            .with("inferred", self.inferred)
            .with("names_right", self.names_right)
            .with("figures_whole", self.whole)
            .with("ok", self.is_right());
        if let Some(wrong) = &self.wrong {
            row = row.with("why", wrong.as_str());
        }
        row.json("oom")
    }

    pub(crate) fn line(&self) -> String {
        let Self { level, killed, once, owners_right, inferred, names_right, whole, delays: _, wrong } = self;
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

/// A group's line has all of its victims; any other has one.
fn is_of(event: &Event, kill: &Kill) -> bool {
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

/// Lines about what was not killed here: of somebody else's processes on the machine.
pub(crate) fn strangers(expected: &[Kill], reported: &[Event]) -> usize {
    reported.iter().filter(|event| !expected.iter().any(|kill| is_of(event, kill))).count()
}
