use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{Identity, Key, ObjectStore, Version, WatchEvent};

fn identity(name: &str, uid: &str, version: u64) -> Identity {
    Identity {
        key: Key { namespace: "a".into(), name: name.into() },
        uid: uid.into(),
        version: Version::new(&version.to_string()),
    }
}

fn names(store: &ObjectStore<&'static str>) -> Vec<&'static str> {
    store.view(true, None).objects.iter().map(|object| **object).collect()
}

#[test]
fn events_in_order_are_taken() {
    let mut store = ObjectStore::new();
    assert_eq!(store.put(identity("p", "1", 5), Ok("p5")), WatchEvent::Changed);
    assert_eq!(store.put(identity("q", "2", 6), Ok("q6")), WatchEvent::Changed);
    assert_eq!(store.put(identity("p", "1", 7), Ok("p5")), WatchEvent::Unchanged);
    assert_eq!(store.put(identity("p", "1", 8), Ok("p8")), WatchEvent::Changed);
    assert_eq!(names(&store), ["p8", "q6"]);
    assert_eq!(store.remove(identity("p", "1", 9)), WatchEvent::Changed);
    assert_eq!(names(&store), ["q6"]);
}

#[test]
fn what_is_repeated_or_comes_late_changes_nothing() {
    let mut store = ObjectStore::new();
    store.put(identity("p", "1", 5), Ok("p5"));
    assert_eq!(store.put(identity("p", "1", 5), Ok("other")), WatchEvent::Repeated);
    assert_eq!(store.put(identity("p", "1", 4), Ok("p4")), WatchEvent::Reordered);
    assert_eq!(names(&store), ["p5"]);
    store.remove(identity("p", "1", 6));
    assert_eq!(store.remove(identity("p", "1", 6)), WatchEvent::Repeated);
    assert_eq!(store.put(identity("p", "1", 7), Ok("risen")), WatchEvent::Reordered);
    assert!(names(&store).is_empty());
}

#[test]
fn another_object_of_the_same_name_is_another() {
    let mut store = ObjectStore::new();
    store.put(identity("p", "1", 5), Ok("old"));
    assert_eq!(store.put(identity("p", "2", 9), Ok("new")), WatchEvent::Changed);
    assert_eq!(names(&store), ["new"]);
    // The end of the first comes late, and so does its last state.
    assert_eq!(store.remove(identity("p", "1", 8)), WatchEvent::Repeated);
    assert_eq!(store.put(identity("p", "1", 7), Ok("old")), WatchEvent::Reordered);
    assert_eq!(names(&store), ["new"]);
}

#[test]
fn an_object_that_is_not_understood_is_not_what_it_was() {
    let mut store = ObjectStore::new();
    store.put(identity("p", "1", 5), Ok("p5"));
    assert_eq!(store.put(identity("p", "1", 6), Err("spec.x: no quantity".into())), WatchEvent::Unreadable);
    let view = store.view(true, None);
    assert!(view.objects.is_empty());
    assert_eq!(view.unreadable[0].key.to_string(), "a/p");
    assert_eq!(view.unreadable[0].why, "spec.x: no quantity");
    assert_eq!(store.put(identity("p", "1", 7), Ok("p7")), WatchEvent::Changed);
    assert_eq!(names(&store), ["p7"]);
}

#[test]
fn a_uid_of_two_objects_is_that_of_none() {
    let mut store = ObjectStore::new();
    store.put(identity("p", "1", 5), Ok("p"));
    store.put(identity("q", "1", 6), Ok("q"));
    store.put(identity("r", "2", 7), Ok("r"));
    assert_eq!(names(&store), ["r"]);
    assert_eq!(store.view(true, None).unreadable.len(), 2);
}

#[test]
fn a_list_says_all() {
    let mut store = ObjectStore::new();
    store.put(identity("p", "1", 5), Ok("p"));
    store.put(identity("q", "2", 6), Ok("q"));
    store.begin_list();
    assert_eq!(store.list(identity("q", "2", 8), Ok("q")), WatchEvent::Unchanged);
    assert_eq!(store.list(identity("r", "3", 9), Ok("r")), WatchEvent::Changed);
    assert_eq!(store.list(identity("r", "4", 9), Ok("again")), WatchEvent::Repeated);
    // Until it is whole, nothing changes.
    assert_eq!(names(&store), ["p", "q"]);
    store.end_list();
    assert_eq!(names(&store), ["q", "r"]);
    assert_eq!(store.put(identity("p", "1", 5), Ok("p")), WatchEvent::Reordered);
    // A list that broke off leaves no trace.
    store.begin_list();
    store.list(identity("x", "9", 11), Ok("x"));
    store.begin_list();
    store.end_list();
    assert!(names(&store).is_empty());
}

#[test]
fn there_is_an_end_to_what_is_kept() {
    let mut store = ObjectStore::new();
    for index in 0..5000_u64 {
        store.put(identity(&index.to_string(), &index.to_string(), index + 1), Ok("x"));
    }
    assert_eq!(store.len(), super::MOST);
    assert_eq!(store.put(identity("one more", "u", 9000), Ok("x")), WatchEvent::TooMany);
    for index in 0..5000_u64 {
        store.remove(identity(&index.to_string(), &index.to_string(), 10_000 + index));
    }
    assert_eq!(store.deleted.len(), super::DELETED);
}

/// The history of three names: which object is there after which version.
fn history() -> impl Strategy<Value = Vec<(usize, bool)>> {
    prop::collection::vec((0..3_usize, any::<bool>()), 1..40)
}

proptest! {
    /// However a history is repeated and shuffled, no pod is there that is gone, none is an older one
    /// than was sent, and what was sent in order at the end holds.
    #[test]
    fn a_disturbed_history_never_leads_to_a_wrong_identity(
        history in history(),
        disturbance in prop::collection::vec((any::<prop::sample::Index>(), 0..4_usize), 0..30),
    ) {
        // (event, name, uid, version)
        let mut events = Vec::new();
        let mut alive = BTreeMap::<usize, u64>::new();
        let (mut uid, mut version) = (0_u64, 0_u64);
        for (name, ends) in history {
            version += 1;
            match alive.get(&name) {
                Some(uid) if ends => {
                    events.push((false, name, *uid, version));
                    alive.remove(&name);
                }
                Some(uid) => events.push((true, name, *uid, version)),
                None => {
                    uid += 1;
                    alive.insert(name, uid);
                    events.push((true, name, uid, version));
                }
            }
        }
        let mut told = events.clone();
        for (index, by) in disturbance {
            let from = index.index(told.len());
            let to = (from + by).min(told.len());
            let event = told[from];
            told.insert(to, event);
        }
        let mut store = ObjectStore::new();
        for (put, name, uid, version) in told {
            let identity = identity(&name.to_string(), &uid.to_string(), version);
            if put {
                store.put(identity, Ok((uid, version)));
            } else {
                store.remove(identity);
            }
        }
        let view: Vec<u64> = store.view(true, None).objects.iter().map(|object| object.0).collect();
        let expected: Vec<u64> = alive.values().copied().collect();
        prop_assert_eq!(view, expected);
    }
}
