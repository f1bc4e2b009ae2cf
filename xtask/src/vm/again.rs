//! Some programs run once more in a guest that has told before: what they tell takes the place of what
//! they had told, and the rest stays.

use super::guest::WRONG;
use super::host::HOST;
use super::init::{LEFTOVERS, MARK, RUN, STATUS};

/// The mark of the line that says so.
pub(super) const AGAIN: &str = "again ";

/// What is found out before any program is run: of the agent that was run last.
const CHECKS: [&str; 2] = ["check", "check log"];

/// The log of the earlier run with the sections of the later one in it; `None` if the two are not of the
/// same kernel.
pub(super) fn merge(earlier: &str, later: &str) -> Option<String> {
    let (before, (package, words)) = (host(earlier)?, host(later)?);
    if before.0 != package {
        return None;
    }
    let sections = sections(later);
    let is_again = |name: &str| sections.iter().any(|(again, _)| *again == name);
    let ended = |lines: &[&str]| lines.last().is_some_and(|line| is_mark(line, STATUS));
    // What went wrong with a guest was its own affair, once all that it ran then has ended.
    let is_over = self::sections(earlier).iter().all(|(name, lines)| ended(lines) || is_again(name));
    let mut merged: Vec<&str> = earlier.lines().filter(|line| !(is_over && is_mark(line, WRONG))).collect();
    for (name, lines) in &sections {
        match place(&merged, name) {
            Some((from, to)) => drop(merged.splice(from..to, lines.iter().copied())),
            None => {
                let end = merged.iter().position(|line| marked(line) == Some(LEFTOVERS));
                let end = end.unwrap_or(merged.len());
                merged.splice(end..end, lines.iter().copied());
            }
        }
    }
    let later_lines: Vec<&str> = later.lines().collect();
    for name in CHECKS {
        if let (Some((from, to)), Some((begin, end))) = (part(&merged, name), part(&later_lines, name)) {
            merged.splice(from..to, later_lines[begin..end].iter().copied());
        }
    }
    let names: Vec<&str> = sections.iter().map(|(name, _)| *name).collect();
    let again = format!("{MARK}{AGAIN}{} again: {words}", names.join(", "));
    let mut text = String::new();
    for line in &merged {
        text.push_str(line);
        text.push('\n');
        if marked(line).is_some_and(|mark| mark.starts_with(HOST)) {
            text.push_str(&again);
            text.push('\n');
        }
        if marked(line) == Some(LEFTOVERS) {
            let left = later.lines().skip_while(|line| marked(line) != Some(LEFTOVERS)).skip(1);
            left.take_while(|line| marked(line).is_none()).for_each(|line| text.extend([line, "\n"]));
        }
    }
    // That the earlier run was stopped is over as well.
    if is_over && merged.iter().all(|line| marked(line) != Some(LEFTOVERS)) {
        let end = later.lines().skip_while(|line| marked(line) != Some(LEFTOVERS));
        end.filter(|line| !is_mark(line, WRONG)).for_each(|line| text.extend([line, "\n"]));
    }
    for wrong in later.lines().filter(|line| is_mark(line, WRONG)) {
        text.extend([wrong, "\n"]);
    }
    Some(text)
}

/// From where to where the lines of a part go that is no program's.
fn part(lines: &[&str], name: &str) -> Option<(usize, usize)> {
    block(lines, |mark| mark == name).filter(|(_, to)| *to < lines.len())
}

/// From such a mark to the next one, or to the end.
fn block(lines: &[&str], begins: impl Fn(&str) -> bool) -> Option<(usize, usize)> {
    let from = lines.iter().position(|line| marked(line).is_some_and(&begins))?;
    let length = lines[from + 1..].iter().position(|line| marked(line).is_some());
    Some((from, length.map_or(lines.len(), |length| from + 1 + length)))
}

/// The package of the kernel, and what else the host said of the run.
fn host(log: &str) -> Option<(&str, &str)> {
    log.lines().find_map(|line| marked(line)?.strip_prefix(HOST))?.split_once(", ")
}

