//! From a cgroup's id to its path: a walk at the start, and then the records of cgroups made
//! and removed.

use std::{
    collections::HashMap,
    ffi::OsStr,
    fs, io,
    os::unix::{ffi::OsStrExt as _, fs::DirEntryExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use super::event::Event;

/// The cgroups of one hierarchy by id, which is the inode number of their directory.
#[derive(Debug, Default)]
pub struct CgroupIds {
    paths: HashMap<u64, PathBuf>,
}

impl CgroupIds {
    /// Walks the hierarchy mounted at `mount`. Directories that vanish meanwhile are left out.
    pub fn read(mount: &Path) -> io::Result<Self> {
        let mut paths = HashMap::new();
        paths.insert(fs::metadata(mount)?.ino(), PathBuf::from("/"));
        let mut open = vec![(mount.to_owned(), PathBuf::from("/"))];
        while let Some((directory, path)) = open.pop() {
            let Ok(entries) = fs::read_dir(&directory) else {
                continue;
            };
            for entry in entries.flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    let path = path.join(entry.file_name());
                    paths.insert(entry.ino(), path.clone());
                    open.push((entry.path(), path));
                }
            }
        }
        Ok(Self { paths })
    }

    /// Takes in a record; those that are not about cgroups change nothing. A path that was cut
    /// is not taken: the next walk finds it.
    pub fn apply(&mut self, event: &Event<'_>) {
        match event {
            Event::CgroupMade(change) if !change.cut => {
                let path = Path::new(OsStr::from_bytes(change.path));
                self.paths.insert(change.id, path.to_owned());
            }
            Event::CgroupGone(change) => {
                self.paths.remove(&change.id);
            }
            Event::CgroupMade(_) | Event::Crossed(_) | Event::OomKill(_) | Event::OomMark(_) => {}
        }
    }

    /// The path below the hierarchy's root (`/` is the root itself) of the cgroup with this id.
    pub fn path(&self, id: u64) -> Option<&Path> {
        self.paths.get(&id).map(PathBuf::as_path)
    }

    /// How many cgroups are known.
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }
}

/// The id of the cgroup whose directory this is.
pub fn read_cgroup_id(directory: &Path) -> io::Result<u64> {
    fs::metadata(directory).map(|metadata| metadata.ino())
}
