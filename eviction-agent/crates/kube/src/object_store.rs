//! The known objects, updated event by event, without I/O. Events that are reordered, repeated or lost never
//! lead to a wrong identity.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::item::{ObjectIdentity, is_before};
use crate::metrics::WatchEvent;

/// The maximum number of objects. A node runs at most some hundreds of pods, but objects of finished ones may
/// stay for long: kube-controller-manager deletes them only beyond `--terminated-pod-gc-threshold`, 12,500.
const MAX_OBJECTS: usize = 4096;

/// The number of deleted objects whose uid is stored, so that a late event does not restore one.
const MAX_DELETED: usize = 256;

/// The objects in their last received state.
#[derive(Debug)]
pub(crate) struct ObjectStore<T> {
    entries: BTreeMap<Box<str>, Entry<T>>,
    deleted: VecDeque<Box<str>>,
    /// The items of a list that is being received.
    listing: Option<BTreeMap<Box<str>, Entry<T>>>,
    /// Whether an object is finished. Such objects are dropped for others when there are too many.
    is_finished: fn(&T) -> bool,
}

#[derive(Debug)]
struct Entry<T> {
    uid: Box<str>,
    version: Box<str>,
    object: Result<Arc<T>, String>,
}

/// All objects at one point in time.
#[derive(Debug)]
pub struct StoreView<T> {
    /// Whether a list was received at least once. Before that, the objects are unknown.
    pub synced: bool,
    /// The objects, in the order of their keys.
    pub objects: Vec<Arc<T>>,
    /// Objects that exist but cannot be decoded, each as `NAMESPACE/NAME: CAUSE`.
    pub unreadable: Vec<String>,
    /// Why no data arrives from the server at the moment.
    pub error: Option<String>,
}

impl<T> Default for StoreView<T> {
    fn default() -> Self {
        Self { synced: false, objects: Vec::new(), unreadable: Vec::new(), error: None }
    }
}

impl<T: PartialEq> Entry<T> {
    /// Returns the entry of a received object, and whether it differs from the previous one. If the object has
    /// not changed, the previous object is kept.
    fn of(before: Option<&Self>, identity: ObjectIdentity, object: Result<T, String>) -> (Self, WatchEvent) {
        let ObjectIdentity { uid, resource_version: version, .. } = identity;
        let before = before.filter(|before| before.uid == uid).map(|before| &before.object);
        let (object, event) = match (before, object) {
            (Some(Ok(before)), Ok(now)) if **before == now => (Ok(Arc::clone(before)), WatchEvent::Unchanged),
            (_, Ok(now)) => (Ok(Arc::new(now)), WatchEvent::Changed),
            (_, Err(why)) => (Err(why), WatchEvent::Unreadable),
        };
        (Self { uid, version, object }, event)
    }
}

impl<T: PartialEq> ObjectStore<T> {
    /// Creates an empty store. Finished objects are dropped for others when there are too many.
    pub(crate) fn new(is_finished: fn(&T) -> bool) -> Self {
        Self { entries: BTreeMap::new(), deleted: VecDeque::new(), listing: None, is_finished }
    }

    /// Adds or updates an object.
    pub(crate) fn put(&mut self, identity: ObjectIdentity, object: Result<T, String>) -> WatchEvent {
        if self.deleted.contains(&identity.uid) {
            return WatchEvent::Reordered;
        }
        let key = identity.key();
        let is_full = is_full(&self.entries, &key);
        if is_full && !makes_room(&mut self.entries, &object, self.is_finished) {
            return WatchEvent::TooMany;
        }
        let before = self.entries.get(&key);
        let replaced = match before {
            Some(before) if is_before(&identity.resource_version, &before.version) => {
                return WatchEvent::Reordered;
            }
            Some(before) if before.uid != identity.uid => Some(before.uid.clone()),
            Some(before) if before.version == identity.resource_version => return WatchEvent::Repeated,
            Some(_) | None => None,
        };
        let (entry, event) = Entry::of(before, identity, object);
        self.entries.insert(key, entry);
        // The deletion of the previous object was never received.
        if let Some(uid) = replaced {
            self.note_deleted(uid);
        }
        if is_full { WatchEvent::TooMany } else { event }
    }

