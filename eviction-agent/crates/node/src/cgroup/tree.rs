//! The cgroups of one hierarchy below a folder.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::file::FileError;

/// The most cgroups that are read: a tenant that may create cgroups must not be able to exhaust the agent's
/// memory.
pub const MAX_GROUPS: usize = 1 << 17;

/// A cgroup and its position in the tree.
#[derive(Clone, Debug)]
pub struct Group {
    /// The cgroup id: the inode number of the directory.
    pub id: u64,
    /// Index of the parent; `None` for the root of the tree.
    pub parent: Option<usize>,
    /// Name of the directory; empty for the root of the tree.
    pub name: Box<OsStr>,
    /// Levels below the root of the tree.
    pub depth: usize,
    /// One past the index of the last cgroup below this one: the cgroups of a subtree are neighbours, each
    /// parent before its children.
    pub end: usize,
    /// Number of directories in this one, if the file system shows it.
    subfolders: Option<u64>,
}

/// All cgroups below a folder, in depth-first order, siblings by name.
#[derive(Clone, Debug)]
pub struct Tree {
    root: PathBuf,
    groups: Vec<Group>,
    skipped: usize,
}

impl Group {
    /// Reads the directory at `path`. What is below it is not known yet.
    fn read(path: &Path, name: &OsStr, parent: Option<usize>, depth: usize) -> io::Result<Self> {
        let found = std::fs::symlink_metadata(path)?;
        if !found.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        // A directory has a link for itself, one from its parent, and one from each child. File systems that do
        // not count links show 1.
        let (id, subfolders) = (found.ino(), found.nlink().checked_sub(2));
        Ok(Self { id, parent, name: name.into(), depth, end: 0, subfolders })
    }
}

