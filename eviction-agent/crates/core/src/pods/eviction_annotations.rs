//! What a pod asks for by annotation.

use serde::Serialize;

use crate::sorted_map::SortedMap;

/// `"false"`: the pod is not evicted. `"true"`: it may be, although nothing would bring it back.
pub const EVICT: &str = "eviction-agent.io/evict";
/// A whole number from -100 to 100, lower goes first, as with a pod's priority: when the pod
/// goes among those of its standing and priority.
pub const PRIORITY_HINT: &str = "eviction-agent.io/priority-hint";
/// The descheduler's: the pod may be evicted, although checks speak against it. Its presence
/// counts, whatever its value: `evictions/utils.go: HaveEvictAnnotation`.
pub const DESCHEDULER_EVICT: &str = "descheduler.alpha.kubernetes.io/evict";
/// The descheduler's: better evict another pod. Its presence counts, whatever its value:
/// `evictions/utils.go: HaveNoEvictionAnnotation`.
pub const DESCHEDULER_PREFER_NO_EVICTION: &str = "descheduler.alpha.kubernetes.io/prefer-no-eviction";

/// The least and the most that a hint can say.
const LEAST_HINT: i8 = -100;
const MOST_HINT: i8 = 100;
/// How many characters of a mistaken value are kept.
const KEPT: usize = 64;

/// An annotation of ours with a value that says nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IgnoredAnnotation {
    /// Which.
    pub annotation: &'static str,
    /// Its value, at most 64 characters of it.
    pub value: Box<str>,
    /// What is wrong with it.
    pub mistake: AnnotationError,
}

/// What is wrong with an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AnnotationError {
    /// It must be `"true"` or `"false"`.
    NotTrueOrFalse,
    /// It must be a whole number from -100 to 100.
    NotANumberInRange,
    /// The descheduler takes any value for a yes. This one is so likely meant as a no that it
    /// is not taken for one here.
    SaysFalse,
}

/// What the annotations of a pod say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodAnnotations {
    /// It must not be evicted.
    pub(crate) opts_out: bool,
    /// It may be evicted although it is bare.
    pub(crate) consents: bool,
    /// Others should go before.
    pub(crate) prefers_to_stay: bool,
    /// Its hint.
    pub(crate) hint: i8,
    /// What was not understood.
    pub(crate) ignored: Vec<IgnoredAnnotation>,
}

impl PodAnnotations {
    pub(crate) fn of(annotations: &SortedMap<Box<str>>) -> Self {
        let mut wishes = Self {
            prefers_to_stay: annotations.contains_key(DESCHEDULER_PREFER_NO_EVICTION),
            ..Self::default()
        };
        if let Some(value) = annotations.get(DESCHEDULER_EVICT) {
            if says(value, "false") {
                wishes.ignore(DESCHEDULER_EVICT, value, AnnotationError::SaysFalse);
            } else {
                wishes.consents = true;
            }
        }
        if let Some(value) = annotations.get(EVICT) {
            match () {
                () if says(value, "false") => (wishes.opts_out, wishes.consents) = (true, false),
                () if says(value, "true") => wishes.consents = true,
                () => wishes.ignore(EVICT, value, AnnotationError::NotTrueOrFalse),
            }
        }
        if let Some(value) = annotations.get(PRIORITY_HINT) {
            match value.parse() {
                Ok(hint @ LEAST_HINT..=MOST_HINT) => wishes.hint = hint,
                _ => wishes.ignore(PRIORITY_HINT, value, AnnotationError::NotANumberInRange),
            }
        }
        wishes
    }

    fn ignore(&mut self, annotation: &'static str, value: &str, mistake: AnnotationError) {
        let value: String = value.chars().take(KEPT).collect();
        self.ignored.push(IgnoredAnnotation { annotation, value: value.into(), mistake });
    }
}

/// Whether a pod asks not to be evicted.
pub(crate) fn opts_out(annotations: &SortedMap<Box<str>>) -> bool {
    PodAnnotations::of(annotations).opts_out
}

/// `False` and `FALSE` are what YAML's booleans look like once they are quoted.
fn says(value: &str, word: &str) -> bool {
    value.eq_ignore_ascii_case(word)
}
