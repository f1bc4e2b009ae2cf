//! A backend is one of several ways in which a source gets its values or events on this machine.
#![forbid(unsafe_code)]

/// The backend of a source, and why it was chosen. It is logged once, exported as a metric and shown by
/// `check`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendInfo {
    /// What is observed, for instance `usage`.
    pub source: &'static str,
    /// The backend in use, for instance `timerfd`; empty if there is none.
    pub backend: &'static str,
    /// Why this backend is used and no better one.
    pub reason: String,
    /// Whether the backend sees every charge of memory.
    pub sees_every_charge: bool,
    /// How many bytes a cgroup can grow before the backend reports it; 0 where that does not apply.
    pub granularity_bytes: u64,
}

impl BackendInfo {
    /// Returns a backend that does not report charges.
    pub fn plain(source: &'static str, backend: &'static str, reason: impl Into<String>) -> Self {
        Self { source, backend, reason: reason.into(), sees_every_charge: false, granularity_bytes: 0 }
    }
}

/// Which backends may be used, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendSelection {
    /// Requested backends: where one of them is possible, no other one is used.
    pub only: Vec<String>,
    /// Disabled backends.
    pub deny: Vec<String>,
    /// Backends that were in use and failed. They are not used either.
    pub failed: Vec<String>,
}

impl BackendSelection {
    /// Returns why a backend must not be used, given all backends that could be used in its place.
    pub fn refusal<'n>(&self, backend: &str, all: impl IntoIterator<Item = &'n str>) -> Option<&'static str> {
        let Self { only, deny, failed } = self;
        let has = |names: &[String], backend: &str| names.iter().any(|name| name == backend);
        if has(deny, backend) {
            return Some("disabled by --disable-backend");
        }
        if has(failed, backend) {
            return Some("failed while running");
        }
        let is_requested = all.into_iter().any(|backend| has(only, backend));
        (is_requested && !has(only, backend)).then_some("another backend was requested")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn requested_backend_excludes_only_its_alternatives() {
        let selection = BackendSelection { only: names(&["b"]), ..BackendSelection::default() };
        let refused = |backend| selection.refusal(backend, ["a", "b", "c"]);
        assert_eq!(refused("a"), Some("another backend was requested"));
        assert_eq!(refused("b"), None);
        assert_eq!(selection.refusal("x", ["x", "y"]), None, "in place of others");
        assert_eq!(BackendSelection::default().refusal("a", ["a", "b"]), None);
    }

    #[test]
    fn a_disabled_backend_is_not_used_even_if_requested() {
        let selection =
            BackendSelection { only: names(&["b"]), deny: names(&["b", "x"]), failed: names(&["c"]) };
        assert_eq!(selection.refusal("b", ["a", "b"]), Some("disabled by --disable-backend"));
        assert_eq!(selection.refusal("x", ["x"]), Some("disabled by --disable-backend"));
        assert_eq!(selection.refusal("c", ["c"]), Some("failed while running"));
    }
}