/// The programs that a log is about, each with its lines.
fn sections(log: &str) -> Vec<(&str, Vec<&str>)> {
    let lines: Vec<&str> = log.lines().collect();
    let names = lines.iter().filter_map(|line| marked(line)?.strip_prefix(RUN));
    let section = |name| place(&lines, name).map(|(from, to)| (name, lines[from..to].to_vec()));
    names.filter_map(section).collect()
}

/// From where to where a program's lines go: to its status, or as far as it came.
fn place(lines: &[&str], name: &str) -> Option<(usize, usize)> {
    let (from, to) = block(lines, |mark| mark.strip_prefix(RUN) == Some(name))?;
    let is_status =
        |line: &str| marked(line).and_then(|mark| mark.strip_prefix(STATUS)?.strip_prefix(name)).is_some();
    Some((from, to + usize::from(lines.get(to).is_some_and(|line| is_status(line)))))
}

/// Whether it is a mark of this kind.
fn is_mark(line: &str, kind: &str) -> bool {
    marked(line).is_some_and(|mark| mark.starts_with(kind))
}

fn marked(line: &str) -> Option<&str> {
    line.strip_prefix(MARK)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLIER: &str = "@@vm host k1, one\n@@vm release\n6.1\n@@vm run a\nold a\n@@vm status a 1\n\
        @@vm at 5\n@@vm run b\nold b\n@@vm status b 0\n@@vm leftovers\n@@vm end\n";

    #[test]
    fn what_is_found_out_first_is_that_of_the_later_agent() {
        let log = |check: &str| {
            format!(
                "@@vm host k1, one\n@@vm release\n6.1\n@@vm check\n{check}\n@@vm check log\n{check}\n\
            @@vm run a\na\n@@vm status a 0\n@@vm leftovers\n@@vm end\n"
            )
        };
        let merged = merge(&log("old"), &log("new\nlines")).unwrap();
        assert!(!merged.contains("old"), "{merged}");
        assert!(
            merged.contains("@@vm check\nnew\nlines\n@@vm check log\nnew\nlines\n@@vm run a\n"),
            "{merged}"
        );
    }

    #[test]
    fn what_was_run_again_is_replaced_and_the_rest_stays() {
        let later = "@@vm host k1, two\n@@vm release\n6.1\n@@vm run a\nnew a\n@@vm status a 0\n@@vm run c\nc\n\
            @@vm status c 0\n@@vm leftovers\n/left\n@@vm end\n";
        assert_eq!(
            merge(EARLIER, later).unwrap(),
            "@@vm host k1, one\n@@vm again a, c again: two\n@@vm release\n6.1\n@@vm run a\nnew a\n\
             @@vm status a 0\n@@vm at 5\n@@vm run b\nold b\n@@vm status b 0\n@@vm run c\nc\n@@vm status c 0\n\
             @@vm leftovers\n/left\n@@vm end\n"
        );
    }

    #[test]
    fn a_program_that_does_not_end_now_has_ended_before_no_more() {
        let later = "@@vm host k1, two\n@@vm run b\nnew\n@@vm wrong it did not end in time\n";
        let merged = merge(EARLIER, later).unwrap();
        assert!(merged.contains("@@vm run b\nnew\n@@vm leftovers"), "{merged}");
        assert!(merged.ends_with("@@vm wrong it did not end in time\n"), "{merged}");
    }

    #[test]
    fn what_went_wrong_is_over_when_all_that_it_broke_off_has_ended() {
        let broken = "@@vm host k1, one\n@@vm run a\na\n@@vm wrong it did not end in time\n";
        let elsewhere = "@@vm host k1, two\n@@vm run b\nb\n@@vm status b 0\n@@vm leftovers\n@@vm end\n";
        let merged = merge(broken, elsewhere).unwrap();
        assert!(merged.contains("@@vm wrong"), "{merged}");
        let merged = merge(&merged, &elsewhere.replace('b', "a")).unwrap();
        assert!(!merged.contains("@@vm wrong"), "{merged}");
        assert!(merged.ends_with("@@vm leftovers\n@@vm end\n"), "{merged}");
    }

    #[test]
    fn another_kernel_is_another_run() {
        assert_eq!(merge(EARLIER, "@@vm host k2, two\n@@vm run a\n"), None);
        assert_eq!(merge("", "@@vm host k2, two\n@@vm run a\n"), None);
    }
}
