//! What some guests told, put onto the tables of an earlier run.

use super::programs::{Kind, PROGRAMS};
use super::table::{FAILED, NOT_RUN, Rows, TITLES};
use super::told::Told;
use super::when::When;
use super::{MACHINES, Machine};

/// The earlier tables with what the guests told in its place: all of a guest that ran every program, else what
/// the programs told that were run.
pub(super) fn onto(earlier: Vec<Rows>, new: &[Rows], all: &[(&Machine, Told)]) -> Vec<Rows> {
    let [guests, rungs, stories, figures @ ..] = new else { return earlier };
    let mut earlier = earlier.into_iter();
    let mut before = || earlier.next().unwrap_or_default();
    let (old_guests, mut old_rungs, mut old_stories) = (before(), before(), before());
    let old_figures: Vec<_> = earlier.collect();
    for (machine, told) in all {
        if is_whole(machine, told) {
            for table in [&mut old_rungs, &mut old_stories] {
                clear(table, machine.name, |_| true);
            }
        } else {
            let ran = |row: &str| told.programs.iter().any(|name| is_of_tests(row, name));
            clear(&mut old_stories, machine.name, ran);
        }
    }
    let (rungs, stories) = (overlay(&old_rungs, rungs), overlay(&old_stories, stories));
    let guests = guests_of(&old_guests, guests, &stories, all);
    let mut tables = vec![guests, rungs, stories];
    for title in TITLES {
        let find = |tables: &[Rows]| tables.iter().find(|table| is_titled(table, title)).cloned();
        let table = figures_of(find(&old_figures).unwrap_or_default(), find(figures));
        tables.extend((table.len() > 1).then_some(table));
    }
    tables
}

fn is_whole(machine: &Machine, told: &Told) -> bool {
    let mut asked = PROGRAMS.iter().filter(|program| program.is_for(machine.cgroups, false));
    asked.all(|program| told.programs.iter().any(|name| name == program.name))
}

/// Whether this row was told by the tests of that name.
fn is_of_tests(row: &str, name: &str) -> bool {
    let kind = PROGRAMS.iter().find(|program| program.name == name).map(|program| program.kind);
    kind == Some(Kind::Tests) && row.strip_prefix(name).is_some_and(|rest| rest.starts_with(" tests"))
}

/// Empties the cells of a guest in these rows.
fn clear(table: &mut Rows, guest: &str, which: impl Fn(&str) -> bool) {
    let Some(column) = table.first().and_then(|head| head.iter().position(|name| name == guest)) else {
        return;
    };
    for row in table.iter_mut().skip(1) {
        if which(&row[0])
            && let Some(cell) = row.get_mut(column)
        {
            NOT_RUN.clone_into(cell);
        }
    }
}

fn cell<'a>(table: &'a Rows, row: &str, column: &str) -> Option<&'a str> {
    let column = table.first()?.iter().skip(1).position(|name| name == column)? + 1;
    let cell = table.iter().skip(1).find(|cells| cells[0] == row)?.get(column)?;
    (cell != NOT_RUN).then_some(cell)
}

/// One line for each that either has, one column for each guest that either has.
fn overlay(old: &Rows, new: &Rows) -> Rows {
    let has =
        |table: &Rows, name: &str| table.first().is_some_and(|head| head[1..].iter().any(|it| it == name));
    let columns: Vec<_> =
        MACHINES.iter().map(|it| it.name).filter(|name| has(old, name) || has(new, name)).collect();
    let mut lines: Vec<&str> = old.iter().skip(1).map(|row| row[0].as_str()).collect();
    for row in new.iter().skip(1) {
        if !lines.contains(&row[0].as_str()) {
            lines.push(&row[0]);
        }
    }
    let corner = new.first().map_or("", |head| head[0].as_str());
    let head = std::iter::once(corner).chain(columns.iter().copied()).map(str::to_owned).collect();
    let rows = lines.iter().map(|line| {
        let found = columns.iter().map(|name| cell(new, line, name).or_else(|| cell(old, line, name)));
        let cells = found.map(|cell| cell.unwrap_or(NOT_RUN).to_owned());
        std::iter::once((*line).to_owned()).chain(cells).collect::<Vec<_>>()
    });
    let told = rows.filter(|row| row[1..].iter().any(|cell| cell != NOT_RUN));
    std::iter::once(head).chain(told).collect()
}

