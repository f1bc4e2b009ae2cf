//! A stream of JSON documents, one a line, as watches are sent.

use bytes::{Buf as _, Bytes, BytesMut};

/// Cuts what arrives into lines.
#[derive(Debug)]
pub struct Lines {
    kept: BytesMut,
    /// How far `kept` was searched.
    searched: usize,
    longest: usize,
    /// In a line that is too long: what is left of it is thrown away.
    skipping: bool,
}

/// What a line was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A line without its end; never empty.
    Whole(Bytes),
    /// A line that was longer than allowed, and was thrown away.
    TooLong,
}

impl Lines {
    /// Lines of at most so many bytes.
    pub fn new(longest: usize) -> Self {
        Self { kept: BytesMut::new(), searched: 0, longest, skipping: false }
    }

    /// Takes what arrived.
    pub fn push(&mut self, chunk: &[u8]) {
        self.kept.extend_from_slice(chunk);
    }

    /// The next line that is complete.
    pub fn pop(&mut self) -> Option<Line> {
        loop {
            let end = self.kept.iter().skip(self.searched).position(|byte| *byte == b'\n');
            let Some(end) = end.map(|end| self.searched + end) else {
                self.searched = self.kept.len();
                if self.skipping || self.kept.len() > self.longest {
                    self.skipping = true;
                    self.kept = BytesMut::new();
                    self.searched = 0;
                }
                return None;
            };
            let line = self.kept.split_to(end).freeze();
            self.kept.advance(1);
            self.searched = 0;
            if self.kept.is_empty() {
                // One great object must not keep its room for ever.
                self.kept = BytesMut::new();
            }
            if std::mem::take(&mut self.skipping) || line.len() > self.longest {
                return Some(Line::TooLong);
            }
            if !line.trim_ascii().is_empty() {
                return Some(Line::Whole(line));
            }
        }
    }

    /// How many bytes of a line that has not ended are there.
    pub fn rest(&self) -> usize {
        self.kept.len()
    }
}

#[cfg(test)]
mod tests {
    use super::{Line, Lines};

    fn lines(chunks: &[&str]) -> Vec<String> {
        let mut lines = Lines::new(5);
        let mut found = Vec::new();
        for chunk in chunks {
            lines.push(chunk.as_bytes());
            while let Some(line) = lines.pop() {
                found.push(match line {
                    Line::Whole(line) => String::from_utf8(line.to_vec()).unwrap(),
                    Line::TooLong => "-".to_owned(),
                });
            }
        }
        found
    }

    #[test]
    fn lines_come_whole_however_they_arrive() {
        assert_eq!(lines(&["ab\nc", "d", "\n", "\r\n\n", "e\nf"]), ["ab", "cd", "e"]);
        let text = "ab\ncd\nefghi\n";
        let bytes: Vec<_> = (0..text.len()).map(|at| &text[at..=at]).collect();
        assert_eq!(lines(&bytes), ["ab", "cd", "efghi"]);
    }

    #[test]
    fn a_line_that_is_too_long_is_passed_over() {
        assert_eq!(lines(&["123456\nab\n"]), ["-", "ab"]);
        assert_eq!(lines(&["1234", "5678", "9", "0\nab\n"]), ["-", "ab"]);
        assert_eq!(lines(&["123456789"]), Vec::<String>::new());
    }
}
