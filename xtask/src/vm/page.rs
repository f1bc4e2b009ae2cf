//! The part of docs/reference/kernel-matrix.md that is made from runs.

use anyhow::{Context as _, Result};

use super::told::Told;
use super::{Machine, patch, table};
use crate::shell;

const FILE: &str = "docs/reference/kernel-matrix.md";
const BEGIN: &str = "<!-- from here on written by `cargo xtask vm --write` -->\n";
const END: &str = "<!-- up to here -->\n";

/// Puts the tables into the page. What was told on another machine, or before its build folder was emptied, has
/// no log here: that stays as the page has it.
pub(super) fn write(all: &[(&Machine, Told)]) -> Result<()> {
    let path = shell::root().join(FILE);
    let page = std::fs::read_to_string(&path).with_context(|| format!("read {FILE}"))?;
    let put = |earlier: &str| table::text(&patch::onto(table::read(earlier), &table::tables(all), all));
    let page = replace(&page, put).with_context(|| format!("{FILE} lacks its two marks"))?;
    std::fs::write(&path, page).with_context(|| format!("write {FILE}"))
}

/// The page with other tables, made from those that it has.
fn replace(page: &str, tables: impl Fn(&str) -> String) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (earlier, after) = rest.split_once(END)?;
    let tables = tables(earlier);
    Some(format!("{before}{BEGIN}\n{tables}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let page = format!("a\n{BEGIN}old\n{END}b\n");
        assert_eq!(replace(&page, str::to_uppercase).unwrap(), format!("a\n{BEGIN}\nOLD\n\n{END}b\n"));
        let new = replace(&page, |_| "| x |\n".to_owned()).unwrap();
        assert_eq!(new, format!("a\n{BEGIN}\n| x |\n\n{END}b\n"));
        assert_eq!(replace(&new, |_| "| x |\n".to_owned()).as_deref(), Some(new.as_str()));
        assert_eq!(replace("no marks", str::to_owned), None);
    }
}
