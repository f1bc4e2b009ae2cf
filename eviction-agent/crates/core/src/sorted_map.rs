//! A map with few entries. A pod has about a dozen such maps with one to five entries each, and a node's pods
//! stay in memory: a tree allocates space for eleven entries as soon as it has one, this map only for those
//! that it has.

use std::fmt;

use serde::{Serialize, Serializer};

/// Values by name, sorted by name. Each name occurs once.
#[derive(Clone, PartialEq, Eq)]
pub struct SortedMap<V>(Box<[(Box<str>, V)]>);

impl<V> SortedMap<V> {
    /// Creates an empty map.
    pub fn new() -> Self {
        Self(Box::default())
    }

    /// Returns the value of a name.
    pub fn get(&self, name: &str) -> Option<&V> {
        let index = self.0.binary_search_by(|(other, _)| (**other).cmp(name)).ok()?;
        self.0.get(index).map(|(_, value)| value)
    }

    /// Returns whether a name is in the map.
    pub fn contains_key(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Returns whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns each name and its value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.0.iter().map(|(name, value)| (&**name, value))
    }

    /// Returns each name.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(name, _)| name)
    }
}

#[cfg(any(test, feature = "fixture"))]
impl<V> SortedMap<V> {
    /// Inserts a value, for tests.
    pub fn insert(&mut self, name: &str, value: V) {
        let entries = std::mem::take(self).0.into_iter().chain([(name.into(), value)]);
        *self = entries.collect();
    }
}

impl<V> Default for SortedMap<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V: fmt::Debug> fmt::Debug for SortedMap<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// If several values have the same name, the last one counts, as when they are inserted into a map one by one.
impl<V> FromIterator<(Box<str>, V)> for SortedMap<V> {
    fn from_iter<I: IntoIterator<Item = (Box<str>, V)>>(entries: I) -> Self {
        let mut all: Vec<_> = entries.into_iter().collect();
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            if same {
                std::mem::swap(later, earlier);
            }
            same
        });
        Self(all.into())
    }
}

impl<V: Serialize> Serialize for SortedMap<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sorted_map_behaves_like_a_btree_map(
            entries in prop::collection::vec(("[a-c]{0,2}", 0..9_u8), 0..8),
        ) {
            let boxed = || entries.iter().map(|(name, value)| (Box::from(name.as_str()), *value));
            let named: SortedMap<u8> = boxed().collect();
            let map: BTreeMap<Box<str>, u8> = boxed().collect();
            prop_assert!(named.iter().eq(map.iter().map(|(name, value)| (&**name, value))));
            prop_assert_eq!(named.is_empty(), map.is_empty());
            for name in ["", "a", "ab", "c", "d"] {
                prop_assert_eq!(named.get(name), map.get(name));
                prop_assert_eq!(named.contains_key(name), map.contains_key(name));
            }
            prop_assert_eq!(serde_json::to_value(&named).unwrap(), serde_json::to_value(&map).unwrap());
        }
    }
}
