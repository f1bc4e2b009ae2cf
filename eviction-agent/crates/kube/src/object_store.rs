//! What is known of the objects, event by event. No IO: what a server sends in any order, twice or
//! not at all leads to a state that is never wrong about an identity.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::item::{Identity, Key, Version};
use crate::metrics::WatchEvent;

/// More are not kept: a node runs at most some hundreds.
const MOST: usize = 4096;

/// How many objects that are gone are remembered, so that an event that comes late does not bring
/// one back.
const DELETED: usize = 256;

/// The objects as they were sent last.
#[derive(Debug)]
pub(crate) struct ObjectStore<T> {
    entries: BTreeMap<Key, Entry<T>>,
    deleted: VecDeque<Box<str>>,
    /// What a list has so far.
    listing: Option<BTreeMap<Key, Entry<T>>>,
}

#[derive(Debug)]
struct Entry<T> {
    uid: Box<str>,
    version: Version,
    object: Result<Arc<T>, String>,
}

/// All objects at one moment.
#[derive(Debug)]
pub struct StoreView<T> {
    /// Whether a list was ever read: before that, nothing is known.
    pub synced: bool,
    /// The objects, in the order of their keys.
    pub objects: Vec<Arc<T>>,
    /// Those that are there but not understood.
    pub unreadable: Vec<UnreadableObject>,
    /// Why nothing arrives from the server at present.
    pub error: Option<String>,
}

impl<T> Default for StoreView<T> {
    fn default() -> Self {
        Self { synced: false, objects: Vec::new(), unreadable: Vec::new(), error: None }
    }
}

/// An object that is not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableObject {
    /// Where it is.
    pub key: Key,
    /// What is wrong with it.
    pub why: String,
}

impl<T: PartialEq> ObjectStore<T> {
    pub(crate) fn new() -> Self {
        Self { entries: BTreeMap::new(), deleted: VecDeque::new(), listing: None }
    }

    /// An object came or changed.
    pub(crate) fn put(&mut self, identity: Identity, object: Result<T, String>) -> WatchEvent {
        let Identity { key, uid, version } = identity;
        if self.deleted.contains(&uid) {
            return WatchEvent::Reordered;
        }
        let happened = match self.entries.get(&key) {
            Some(before) if version.is_before(&before.version) => return WatchEvent::Reordered,
            Some(before) if before.uid == uid && before.version == version => return WatchEvent::Repeated,
            Some(before) if before.uid == uid => match (&before.object, &object) {
                (Ok(before), Ok(now)) if **before == *now => WatchEvent::Unchanged,
                (_, Err(_)) => WatchEvent::Unreadable,
                _ => WatchEvent::Changed,
            },
            // Its deletion was never sent.
            Some(before) => {
                let before = before.uid.clone();
                self.note_deleted(before);
                if object.is_ok() { WatchEvent::Changed } else { WatchEvent::Unreadable }
            }
            None if self.entries.len() >= MOST => return WatchEvent::TooMany,
            None if object.is_ok() => WatchEvent::Changed,
            None => WatchEvent::Unreadable,
        };
        if happened == WatchEvent::Unchanged {
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.version = version;
            }
        } else {
            self.entries.insert(key, Entry { uid, version, object: object.map(Arc::new) });
        }
        happened
    }

    /// An object is gone.
    pub(crate) fn remove(&mut self, identity: Identity) -> WatchEvent {
        let Identity { key, uid, version: _ } = identity;
        let there = self.entries.get(&key).is_some_and(|entry| entry.uid == uid);
        let known = self.deleted.contains(&uid);
        self.note_deleted(uid);
        if there {
            self.entries.remove(&key);
            WatchEvent::Changed
        } else if known {
            WatchEvent::Repeated
        } else {
            WatchEvent::Reordered
        }
    }

    /// A list begins.
    pub(crate) fn begin_list(&mut self) {
        self.listing = Some(BTreeMap::new());
    }

    /// An item of the list.
    pub(crate) fn list(&mut self, identity: Identity, object: Result<T, String>) -> WatchEvent {
        let Identity { key, uid, version } = identity;
        let Some(listing) = &mut self.listing else { return WatchEvent::Reordered };
        if listing.len() >= MOST {
            return WatchEvent::TooMany;
        }
        if listing.contains_key(&key) {
            return WatchEvent::Repeated;
        }
        let before = self.entries.get(&key).filter(|before| before.uid == uid);
        let (object, happened) = match (before.map(|before| &before.object), object) {
            (Some(Ok(before)), Ok(now)) if **before == now => (Ok(Arc::clone(before)), WatchEvent::Unchanged),
            (_, Ok(now)) => (Ok(Arc::new(now)), WatchEvent::Changed),
            (_, Err(why)) => (Err(why), WatchEvent::Unreadable),
        };
        listing.insert(key, Entry { uid, version, object });
        happened
    }

    /// The list is whole: what was not in it is gone.
    pub(crate) fn end_list(&mut self) {
        let Some(listing) = self.listing.take() else { return };
        let gone: Vec<_> = self
            .entries
            .iter()
            .filter(|(key, entry)| listing.get(*key).is_none_or(|now| now.uid != entry.uid))
            .map(|(_, entry)| entry.uid.clone())
            .collect();
        gone.into_iter().for_each(|uid| self.note_deleted(uid));
        // A store that was restored has some again.
        self.deleted.retain(|uid| !listing.values().any(|entry| entry.uid == *uid));
        self.entries = listing;
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// All of it. Objects that share a uid are unreadable: a request could meet either.
    pub(crate) fn view(&self, synced: bool, error: Option<String>) -> StoreView<T> {
        let mut owners = BTreeMap::<&str, u32>::new();
        for entry in self.entries.values() {
            *owners.entry(&entry.uid).or_default() += 1;
        }
        let mut view = StoreView { synced, objects: Vec::new(), unreadable: Vec::new(), error };
        for (key, entry) in &self.entries {
            let alone = owners.get(&*entry.uid).is_none_or(|count| *count < 2);
            let why = match &entry.object {
                Ok(object) if alone => {
                    view.objects.push(Arc::clone(object));
                    continue;
                }
                Ok(_) => format!("metadata.uid: `{:.60}` is that of another as well", entry.uid),
                Err(why) => why.clone(),
            };
            view.unreadable.push(UnreadableObject { key: key.clone(), why });
        }
        view
    }

    fn note_deleted(&mut self, uid: Box<str>) {
        if self.deleted.contains(&uid) {
            return;
        }
        if self.deleted.len() >= DELETED {
            self.deleted.pop_front();
        }
        self.deleted.push_back(uid);
    }
}

#[cfg(test)]
mod tests;
