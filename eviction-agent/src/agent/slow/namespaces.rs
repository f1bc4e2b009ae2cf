//! Namespaces as labels of counters that outlive their pods: so many, and no more.

use std::collections::BTreeSet;

/// Namespaces with series of their own. A node sees more only where they come and go all day.
const MOST: usize = 512;

/// Stands for all others: no namespace can be called so.
const OTHERS: &str = "_other";

/// Those that have been counted.
#[derive(Debug, Default)]
pub(super) struct Namespaces(BTreeSet<Box<str>>);

impl Namespaces {
    /// What a namespace is counted under; the empty name is that of what is in none.
    pub(super) fn label(&mut self, name: &str) -> String {
        let known = name.is_empty() || self.0.contains(name);
        if !known {
            if self.0.len() >= MOST {
                return OTHERS.to_owned();
            }
            self.0.insert(name.into());
        }
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_came_first_are_counted_by_name_for_ever() {
        let mut namespaces = Namespaces::default();
        for nth in 0..MOST {
            assert_eq!(namespaces.label(&format!("n{nth}")), format!("n{nth}"));
        }
        assert_eq!(namespaces.label("late"), OTHERS);
        assert_eq!((namespaces.label("n0"), namespaces.label("")), ("n0".to_owned(), String::new()));
    }
}
