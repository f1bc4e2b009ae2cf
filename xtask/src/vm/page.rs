//! The generated part of docs/reference/kernel-matrix.md.

use anyhow::{Context as _, Result};

use super::results::GuestResults;
use super::{Machine, table};
use crate::shell;

const FILE: &str = "docs/reference/kernel-matrix.md";
const BEGIN: &str = "<!-- from here on written by `cargo xtask vm --write` -->\n";
const END: &str = "<!-- up to here -->\n";

/// Replaces the tables in the page.
pub(super) fn write(all: &[(&Machine, GuestResults)]) -> Result<()> {
    let path = shell::root().join(FILE);
    let page = std::fs::read_to_string(&path).with_context(|| format!("read {FILE}"))?;
    let page = replace(&page, &table::render(all)).with_context(|| format!("{FILE} lacks its two marks"))?;
    std::fs::write(&path, page).with_context(|| format!("write {FILE}"))
}

/// Returns the page with other tables between its marks.
fn replace(page: &str, tables: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{tables}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_between_the_marks_is_replaced() {
        let page = format!("a\n{BEGIN}old\n{END}b\n");
        let new = replace(&page, "| x |\n").unwrap();
        assert_eq!(new, format!("a\n{BEGIN}\n| x |\n\n{END}b\n"));
        assert_eq!(replace(&new, "| x |\n").as_deref(), Some(new.as_str()));
        assert_eq!(replace("no marks", ""), None);
    }
}
