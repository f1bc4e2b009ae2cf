//! The groups of one hierarchy below a folder.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// More groups than this are not looked at: a tenant that may make groups of its own must not
/// be able to exhaust the agent's memory.
pub const MAX_GROUPS: usize = 1 << 17;

/// A group and its place in the tree.
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
    /// One past the index of the last group below this one: the groups of a subtree are
    /// neighbours, each parent before its children.
    pub end: usize,
    /// Number of directories in this one, where the file system says.
    subfolders: Option<u64>,
}

/// All groups below a folder, in depth-first order, siblings by name.
#[derive(Clone, Debug)]
pub struct Tree {
    root: PathBuf,
    groups: Vec<Group>,
    skipped: usize,
}

/// Why there is no tree.
#[derive(Debug, Error)]
#[error("cannot read control group {}", path.display())]
pub struct ScanError {
    /// The root of the tree.
    pub path: PathBuf,
    /// The cause.
    #[source]
    pub source: io::Error,
}

/// A directory that was looked at.
#[derive(Clone, Copy)]
struct ScannedDir {
    id: u64,
    subfolders: Option<u64>,
}

impl ScannedDir {
    fn at(path: &Path) -> io::Result<Self> {
        let found = std::fs::symlink_metadata(path)?;
        if !found.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        // A directory has a link for itself, one from its parent, and one from each child,
        // except on file systems that do not count and say 1.
        Ok(Self { id: found.ino(), subfolders: found.nlink().checked_sub(2) })
    }
}

impl Tree {
    /// One branch below `root`, whose id is given: each of the groups is inside the one before it.
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

    /// Reads the tree below `root`.
    ///
    /// With a `previous` tree only directories whose number of children changed, or one of
    /// whose children is gone, are listed again; for the others one `stat` each is enough.
    /// Groups that vanish meanwhile are left out; those that cannot be read are counted.
    pub fn scan(root: &Path, previous: Option<&Self>) -> Result<Self, ScanError> {
        Self::scan_at_most(root, previous, MAX_GROUPS)
    }

    /// The same with no more than `most` groups. How many those are that are left out is not known,
    /// since nobody looks below them; at least as many are counted as were come by.
    pub fn scan_at_most(root: &Path, previous: Option<&Self>, most: usize) -> Result<Self, ScanError> {
        let fail = |source| ScanError { path: root.to_owned(), source };
        let known: HashMap<u64, usize> = previous
            .map(|tree| tree.groups.iter().enumerate().map(|(index, group)| (group.id, index)).collect())
            .unwrap_or_default();
        let mut tree = Self { root: root.to_owned(), groups: Vec::with_capacity(known.len()), skipped: 0 };
        let mut pending = vec![(None, OsString::new(), ScannedDir::at(root).map_err(fail)?)];
        let mut path = PathBuf::new();
        while let Some((parent, name, seen)) = pending.pop() {
            if tree.groups.len() >= most {
                tree.skipped += 1 + pending.len();
                break;
            }
            let index = tree.groups.len();
            tree.groups.push(Group {
                id: seen.id,
                parent,
                name: name.into(),
                depth: parent.map_or(0, |parent: usize| tree.groups[parent].depth + 1),
                end: index + 1,
                subfolders: seen.subfolders,
            });
            if seen.subfolders == Some(0) {
                continue;
            }
            tree.write_path(index, &mut path);
            let before = previous.zip(known.get(&seen.id).copied());
            let children = match before.and_then(|(tree, at)| tree.same_children(at, seen, &mut path)) {
                Some(children) => children,
                None => match list(&mut path) {
                    Ok((children, skipped)) => {
                        tree.skipped += skipped;
                        children
                    }
                    Err(error) if parent.is_none() => return Err(fail(error)),
                    Err(error) => {
                        tree.skipped += usize::from(!is_gone(&error));
                        continue;
                    }
                },
            };
            pending.extend(children.into_iter().rev().map(|(name, seen)| (Some(index), name, seen)));
        }
        for index in (1..tree.groups.len()).rev() {
            if let Some(parent) = tree.groups[index].parent {
                tree.groups[parent].end = tree.groups[parent].end.max(tree.groups[index].end);
            }
        }
        Ok(tree)
    }

    /// The folder that the tree is of.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// All groups; index 0 is the root.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Groups that exist but could not be read, or were too many.
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// The indices of the direct children of a group.
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

    /// Whether a group has no groups below it.
    pub fn is_leaf(&self, index: usize) -> bool {
        self.groups.get(index).is_some_and(|group| group.end == index + 1)
    }

    /// The path of a group from the root of the tree.
    pub fn relative_path(&self, index: usize) -> PathBuf {
        let mut names: Vec<&OsStr> = Vec::new();
        let mut at = Some(index);
        while let Some(group) = at.and_then(|at| self.groups.get(at)) {
            names.push(&group.name);
            at = group.parent;
        }
        names.iter().rev().filter(|name| !name.is_empty()).collect()
    }

    /// Writes the full path of a group into `path`, keeping its memory.
    pub fn write_path(&self, index: usize, path: &mut PathBuf) {
        path.clear();
        path.push(&self.root);
        let depth = self.groups.get(index).map_or(0, |group| group.depth);
        // From the top, without recursion or a list: a tenant may nest as deep as it likes.
        for level in 1..=depth {
            let mut at = index;
            while self.groups[at].depth > level {
                at = self.groups[at].parent.unwrap_or(0);
            }
            path.push(self.groups[at].name.as_ref());
        }
    }

    /// The children of `index` as they were, if they are all still what they were.
    fn same_children(
        &self,
        index: usize,
        now: ScannedDir,
        path: &mut PathBuf,
    ) -> Option<Vec<(OsString, ScannedDir)>> {
        let before = self.groups.get(index)?;
        if before.subfolders.is_none() || before.subfolders != now.subfolders {
            return None;
        }
        let mut children = Vec::new();
        for child in self.children(index) {
            path.push(self.groups[child].name.as_ref());
            let seen = ScannedDir::at(path);
            path.pop();
            children.push((
                self.groups[child].name.to_os_string(),
                seen.ok().filter(|seen| seen.id == self.groups[child].id)?,
            ));
        }
        (Some(children.len() as u64) == now.subfolders).then_some(children)
    }
}

/// The directories in `path`, sorted, and the number of those that cannot be looked at.
fn list(path: &mut PathBuf) -> io::Result<(Vec<(OsString, ScannedDir)>, usize)> {
    let mut children = Vec::new();
    let mut skipped = 0;
    for entry in std::fs::read_dir(&*path)? {
        let entry = entry?;
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let name = entry.file_name();
        path.push(&name);
        match ScannedDir::at(path) {
            Ok(seen) => children.push((name, seen)),
            Err(error) => skipped += usize::from(!is_gone(&error)),
        }
        path.pop();
    }
    children.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok((children, skipped))
}

/// Whether the group was removed while it was being read.
fn is_gone(error: &io::Error) -> bool {
    const ENODEV: i32 = 19;
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ENODEV)
}