impl Tree {
    /// Creates a tree of one branch below `root`, which has this id: each cgroup is inside the one before it.
    pub fn branch<'a>(root: &Path, id: u64, groups: impl IntoIterator<Item = (u64, &'a OsStr)>) -> Self {
        let all = std::iter::once((id, OsStr::new(""))).chain(groups);
        let group = |(index, (id, name)): (usize, (u64, &OsStr))| Group {
            id,
            parent: index.checked_sub(1),
            name: name.into(),
            depth: index,
            end: 0,
            subfolders: None,
        };
        let mut groups: Vec<_> = all.enumerate().map(group).collect();
        let end = groups.len();
        groups.iter_mut().for_each(|group| group.end = end);
        Self { root: root.to_owned(), groups, skipped: 0 }
    }

    /// Reads the tree below `root`. Cgroups that are removed meanwhile are left out; those that cannot be read are
    /// counted.
    ///
    /// # Errors
    /// If `root` itself cannot be read.
    pub fn scan(root: &Path) -> Result<Self, FileError> {
        Self::scan_at_most(root, MAX_GROUPS)
    }

    /// Reads the tree with at most `most` cgroups. The number of those left out is not known, since nothing
    /// below them is read; the count is a lower bound.
    ///
    /// # Errors
    /// If `root` itself cannot be read.
    pub fn scan_at_most(root: &Path, most: usize) -> Result<Self, FileError> {
        Self::read(root, None, most)
    }

    /// Reads this tree as it is now. Only directories are listed again whose number of children changed, or that
    /// lost one of their children; for the others one `stat` each is enough.
    ///
    /// # Errors
    /// If the root cannot be read.
    pub fn rescan(&self) -> Result<Self, FileError> {
        Self::read(&self.root, Some(self), MAX_GROUPS)
    }

    fn read(root: &Path, previous: Option<&Self>, most: usize) -> Result<Self, FileError> {
        let fail =
            |error: io::Error| FileError::new(format!("cannot read control group {}", root.display()), error);
        let known: HashMap<u64, usize> = previous
            .map(|tree| tree.groups.iter().enumerate().map(|(index, group)| (group.id, index)).collect())
            .unwrap_or_default();
        let mut tree = Self { root: root.to_owned(), groups: Vec::with_capacity(known.len()), skipped: 0 };
        let mut pending = vec![Group::read(root, OsStr::new(""), None, 0).map_err(fail)?];
        let mut path = PathBuf::new();
        while let Some(group) = pending.pop() {
            if tree.groups.len() >= most {
                tree.skipped += 1 + pending.len();
                break;
            }
            let index = tree.groups.len();
            let (id, depth, subfolders) = (group.id, group.depth, group.subfolders);
            tree.groups.push(Group { end: index + 1, ..group });
            if subfolders == Some(0) {
                continue;
            }
            tree.write_path(index, &mut path);
            let read = |path: &Path, name: &OsStr| Group::read(path, name, Some(index), depth + 1);
            let before = previous.zip(known.get(&id).copied());
            let unchanged = before.filter(|(tree, at)| tree.groups[*at].subfolders == subfolders);
            let children = match unchanged.and_then(|(tree, at)| tree.read_children(at, &mut path, read)) {
                Some(children) => children,
                None => match list_directories(&mut path, read) {
                    Ok((children, skipped)) => {
                        tree.skipped += skipped;
                        children
                    }
                    Err(error) if index == 0 => return Err(fail(error)),
                    Err(error) => {
                        tree.skipped += usize::from(!is_removed(&error));
                        continue;
                    }
                },
            };
            pending.extend(children.into_iter().rev());
        }
        for index in (1..tree.groups.len()).rev() {
            if let Some(parent) = tree.groups[index].parent {
                tree.groups[parent].end = tree.groups[parent].end.max(tree.groups[index].end);
            }
        }
        Ok(tree)
    }

    /// Returns the folder of the tree's root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns all cgroups; index 0 is the root.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Returns the number of cgroups that exist but could not be read, or were too many.
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// Returns the indices of the direct children of a cgroup.
    pub fn children(&self, index: usize) -> impl Iterator<Item = usize> {
        let end = self.groups.get(index).map_or(0, |group| group.end);
        let mut next = index + 1;
        std::iter::from_fn(move || {
            let child = next;
            let group = self.groups.get(child).filter(|_| child < end)?;
            next = group.end;
            Some(child)
        })
    }

    /// Returns whether a cgroup has no cgroups below it.
    pub fn is_leaf(&self, index: usize) -> bool {
        self.groups.get(index).is_some_and(|group| group.end == index + 1)
    }

    /// Returns the path of a cgroup from the root of the tree.
    pub fn relative_path(&self, index: usize) -> PathBuf {
        let mut names: Vec<&OsStr> = Vec::new();
        let mut at = Some(index);
        while let Some(group) = at.and_then(|at| self.groups.get(at)) {
            names.push(&group.name);
            at = group.parent;
        }
        names.iter().rev().filter(|name| !name.is_empty()).collect()
    }

    /// Writes the full path of a cgroup into `path`, and reuses its allocation.
    pub fn write_path(&self, index: usize, path: &mut PathBuf) {
        path.clear();
        path.push(&self.root);
        let depth = self.groups.get(index).map_or(0, |group| group.depth);
        // From the top, without recursion or a list, since a tenant may nest cgroups to any depth.
        for level in 1..=depth {
            let mut at = index;
            while self.groups[at].depth > level {
                at = self.groups[at].parent.unwrap_or(0);
            }
            path.push(self.groups[at].name.as_ref());
        }
    }

    /// Reads the children that `index` had when this tree was read, if it still has all of them and their number
    /// is known.
    fn read_children(
        &self,
        index: usize,
        path: &mut PathBuf,
        read: impl Fn(&Path, &OsStr) -> io::Result<Group>,
    ) -> Option<Vec<Group>> {
        let subfolders = self.groups[index].subfolders?;
        let mut children = Vec::new();
        for before in self.children(index).map(|child| &self.groups[child]) {
            path.push(before.name.as_ref());
            let child = read(path, &before.name);
            path.pop();
            children.push(child.ok().filter(|child| child.id == before.id)?);
        }
        (children.len() as u64 == subfolders).then_some(children)
    }
}

/// Returns the directories in `path`, sorted, and the number of those that cannot be read.
fn list_directories(
    path: &mut PathBuf,
    read: impl Fn(&Path, &OsStr) -> io::Result<Group>,
) -> io::Result<(Vec<Group>, usize)> {
    let mut children = Vec::new();
    let mut skipped = 0;
    for entry in std::fs::read_dir(&*path)? {
        let entry = entry?;
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let name = entry.file_name();
        path.push(&name);
        match read(path, &name) {
            Ok(child) => children.push(child),
            Err(error) => skipped += usize::from(!is_removed(&error)),
        }
        path.pop();
    }
    children.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((children, skipped))
}

/// Returns whether the cgroup was removed while it was being read.
fn is_removed(error: &io::Error) -> bool {
    const ENODEV: i32 = 19;
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ENODEV)
}
