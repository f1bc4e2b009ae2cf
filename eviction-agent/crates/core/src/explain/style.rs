//! How text is painted, if it is.

/// Whether words are coloured, by ANSI escape sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// As they are: for files, pipes and `NO_COLOR`.
    #[default]
    Plain,
    /// For a terminal.
    Coloured,
}

/// What a word is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    /// Somebody goes.
    Bad,
    /// Somebody may go soon, or should and cannot.
    Warning,
    /// Nothing happens.
    Good,
    /// What the eye looks for.
    Strong,
    /// What only some readers want.
    Faint,
}

impl Style {
    pub(super) fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Bad => "1;31",
            Tone::Warning => "33",
            Tone::Good => "32",
            Tone::Strong => "1",
            Tone::Faint => "2",
        };
        match self {
            Self::Plain => text.to_owned(),
            Self::Coloured => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
        }
    }
}