/// A line for each guest: when it ran, and what the table of stories has of it.
fn guests_of(old: &Rows, new: &Rows, stories: &Rows, all: &[(&Machine, Told)]) -> Rows {
    let mut rows: Rows = new.first().cloned().into_iter().collect();
    for machine in MACHINES {
        let find = |table: &Rows| table.iter().skip(1).find(|row| row[0] == machine.name).cloned();
        let told = all.iter().find(|(its, _)| its.name == machine.name).map(|(_, told)| told);
        let row = match (find(old), find(new), told) {
            (old, None, _) => old,
            (Some(old), Some(mut row), Some(told)) if !is_whole(machine, told) => {
                let mut when = When::read(&old[2]);
                for program in &told.programs {
                    when.again(program, told.when.day_of(program));
                }
                row[2] = when.text();
                Some(row)
            }
            (_, new, _) => new,
        };
        let Some(mut row) = row else { continue };
        let wrong = told.map_or(0, |told| told.wrong.len());
        let [passed, failed, skipped] = counted(stories, machine.name);
        for (cell, count) in row[3..].iter_mut().zip([passed, failed + wrong, skipped]) {
            *cell = count.to_string();
        }
        rows.push(row);
    }
    rows
}

/// Passed, failed and skipped.
fn counted(stories: &Rows, guest: &str) -> [usize; 3] {
    let mut counts = [0; 3];
    for row in stories.iter().skip(1) {
        match cell(stories, &row[0], guest) {
            Some(FAILED) => counts[1] += 1,
            Some("skipped") => counts[2] += 1,
            // Also one that says more than that it came true.
            Some(cell) => match cell.strip_suffix(" skipped").and_then(|count| count.parse::<usize>().ok()) {
                Some(count) => counts[2] += count,
                None => counts[0] += 1,
            },
            None => {}
        }
    }
    counts
}

fn is_titled(table: &Rows, title: &str) -> bool {
    table.first().and_then(|head| head.get(1)).is_some_and(|cell| cell == title)
}

/// A line for each guest and story.
fn figures_of(old: Rows, new: Option<Rows>) -> Rows {
    let Some(new) = new else { return old };
    let same = |row: &Vec<String>, other: &Vec<String>| row[..2] == other[..2];
    let mut rows: Rows = old.into_iter().skip(1).filter(|row| !new.iter().any(|it| same(it, row))).collect();
    rows.extend(new.iter().skip(1).cloned());
    rows.sort_by_key(|row| MACHINES.iter().position(|machine| machine.name == row[0]));
    rows.insert(0, new[0].clone());
    rows
}

#[cfg(test)]
mod tests {
    use super::super::table;
    use super::*;

    const HEAD: &str = "@@vm release\n6.1\n@@vm check\n{\"would_start\": true, \"sources\": []}\n";

    fn guest(name: &str, day: &str, told: &str) -> (&'static Machine, Told) {
        let machine = MACHINES.iter().find(|machine| machine.name == name).unwrap();
        (machine, Told::read(&format!("@@vm host k, {day}, load 1\n{HEAD}{told}@@vm end\n")))
    }

    fn tables(all: &[(&Machine, Told)]) -> Vec<Rows> {
        table::read(&table::text(&table::tables(all)))
    }

    #[test]
    fn what_has_no_log_stays_and_what_was_run_again_is_replaced() {
        let failed = "@@vm run bpf-storm\nrunning 1 test\ntest a ... FAILED\n\ntest result: FAILED. 0 passed; 1 failed\n@@vm status bpf-storm 1\n";
        let passed = failed
            .replace("FAILED", "ok")
            .replace("0 passed; 1 failed", "1 passed; 0 failed")
            .replace("bpf-storm 1", "bpf-storm 0");
        let demo = "@@vm run demo\n{\"story\": \"hard | soft\", \"ok\": true, \"values\": {\"slowdown\": 0.125}}\n@@vm status demo 0\n";
        let peer = "@@vm run peer\n{\"story\": \"peer\", \"ok\": true, \"values\": {\"times_less_at_death\": 7}}\n@@vm status peer 0\n";
        let earlier = tables(&[guest("6.1", "01", &format!("{demo}{failed}")), guest("7.2", "01", demo)]);
        let now = [guest("6.1", "02", &format!("{passed}{peer}"))];
        let patched = onto(earlier, &table::tables(&now), &now);
        let text = table::text(&patched);
        assert!(text.contains("| hard \\| soft | ok | ok |"), "{text}");
        assert!(text.contains("| bpf-storm tests | ok | – |"), "{text}");
        let run = "| 6.1 | 6.1 | k, 01, load 1; 02: bpf-storm, peer |";
        assert!(text.contains(&format!("{run} 3 | 0 | 0 |")), "{text}");
        assert!(text.contains("| 6.1 | peer | – | – | – | – | – | 7.0 | – | – |"), "{text}");
        assert!(text.contains("| 7.2 | hard \\| soft | 0.12 | – | – |"), "{text}");
        assert!(text.contains("| 7.2 | 6.1 | k, 01, load 1 | 1 | 0 | 0 |"), "{text}");
        assert_eq!(
            onto(table::read(&text), &table::tables(&[]), &[]),
            patched,
            "nothing new changes nothing"
        );
        assert_eq!(
            onto(table::read(&text), &table::tables(&now), &now),
            patched,
            "nor does the same once more"
        );
    }
}
