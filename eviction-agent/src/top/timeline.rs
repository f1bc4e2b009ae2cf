//! The times of a recording: the targets of keys, and the slider.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use eviction_core::time::Timestamp;
use eviction_core::units::GoDuration;
use jiff::SignedDuration;

/// The times of a recording, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    /// The name that is shown in place of a node's name.
    pub(crate) name: String,
    /// The times of samples. There is at least one.
    pub(crate) samples: Vec<Timestamp>,
    /// The event lines with their times.
    pub(crate) events: Vec<(Timestamp, String)>,
}

impl Timeline {
    /// Returns the first and the last time.
    pub(crate) fn ends(&self) -> (Timestamp, Timestamp) {
        let first = self.samples.first().copied().unwrap_or_default();
        (first, self.samples.last().copied().unwrap_or(first))
    }

    /// Returns the time that is later by `by`, limited to the recording.
    pub(super) fn later(&self, at: Timestamp, by: SignedDuration) -> Timestamp {
        let (first, last) = self.ends();
        at.checked_add(by).unwrap_or(at).clamp(first, last)
    }

    /// Returns the time to which a key leads.
    pub(super) fn target(&self, at: Timestamp, key: KeyEvent) -> Option<Timestamp> {
        let samples = || self.samples.iter().copied();
        let events = || self.events.iter().map(|(at, _)| *at);
        let by = if key.modifiers.contains(KeyModifiers::SHIFT) { 60 } else { 1 };
        Some(match key.code {
            KeyCode::Char('t') => samples().find(|time| *time > at)?,
            KeyCode::Char('T') => samples().rev().find(|time| *time < at)?,
            KeyCode::Char(']') => events().find(|time| *time > at)?,
            KeyCode::Char('[') => events().rev().find(|time| *time < at)?,
            KeyCode::Right => self.later(at, SignedDuration::from_secs(by)),
            KeyCode::Left => self.later(at, SignedDuration::from_secs(-by)),
            KeyCode::Char('F') => self.ends().1,
            _ => return None,
        })
    }

    /// Parses a typed time: `22:10:29` of the shown day, `-5m`, or a time with its date.
    pub(super) fn parse(&self, at: Timestamp, text: &str) -> Option<Timestamp> {
        let date = at.strftime("%Y-%m-%d");
        let absolute = || text.parse().ok().or_else(|| format!("{date}T{text}Z").parse::<Timestamp>().ok());
        let relative = || GoDuration::parse(text).ok().map(|by| SignedDuration::from_nanos(by.as_nanos()));
        match relative() {
            Some(by) => Some(self.later(at, by)),
            None => absolute().map(|to| self.later(to, SignedDuration::ZERO)),
        }
    }

    /// Returns the slider with the ends, the events, and the shown time.
    pub(super) fn slider(&self, at: Timestamp, columns: usize, is_ascii: bool) -> String {
        let (first, last) = self.ends();
        let [begin, end] = [first, last].map(|time| time.strftime("%H:%M").to_string());
        let room = columns.saturating_sub(begin.len() + end.len() + 6).max(1);
        let length = (last.as_nanosecond() - first.as_nanosecond()).max(1);
        let place = |time: Timestamp| {
            let part = (time.as_nanosecond() - first.as_nanosecond()).clamp(0, length);
            usize::try_from(part * (room as i128 - 1) / length).unwrap_or(0)
        };
        let [left, right, free, mark, cursor] =
            if is_ascii { ['<', '>', '-', '+', 'o'] } else { ['◀', '▶', '─', '┼', '●'] };
        let mut line = vec![free; room];
        for (time, _) in &self.events {
            line[place(*time)] = mark;
        }
        line[place(at)] = cursor;
        format!("{left} {begin} {} {end} {right}", line.into_iter().collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use eviction_core::fixture::at;

    use super::*;

    #[test]
    fn parse_accepts_clock_times_offsets_and_timestamps() {
        // The recording starts at 08:00:00.
        let timeline = Timeline { samples: vec![at(0), at(600)], ..Timeline::default() };
        let parse = |text| timeline.parse(at(300), text);
        assert_eq!(parse("08:02:00"), Some(at(120)));
        assert_eq!(parse("2026-01-05T08:02:00Z"), Some(at(120)));
        assert_eq!(parse("-1m"), Some(at(240)));
        assert_eq!(
            (parse("-1h"), parse("9999h"), parse("23:00:00")),
            (Some(at(0)), Some(at(600)), Some(at(600)))
        );
        assert_eq!((parse(""), parse("noon"), parse("8")), (None, None, None));
    }

    #[test]
    fn slider_shows_the_current_time_and_the_events() {
        let events = vec![(at(300), String::new())];
        let timeline = Timeline { samples: vec![at(0), at(600)], events, ..Timeline::default() };
        assert_eq!(timeline.slider(at(0), 27, true), "< 08:00 o----+----- 08:10 >");
        assert_eq!(timeline.slider(at(600), 27, false), "◀ 08:00 ─────┼────● 08:10 ▶");
        for columns in 0..40 {
            timeline.slider(at(700), columns, false);
        }
        Timeline::default().slider(at(0), 80, false);
    }
}
