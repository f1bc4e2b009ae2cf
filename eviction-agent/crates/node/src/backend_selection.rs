//! Which rungs may be used: for tests and support, one can be asked for and others denied.
#![forbid(unsafe_code)]

/// Rungs by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendSelection {
    /// Of a ladder that one of these belongs to, no other rung is used.
    pub only: Vec<String>,
    /// These are not used.
    pub deny: Vec<String>,
    /// Nor are these: they were in use and were lost.
    pub lost: Vec<String>,
}

impl BackendSelection {
    /// Why a rung of this ladder must not be used, if it must not.
    pub fn refusal<'n>(&self, rung: &str, ladder: impl IntoIterator<Item = &'n str>) -> Option<&'static str> {
        let Self { only, deny, lost } = self;
        let has = |names: &[String], rung: &str| names.iter().any(|name| name == rung);
        if has(deny, rung) {
            return Some("disabled by --disable-backend");
        }
        if has(lost, rung) {
            return Some("failed while running");
        }
        let is_chosen = ladder.into_iter().any(|rung| has(only, rung));
        (is_chosen && !has(only, rung)).then_some("another backend was requested")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn who_asks_for_one_denies_the_others_of_its_ladder_alone() {
        let choice = BackendSelection { only: names(&["b"]), ..BackendSelection::default() };
        let refused = |rung| choice.refusal(rung, ["a", "b", "c"]);
        assert_eq!(refused("a"), Some("another backend was requested"));
        assert_eq!(refused("b"), None);
        assert_eq!(choice.refusal("x", ["x", "y"]), None, "another ladder");
        assert_eq!(BackendSelection::default().refusal("a", ["a", "b"]), None);
    }

    #[test]
    fn what_is_denied_is_denied_even_if_asked_for() {
        let choice = BackendSelection { only: names(&["b"]), deny: names(&["b", "x"]), lost: names(&["c"]) };
        assert_eq!(choice.refusal("b", ["a", "b"]), Some("disabled by --disable-backend"));
        assert_eq!(choice.refusal("x", ["x"]), Some("disabled by --disable-backend"));
        assert_eq!(choice.refusal("c", ["c"]), Some("failed while running"));
    }
}
