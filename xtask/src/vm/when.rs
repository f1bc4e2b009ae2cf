//! When a guest was run, and which of its programs once more since.

use std::collections::{BTreeMap, BTreeSet};

/// The run of a whole guest, and those of some of its programs later.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct When {
    /// The kernel's package, the day, and how busy the host was.
    whole: String,
    /// Programs that were run last on another day, by that day.
    later: BTreeMap<String, BTreeSet<String>>,
}

impl When {
    /// By the host's own words of a run.
    pub(super) fn new(whole: &str) -> Self {
        Self { whole: whole.to_owned(), later: BTreeMap::new() }
    }

    /// Of the form of [`text`](Self::text).
    pub(super) fn read(text: &str) -> Self {
        let mut parts = text.split("; ");
        let mut when = Self::new(parts.next().unwrap_or_default());
        for (day, programs) in parts.filter_map(|part| part.split_once(": ")) {
            programs.split(", ").for_each(|program| when.again(program, day));
        }
        when
    }

    /// A program was run once more.
    pub(super) fn again(&mut self, program: &str, day: &str) {
        self.later.retain(|_, programs| {
            programs.remove(program);
            !programs.is_empty()
        });
        if day != self.first_day() {
            self.later.entry(day.to_owned()).or_default().insert(program.to_owned());
        }
    }

    /// The day of the program's last run.
    pub(super) fn day_of(&self, program: &str) -> &str {
        let later = self.later.iter().find(|(_, programs)| programs.contains(program));
        later.map_or(self.first_day(), |(day, _)| day)
    }

    fn first_day(&self) -> &str {
        self.whole.split_once(", ").map_or("", |(_, words)| day(words))
    }

    /// In words.
    pub(super) fn text(&self) -> String {
        let later = self.later.iter().map(|(day, programs)| {
            let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
            format!("; {day}: {}", programs.join(", "))
        });
        std::iter::once(self.whole.clone()).chain(later).collect()
    }
}

/// The day that the host's words of a run begin with.
pub(super) fn day(words: &str) -> &str {
    words.split_once(", ").map_or(words, |(day, _)| day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_program_the_last_run_is_told() {
        let mut when = When::new("k, 2026-01-01, load 3");
        for (program, day) in [("a", "02"), ("b", "02"), ("c", "2026-01-01"), ("a", "04"), ("d", "04")] {
            when.again(program, day);
        }
        assert_eq!(when.text(), "k, 2026-01-01, load 3; 02: b; 04: a, d");
        assert_eq!(When::read(&when.text()), when);
        assert_eq!(["a", "b", "c"].map(|program| when.day_of(program)), ["04", "02", "2026-01-01"]);
        when.again("b", "2026-01-01");
        assert_eq!(when.text(), "k, 2026-01-01, load 3; 04: a, d");
    }
}
