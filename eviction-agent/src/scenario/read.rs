//! Reads scenarios from files, folders, streams with one scenario per line, and standard input. Each may be
//! compressed with zstd.

use std::io::{self, BufRead, Cursor};
use std::iter;
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;

use crate::scenario::format::Case;
use crate::zstd_stream;

/// A scenario, or the reason why it cannot be read.
pub type CaseResult = Result<Case, String>;

/// The path that means standard input.
const STDIN: &str = "-";

/// Reads each scenario at a path; `-` is standard input. Directories are searched for `.json` and `.jsonl`
/// files, with or without `.zst`, in the order of names.
pub fn cases(path: &Path) -> impl Iterator<Item = CaseResult> + use<> {
    let (files, error) = match files(path) {
        Ok(files) => (files, None),
        Err(error) => (Vec::new(), Some(Err(read_error(&path.display().to_string(), &error)))),
    };
    error.into_iter().chain(files.into_iter().flat_map(|file| in_file(&file)))
}

fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if path == Path::new(STDIN) || !path.metadata()?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut entries = Vec::new();
    for entry in path.read_dir()? {
        entries.push(entry?.path());
    }
    entries.sort();
    let mut found = Vec::new();
    for path in entries {
        let name = path.to_string_lossy();
        let name = name.strip_suffix(".zst").unwrap_or(&name);
        if path.is_dir() {
            found.append(&mut files(&path)?);
        } else if name.ends_with(".json") || name.ends_with(".jsonl") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Returns the scenarios of a file as they are read, because a stream may be long and may come slowly.
fn in_file(path: &Path) -> impl Iterator<Item = CaseResult> + use<> {
    let (name, reader): (_, io::Result<Box<dyn BufRead>>) = if path == Path::new(STDIN) {
        ("standard input".to_owned(), Ok(Box::new(io::stdin().lock())))
    } else {
        (path.display().to_string(), zstd_stream::open(path))
    };
    let (stream, error) = match reader {
        Ok(reader) => (Some(in_stream(name, reader)), None),
        Err(error) => (None, Some(Err(read_error(&name, &error)))),
    };
    error.into_iter().chain(stream.into_iter().flatten())
}

/// Reads one scenario per line, unless the whole stream is one over several lines.
fn in_stream(name: String, mut reader: Box<dyn BufRead>) -> impl Iterator<Item = CaseResult> {
    // The number of the line that was read last.
    let mut number = 0;
    iter::from_fn(move || match next_text(&mut reader, &mut number) {
        Ok(text) if text.is_empty() => None,
        Ok(text) => Some(serde_json::from_slice(text.trim_ascii_end()).map_err(|error| {
            let line = number - 1 + error.line().max(1);
            format!("parse {name}:{line}: {error}")
        })),
        Err(error) => {
            // The position is unknown after an error.
            reader = Box::new(io::empty());
            Some(Err(read_error(&name, &error)))
        }
    })
}

/// Returns the next line that is not blank, or all lines if they are one value. Returns an empty text at
/// the end. `number` is that of the line that was read last.
fn next_text(reader: &mut Box<dyn BufRead>, number: &mut usize) -> io::Result<Vec<u8>> {
    let (is_first, mut text) = (*number == 0, Vec::new());
    while text.trim_ascii().is_empty() {
        text.clear();
        *number += 1;
        if reader.read_until(b'\n', &mut text)? == 0 {
            return Ok(text);
        }
    }
    if is_first && !is_value(&text) {
        // This is either a value over several lines, or a stream with an invalid first line.
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest)?;
        let is_stream =
            rest.split(|byte| *byte == b'\n').any(|line| line.first() == Some(&b'{') && is_value(line));
        if !is_stream {
            text.append(&mut rest);
        }
        *reader = Box::new(Cursor::new(rest));
    }
    Ok(text)
}

fn is_value(text: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(text).is_ok()
}

fn read_error(name: &str, error: &io::Error) -> String {
    format!("read {name}: {error}")
}
