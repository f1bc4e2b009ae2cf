//! The files of a drop-in directory, in the order in which the kubelet takes them.

use std::path::{Path, PathBuf};

use super::super::problem::Problem;

/// Deeper directories are a mistake or a loop.
const MAX_DEPTH: usize = 16;

pub(super) struct DropIns {
    pub(super) files: Vec<PathBuf>,
    /// Notes on files that are passed over.
    pub(super) skipped: Vec<Problem>,
}

/// `*.conf` by name, directories included, symbolic links to directories not: `WalkDir`.
pub(super) fn list(dir: &Path) -> Result<DropIns, Problem> {
    let mut found = DropIns { files: Vec::new(), skipped: Vec::new() };
    walk(dir, 0, &mut found)?;
    Ok(found)
}

/// The files that count, for whoever keeps copies of them.
pub fn files_of(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    Ok(list(dir).map_err(|problem| std::io::Error::other(problem.to_string()))?.files)
}

fn walk(dir: &Path, depth: usize, found: &mut DropIns) -> Result<(), Problem> {
    let wrong = |cause: String| Problem::new("", cause).in_file(Some(dir));
    if depth > MAX_DEPTH {
        return Err(wrong("too many levels of directories".to_owned()));
    }
    let mut entries = std::fs::read_dir(dir)
        .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
        .map_err(|error| wrong(error.to_string()))?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let kind = entry.file_type().map_err(|error| wrong(error.to_string()))?;
        let path = entry.path();
        if kind.is_dir() {
            walk(&path, depth + 1, found)?;
        } else if entry.file_name().as_encoded_bytes().ends_with(b".conf") {
            found.files.push(path);
        } else {
            let note = Problem::new("", "is passed over: its name does not end in .conf");
            found.skipped.push(note.in_file(Some(&path)));
        }
    }
    Ok(())
}