    /// Removes an object.
    pub(crate) fn remove(&mut self, identity: ObjectIdentity) -> WatchEvent {
        let (key, uid) = (identity.key(), identity.uid);
        let exists = self.entries.get(&key).is_some_and(|entry| entry.uid == uid);
        let known = self.deleted.contains(&uid);
        self.note_deleted(uid);
        if exists {
            self.entries.remove(&key);
            WatchEvent::Changed
        } else if known {
            WatchEvent::Repeated
        } else {
            WatchEvent::Reordered
        }
    }

    /// Starts a list.
    pub(crate) fn begin_list(&mut self) {
        self.listing = Some(BTreeMap::new());
    }

    /// Adds an item of the list.
    pub(crate) fn list(&mut self, identity: ObjectIdentity, object: Result<T, String>) -> WatchEvent {
        let Some(listing) = &mut self.listing else { return WatchEvent::Reordered };
        let key = identity.key();
        if listing.contains_key(&key) {
            return WatchEvent::Repeated;
        }
        let is_full = is_full(listing, &key);
        if is_full && !makes_room(listing, &object, self.is_finished) {
            return WatchEvent::TooMany;
        }
        let (entry, event) = Entry::of(self.entries.get(&key), identity, object);
        listing.insert(key, entry);
        if is_full { WatchEvent::TooMany } else { event }
    }

    /// Completes the list: removes the objects that it does not contain.
    pub(crate) fn end_list(&mut self) {
        let Some(listing) = self.listing.take() else { return };
        let removed: Vec<_> = self
            .entries
            .iter()
            .filter(|(key, entry)| listing.get(*key).is_none_or(|now| now.uid != entry.uid))
            .map(|(_, entry)| entry.uid.clone())
            .collect();
        removed.into_iter().for_each(|uid| self.note_deleted(uid));
        // A restored store may contain deleted objects again.
        self.deleted.retain(|uid| !listing.values().any(|entry| entry.uid == *uid));
        self.entries = listing;
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns all objects. Objects that share a uid are unreadable, since a request could affect either.
    pub(crate) fn view(&self, synced: bool, error: Option<String>) -> StoreView<T> {
        let mut owners = BTreeMap::<&str, u32>::new();
        for entry in self.entries.values() {
            *owners.entry(&entry.uid).or_default() += 1;
        }
        let mut view = StoreView { synced, objects: Vec::new(), unreadable: Vec::new(), error };
        for (key, entry) in &self.entries {
            let is_unique = owners.get(&*entry.uid).is_none_or(|count| *count < 2);
            let why = match &entry.object {
                Ok(object) if is_unique => {
                    view.objects.push(Arc::clone(object));
                    continue;
                }
                Ok(_) => &format!("metadata.uid: `{:.60}` is that of another as well", entry.uid),
                Err(why) => why,
            };
            view.unreadable.push(format!("{key}: {why}"));
        }
        view
    }

    fn note_deleted(&mut self, uid: Box<str>) {
        if self.deleted.contains(&uid) {
            return;
        }
        if self.deleted.len() >= MAX_DELETED {
            self.deleted.pop_front();
        }
        self.deleted.push_back(uid);
    }
}

/// Returns whether an object with this key would be one too many.
fn is_full<T>(entries: &BTreeMap<Box<str>, Entry<T>>, key: &str) -> bool {
    entries.len() >= MAX_OBJECTS && !entries.contains_key(key)
}

/// Drops a finished object in favour of one that is not. Returns whether it did.
fn makes_room<T>(
    entries: &mut BTreeMap<Box<str>, Entry<T>>,
    object: &Result<T, String>,
    is_finished: fn(&T) -> bool,
) -> bool {
    if object.as_ref().is_ok_and(is_finished) {
        return false;
    }
    let mut entries_by_key = entries.iter();
    let found = entries_by_key.find(|(_, it)| it.object.as_ref().is_ok_and(|object| is_finished(object)));
    let Some(key) = found.map(|(key, _)| key.clone()) else { return false };
    entries.remove(&key).is_some()
}

#[cfg(test)]
mod tests;
