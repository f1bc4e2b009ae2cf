//! The kernel's notification that a cgroup ran into a limit or out of memory.
//!
//! On cgroup v2 `memory.events` can be polled, and reports the cgroups below it as well. On v1
//! `cgroup.event_control` binds an eventfd to `memory.oom_control`. Both report only that something happened,
//! so the counters have to be read. On v1 neither reports a machine that is out of memory without any limit.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::OFlags;
use tokio::io::unix::AsyncFd;

use super::register;
use crate::cgroup::files::Version;
use crate::cgroup::tree::Tree;
use crate::file::{FileError, open_path, retry};

/// The name of the backend.
pub const NAME: &str = "memory.events";

/// The most cgroups that are added per call: each takes the kernel about 20 us.
const MAX_ADDED_PER_CALL: usize = 64;

/// Returns whether the `memory.events` of the cgroup v2 in the folder `group` can be watched.
///
/// # Errors
/// If there is no such file, or it cannot be read.
pub fn probe(group: &Path) -> Result<(), FileError> {
    let path = group.join(NAME);
    open_path(&path, OFlags::RDONLY)
        .map(drop)
        .map_err(|errno| FileError::new(format!("cannot watch {}", path.display()), errno))
}

/// Watches the cgroups of one hierarchy, from the first call of [`MemoryEventsWatch::watch_all`] or
/// [`MemoryEventsWatch::watch_node`] on.
#[derive(Debug)]
pub struct MemoryEventsWatch {
    version: Version,
    watch: Option<EpollWatch>,
}

#[derive(Debug)]
struct EpollWatch {
    epoll: AsyncFd<OwnedFd>,
    /// The eventfd of all cgroups, for v1.
    event: OwnedFd,
    /// The watched cgroups by id, on v2 with the file to poll.
    groups: BTreeMap<u64, Option<OwnedFd>>,
}

impl MemoryEventsWatch {
    /// Creates a watch without cgroups for a hierarchy of this version.
    pub fn new(version: Version) -> Self {
        Self { version, watch: None }
    }

    /// Watches every cgroup of this tree in which the kernel may kill, some more at each call. A cgroup that cannot
    /// be watched is covered by the counters, which are read anyway.
    ///
    /// # Errors
    /// If no cgroup can be watched.
    pub fn watch_all(&mut self, tree: &Tree) -> io::Result<()> {
        // On v2 a cgroup reports those below it, and the root of the hierarchy has no file.
        let deepest = match self.version {
            Version::V1 => usize::MAX,
            Version::V2 => 1,
        };
        self.watch(tree, deepest)
    }

    /// Watches the root of this tree, the node's own cgroup.
    ///
    /// # Errors
    /// If no cgroup can be watched.
    pub fn watch_node(&mut self, tree: &Tree) -> io::Result<()> {
        self.watch(tree, 0)
    }

    fn watch(&mut self, tree: &Tree, deepest: usize) -> io::Result<()> {
        let watch = match &mut self.watch {
            Some(watch) => watch,
            none => none.insert(EpollWatch::new()?),
        };
        watch.update(tree, self.version, deepest);
        Ok(())
    }

    /// Stops watching. Closing the returned value takes some time per cgroup.
    #[must_use = "dropping it takes time"]
    pub fn clear(&mut self) -> Option<impl Send + use<>> {
        self.watch.take()
    }

    /// Waits until a cgroup ran into a limit or out of memory, or was removed; forever while nothing is watched.
    /// Cancel-safe.
    ///
    /// # Errors
    /// If the epoll descriptor cannot be waited for.
    pub async fn fired(&self) -> io::Result<()> {
        let Some(EpollWatch { epoll, .. }) = &self.watch else { return std::future::pending().await };
        loop {
            let mut ready = epoll.readable().await?;
            let mut events = Vec::with_capacity(16);
            let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            match epoll::wait(epoll, spare_capacity(&mut events), Some(&none)) {
                Ok(count) if count > 0 => return Ok(()),
                // Events that do not fit come with the next call.
                Ok(_) | Err(_) => ready.clear_ready(),
            }
        }
    }
}

impl EpollWatch {
    fn new() -> io::Result<Self> {
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&all, &event, epoll::EventData::new_u64(0), edges)?;
        Ok(Self { epoll: register(all)?, event, groups: BTreeMap::new() })
    }

    fn update(&mut self, tree: &Tree, version: Version, deepest: usize) {
        let groups = tree.groups();
        let present: BTreeSet<u64> = groups.iter().map(|group| group.id).collect();
        self.groups.retain(|id, _| present.contains(id));
        let wanted = groups.iter().enumerate().filter(|(_, group)| group.depth <= deepest);
        let new: Vec<_> = wanted
            .filter(|(_, group)| !self.groups.contains_key(&group.id))
            .take(MAX_ADDED_PER_CALL)
            .collect();
        for (index, group) in new {
            let folder = tree.root().join(tree.relative_path(index));
            let file = match version {
                Version::V1 => self.watch_oom_control(&folder).ok().and(None),
                Version::V2 => self.watch_memory_events(&folder, group.id).ok(),
            };
            self.groups.insert(group.id, file);
        }
    }

    fn watch_oom_control(&self, folder: &Path) -> io::Result<()> {
        let control = open_path(&folder.join("memory.oom_control"), OFlags::RDONLY)?;
        let events = open_path(&folder.join("cgroup.event_control"), OFlags::WRONLY)?;
        let request = format!("{} {}", self.event.as_raw_fd(), control.as_raw_fd());
        retry(|| rustix::io::write(&events, request.as_bytes()))?;
        Ok(())
    }

    fn watch_memory_events(&self, folder: &Path, id: u64) -> io::Result<OwnedFd> {
        let file = open_path(&folder.join("memory.events"), OFlags::RDONLY)?;
        let edges = epoll::EventFlags::PRI | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &file, epoll::EventData::new_u64(id), edges)?;
        Ok(file)
    }
}
