//! Texts of bounded length: what is remembered must not depend on who wrote it.

/// Kubernetes allows 253 bytes for a name, and a runtime's id has 64.
const LONGEST: usize = 256;

/// The text, or as much of it as is kept.
pub(super) fn clip(text: &str) -> Box<str> {
    clipped(text).into()
}

/// As [`clip`], without a copy.
pub(super) fn clipped(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST)]
}
