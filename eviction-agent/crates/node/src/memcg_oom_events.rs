//! The kernel's word that a group ran out of memory, for where no program says so.
//!
//! On version 1 `cgroup.event_control` joins an eventfd to `memory.oom_control`; on version 2
//! `memory.events` of a group can be polled and tells of all groups below it. Both say that
//! something happened and not what: the counts have to be read. Neither tells of a machine that runs
//! out of memory without any limit on version 1.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{Mode, OFlags};
use tokio::io::unix::AsyncFd;

use super::async_fd::register;
use super::cgroup::files::Version;
use super::cgroup::tree::Tree;
use super::file::retry;

/// Groups that are joined in one go: each takes the kernel some 20 µs.
const AT_ONCE: usize = 64;

/// What is watched; nothing until [`MemcgOomEvents::follow`] is called.
#[derive(Debug)]
pub struct MemcgOomEvents {
    version: Version,
    watch: Option<OomFdWatch>,
    failed: bool,
}

#[derive(Debug)]
struct OomFdWatch {
    epoll: AsyncFd<OwnedFd>,
    /// Of version 1, for all groups.
    event: OwnedFd,
    /// By the group's id; the file to poll on version 2.
    groups: BTreeMap<u64, Option<OwnedFd>>,
}

impl MemcgOomEvents {
    /// For a hierarchy of this version.
    pub fn new(version: Version) -> Self {
        Self { version, watch: None, failed: false }
    }

    /// Watches the groups of this tree, some more at each call. A group that cannot be watched is
    /// left to the counts, which are read anyway.
    ///
    /// # Errors
    /// If nothing at all can be watched; that is told once.
    pub fn follow(&mut self, tree: &Tree) -> io::Result<()> {
        if self.failed {
            return Ok(());
        }
        if self.watch.is_none() {
            self.failed = true;
            self.watch = Some(OomFdWatch::new()?);
            self.failed = false;
        }
        if let Some(watch) = &mut self.watch {
            watch.follow(tree, self.version);
        }
        Ok(())
    }

    /// Watches nothing any more; what was watched by, to be dropped where time does not matter.
    pub fn rest(&mut self) -> Option<impl Send + 'static> {
        self.watch.take()
    }

    /// Waits until some group ran out of memory, or was removed. For ever, where nothing is watched.
    pub async fn noticed(&self) {
        let Some(OomFdWatch { epoll, .. }) = &self.watch else { return std::future::pending().await };
        loop {
            let Ok(mut ready) = epoll.readable().await else { return std::future::pending().await };
            let mut events = Vec::with_capacity(16);
            let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            match epoll::wait(epoll, spare_capacity(&mut events), Some(&none)) {
                Ok(count) if count > 0 => return,
                // What else there is comes with the next call.
                Ok(_) | Err(_) => ready.clear_ready(),
            }
        }
    }
}

impl OomFdWatch {
    fn new() -> io::Result<Self> {
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&all, &event, epoll::EventData::new_u64(0), edges)?;
        Ok(Self { epoll: register(all)?, event, groups: BTreeMap::new() })
    }

    fn follow(&mut self, tree: &Tree, version: Version) {
        let groups = tree.groups();
        let present: BTreeSet<u64> = groups.iter().map(|group| group.id).collect();
        self.groups.retain(|id, _| present.contains(id));
        // On version 2 a group tells of those below it, and the root of the hierarchy has no file.
        let deepest = if version == Version::V1 { usize::MAX } else { 1 };
        let wanted = groups.iter().enumerate().filter(|(_, group)| group.depth <= deepest);
        let new: Vec<_> =
            wanted.filter(|(_, group)| !self.groups.contains_key(&group.id)).take(AT_ONCE).collect();
        for (index, group) in new {
            let folder = tree.root().join(tree.relative_path(index));
            let file = match version {
                Version::V1 => self.join(&folder).ok().and(None),
                Version::V2 => self.poll(&folder, group.id).ok(),
            };
            self.groups.insert(group.id, file);
        }
    }

    fn join(&self, folder: &Path) -> io::Result<()> {
        let control = open(&folder.join("memory.oom_control"), OFlags::RDONLY)?;
        let events = open(&folder.join("cgroup.event_control"), OFlags::WRONLY)?;
        let request = format!("{} {}", self.event.as_raw_fd(), control.as_raw_fd());
        retry(|| rustix::io::write(&events, request.as_bytes()))?;
        Ok(())
    }

    fn poll(&self, folder: &Path, id: u64) -> io::Result<OwnedFd> {
        let file = open(&folder.join("memory.events"), OFlags::RDONLY)?;
        let edges = epoll::EventFlags::PRI | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &file, epoll::EventData::new_u64(id), edges)?;
        Ok(file)
    }
}

fn open(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(retry(|| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()))?)
}
