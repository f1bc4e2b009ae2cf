//! The last event lines.

use std::collections::VecDeque;

use eviction_core::time::Timestamp;

/// So many lines are kept, of so many bytes together.
const LINES: usize = 1000;
const BYTES: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct EventRing {
    lines: VecDeque<Event>,
    bytes: usize,
    /// The number of the newest.
    last: u64,
}

#[derive(Debug)]
struct Event {
    seq: u64,
    at: Timestamp,
    json: Box<str>,
}

impl EventRing {
    /// Takes a JSON object, whose first member becomes its number.
    pub(super) fn push(&mut self, at: Timestamp, json: &str) {
        self.last += 1;
        let json = format!("{{\"seq\":{},{}\n", self.last, json.strip_prefix('{').unwrap_or("}"));
        self.bytes += json.len();
        self.lines.push_back(Event { seq: self.last, at, json: json.into() });
        while self.lines.len() > LINES || self.bytes > BYTES {
            let Some(oldest) = self.lines.pop_front() else { return };
            self.bytes -= oldest.json.len();
        }
    }

    /// Those with a greater number. All of them if the number is of an agent that ran before.
    pub(super) fn after(&self, seq: u64) -> String {
        let seq = if seq > self.last { 0 } else { seq };
        self.lines.iter().filter(|event| event.seq > seq).map(|event| &*event.json).collect()
    }

    pub(super) fn since(&self, at: Timestamp) -> String {
        self.lines.iter().filter(|event| event.at >= at).map(|event| &*event.json).collect()
    }

    pub(super) fn last(&self) -> u64 {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_numbered_and_bounded() {
        let mut ring = EventRing::default();
        let at = |second| Timestamp::from_second(second).unwrap();
        for number in 1..=3 {
            ring.push(at(number), &format!("{{\"event\":\"e{number}\"}}"));
        }
        assert_eq!(ring.after(1), "{\"seq\":2,\"event\":\"e2\"}\n{\"seq\":3,\"event\":\"e3\"}\n");
        assert_eq!(ring.after(3), "");
        assert_eq!(ring.after(500).lines().count(), 3, "the agent was restarted");
        assert_eq!(ring.since(at(3)).lines().count(), 1);
        (0..2 * LINES).for_each(|_| ring.push(at(4), "{\"a\":1}"));
        assert_eq!(ring.lines.len(), LINES);
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(BYTES / 10));
        (0..20).for_each(|_| ring.push(at(5), &long));
        assert!(ring.bytes <= BYTES && ring.lines.len() < 10, "{}", ring.bytes);
        ring.push(at(6), &format!("{{\"a\":\"{}\"}}", "x".repeat(2 * BYTES)));
        assert_eq!(ring.lines.len(), 0, "a line longer than all of the room is not kept");
        assert_eq!(ring.bytes, 0);
    }
}
