//! The files of a drop-in directory, in the order in which the kubelet takes them.

use std::path::{Path, PathBuf};

use super::super::problem::Problem;

pub(super) struct DropIns {
    pub(super) files: Vec<PathBuf>,
    /// Notes on files that are passed over.
    pub(super) skipped: Vec<Problem>,
}

/// `*.conf` by name, directories included, symbolic links to directories not: `WalkDir`.
pub(super) fn list(dir: &Path) -> Result<DropIns, Problem> {
    let mut found = DropIns { files: Vec::new(), skipped: Vec::new() };
    walk(dir, &mut found)?;
    Ok(found)
}

/// The files that count, for whoever keeps copies of them.
pub fn files_of(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    Ok(list(dir).map_err(|problem| std::io::Error::other(problem.to_string()))?.files)
}

fn walk(dir: &Path, found: &mut DropIns) -> Result<(), Problem> {
    let wrong = |cause: std::io::Error| Problem::new("", cause).in_file(Some(dir));
    let mut entries =
        std::fs::read_dir(dir).and_then(Iterator::collect::<std::io::Result<Vec<_>>>).map_err(wrong)?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let kind = entry.file_type().map_err(wrong)?;
        let path = entry.path();
        if kind.is_dir() {
            walk(&path, found)?;
        } else if entry.file_name().as_encoded_bytes().ends_with(b".conf") {
            found.files.push(path);
        } else {
            let note = Problem::new("", "is passed over: its name does not end in .conf");
            found.skipped.push(note.in_file(Some(&path)));
        }
    }
    Ok(())
}
