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

/// The cgroups of one hierarchy by id, which is the inode number of their directory. On 64-bit machines the
/// kernel gives none twice: a generation is in its upper half (`__kernfs_new_node` in fs/kernfs/dir.c).
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
            // Should the id be another's by now, that one stays.
            Event::CgroupGone(change) => {
                let path = Path::new(OsStr::from_bytes(change.path));
                if self.paths.get(&change.id).is_some_and(|known| change.cut || known == path) {
                    self.paths.remove(&change.id);
                }
            }
            Event::CgroupMade(_)
            | Event::Crossed(_)
            | Event::OomKill(_)
            | Event::OomMark(_)
            | Event::TaskAlarm(_)
            | Event::KernelKill(_)
            | Event::DiskCrossed(_) => {}
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{CgroupChange, Stamp};

    fn change(id: u64, path: &str) -> CgroupChange<'_> {
        let stamp = Stamp { ktime_ns: 0, cpu: 0, seq: 0 };
        CgroupChange { stamp, id, level: 2, path: path.as_bytes(), cut: false }
    }

    #[test]
    fn an_id_that_is_given_again_is_its_new_owners_also_when_the_old_ones_end_comes_late() {
        let mut ids = CgroupIds::default();
        ids.apply(&Event::CgroupMade(change(7, "/kubepods/pod1")));
        ids.apply(&Event::CgroupGone(change(7, "/kubepods/pod1")));
        assert_eq!(ids.path(7), None);
        ids.apply(&Event::CgroupMade(change(7, "/kubepods/pod2")));
        assert_eq!(ids.path(7), Some(Path::new("/kubepods/pod2")));
        ids.apply(&Event::CgroupGone(change(7, "/kubepods/pod1")));
        assert_eq!(ids.path(7), Some(Path::new("/kubepods/pod2")));
        ids.apply(&Event::CgroupGone(CgroupChange { cut: true, ..change(7, "/kubepods/po") }));
        assert_eq!(ids.path(7), None);
    }
}
