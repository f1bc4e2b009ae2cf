use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{ObjectIdentity, ObjectStore, WatchEvent};

fn identity(name: &str, uid: &str, version: u64) -> ObjectIdentity {
    ObjectIdentity {
        namespace: "a".into(),
        name: name.into(),
        uid: uid.into(),
        resource_version: version.to_string().into(),
    }
}

fn names(store: &ObjectStore<&'static str>) -> Vec<&'static str> {
    store.view(true, None).objects.iter().map(|object| **object).collect()
}

#[test]
fn events_in_order_are_applied() {
    let mut store = ObjectStore::new(|_| false);
    assert_eq!(store.put(identity("p", "1", 5), Ok("p5")), WatchEvent::Changed);
    assert_eq!(store.put(identity("q", "2", 6), Ok("q6")), WatchEvent::Changed);
    assert_eq!(store.put(identity("p", "1", 7), Ok("p5")), WatchEvent::Unchanged);
    assert_eq!(store.put(identity("p", "1", 8), Ok("p8")), WatchEvent::Changed);
    assert_eq!(names(&store), ["p8", "q6"]);
    assert_eq!(store.remove(identity("p", "1", 9)), WatchEvent::Changed);
    assert_eq!(names(&store), ["q6"]);
}

#[test]
fn repeated_and_late_events_change_nothing() {
    let mut store = ObjectStore::new(|_| false);
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
fn new_uid_with_the_same_name_replaces_the_object() {
    let mut store = ObjectStore::new(|_| false);
    store.put(identity("p", "1", 5), Ok("old"));
    assert_eq!(store.put(identity("p", "2", 9), Ok("new")), WatchEvent::Changed);
    assert_eq!(names(&store), ["new"]);
    // The deletion of the first object arrives late, and so does its last update.
    assert_eq!(store.remove(identity("p", "1", 8)), WatchEvent::Repeated);
    assert_eq!(store.put(identity("p", "1", 7), Ok("old")), WatchEvent::Reordered);
    assert_eq!(names(&store), ["new"]);
}

#[test]
fn undecodable_update_makes_the_object_unreadable() {
    let mut store = ObjectStore::new(|_| false);
    store.put(identity("p", "1", 5), Ok("p5"));
    assert_eq!(store.put(identity("p", "1", 6), Err("spec.x: no quantity".into())), WatchEvent::Unreadable);
    let view = store.view(true, None);
    assert!(view.objects.is_empty());
    assert_eq!(view.unreadable, ["a/p: spec.x: no quantity"]);
    assert_eq!(store.put(identity("p", "1", 7), Ok("p7")), WatchEvent::Changed);
    assert_eq!(names(&store), ["p7"]);
}

#[test]
fn objects_with_the_same_uid_are_unreadable() {
    let mut store = ObjectStore::new(|_| false);
    store.put(identity("p", "1", 5), Ok("p"));
    store.put(identity("q", "1", 6), Ok("q"));
    store.put(identity("r", "2", 7), Ok("r"));
    assert_eq!(names(&store), ["r"]);
    assert_eq!(store.view(true, None).unreadable.len(), 2);
}

#[test]
fn complete_list_replaces_all_objects() {
    let mut store = ObjectStore::new(|_| false);
    store.put(identity("p", "1", 5), Ok("p"));
    store.put(identity("q", "2", 6), Ok("q"));
    store.begin_list();
    assert_eq!(store.list(identity("q", "2", 8), Ok("q")), WatchEvent::Unchanged);
    assert_eq!(store.list(identity("r", "3", 9), Ok("r")), WatchEvent::Changed);
    assert_eq!(store.list(identity("r", "4", 9), Ok("again")), WatchEvent::Repeated);
    // The objects do not change until the list is complete.
    assert_eq!(names(&store), ["p", "q"]);
    store.end_list();
    assert_eq!(names(&store), ["q", "r"]);
    assert_eq!(store.put(identity("p", "1", 5), Ok("p")), WatchEvent::Reordered);
    // A list that was not completed has no effect.
    store.begin_list();
    store.list(identity("x", "9", 11), Ok("x"));
    store.begin_list();
    store.end_list();
    assert!(names(&store).is_empty());
}

#[test]
fn number_of_stored_objects_and_uids_is_limited() {
    let mut store = ObjectStore::new(|_| false);
    for index in 0..5000_u64 {
        store.put(identity(&index.to_string(), &index.to_string(), index + 1), Ok("x"));
    }
    assert_eq!(store.len(), super::MAX_OBJECTS);
    assert_eq!(store.put(identity("one more", "u", 9000), Ok("x")), WatchEvent::TooMany);
    for index in 0..5000_u64 {
        store.remove(identity(&index.to_string(), &index.to_string(), 10_000 + index));
    }
    assert_eq!(store.deleted.len(), super::MAX_DELETED);
}

#[test]
fn finished_objects_are_dropped_for_others_when_there_are_too_many() {
    let mut store = ObjectStore::new(|object: &&'static str| *object == "finished");
    let max = u64::try_from(super::MAX_OBJECTS).unwrap();
    store.begin_list();
    for index in 0..max {
        store.list(identity(&format!("done-{index}"), &index.to_string(), index + 1), Ok("finished"));
    }
    assert_eq!(store.list(identity("one more", "m", max + 1), Ok("finished")), WatchEvent::TooMany);
    assert_eq!(store.list(identity("web", "w", max + 2), Ok("web")), WatchEvent::TooMany);
    store.end_list();
    assert_eq!(store.put(identity("x", "x", max + 3), Ok("x")), WatchEvent::TooMany);
    assert_eq!(store.put(identity("x", "x", max + 4), Ok("finished")), WatchEvent::Changed);
    assert_eq!(store.put(identity("y", "y", max + 5), Ok("y")), WatchEvent::TooMany);
    assert_eq!(store.len(), super::MAX_OBJECTS);
    let names = names(&store);
    assert!(names.contains(&"web") && names.contains(&"y"));
}

/// The history of three names: for each version, the name and whether its object is deleted.
fn history() -> impl Strategy<Value = Vec<(usize, bool)>> {
    prop::collection::vec((0..3_usize, any::<bool>()), 1..40)
}

proptest! {
    /// However a history is repeated and shuffled, the store contains no deleted pod and no outdated one, and
    /// the last events in order determine the result.
    #[test]
    fn shuffled_and_repeated_events_lead_to_the_same_state(
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
        let mut delivered = events.clone();
        for (index, by) in disturbance {
            let from = index.index(delivered.len());
            let to = (from + by).min(delivered.len());
            let event = delivered[from];
            delivered.insert(to, event);
        }
        let mut store = ObjectStore::new(|_| false);
        for (put, name, uid, version) in delivered {
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
