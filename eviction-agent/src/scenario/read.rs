//! Reads scenarios from files, folders, streams with one scenario per line, and standard input. Each may be
//! compressed with zstd.

use std::io;
use std::io::BufRead;
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;

use crate::scenario::format::Case;
use crate::zstd_stream;

/// A scenario, or the reason why it cannot be read.
pub type CaseResult = Result<Case, String>;

/// A function that takes each scenario. Its error ends the reading.
pub type OnCase<'a> = dyn FnMut(CaseResult) -> io::Result<()> + 'a;

/// Passes each scenario at a path to `on_case`; `-` is standard input. Directories are searched for `.json` and
/// `.jsonl` files, with or without `.zst`, in the order of names.
///
/// # Errors
/// Those of `on_case`.
pub fn each(path: &Path, on_case: &mut OnCase<'_>) -> io::Result<()> {
    if path == Path::new("-") {
        return stream("standard input", &mut io::stdin().lock(), on_case);
    }
    match files(path) {
        Ok(files) => files.iter().try_for_each(|file| each_in_file(file, on_case)),
        Err(source) => on_case(Err(io_error(path, source))),
    }
}

fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.metadata()?.is_dir() {
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

fn each_in_file(path: &Path, on_case: &mut OnCase<'_>) -> io::Result<()> {
    match zstd_stream::open(path) {
        Ok(mut reader) => stream(&path.display().to_string(), &mut *reader, on_case),
        Err(source) => on_case(Err(io_error(path, source))),
    }
}

fn io_error(path: &Path, error: io::Error) -> String {
    format!("read {}: {error}", path.display())
}

/// Reads one value per line, unless the whole stream is one value over several lines.
fn stream(source_name: &str, reader: &mut dyn BufRead, on_case: &mut OnCase<'_>) -> io::Result<()> {
    let mut lines = Lines { source_name, number: 0, text: Vec::new() };
    match lines.next(reader) {
        Ok(true) if is_value(&lines.text) => {
            on_case(lines.case())?;
            return lines.each(reader, on_case);
        }
        Ok(true) => {}
        Ok(false) => return Ok(()),
        Err(error) => return on_case(Err(error)),
    }
    // This is either a value over several lines, or a stream with an invalid first line.
    let mut rest = Vec::new();
    if let Err(source) = reader.read_to_end(&mut rest) {
        return on_case(Err(lines.io(source)));
    }
    let is_stream =
        rest.split(|byte| *byte == b'\n').any(|line| line.first() == Some(&b'{') && is_value(line));
    if !is_stream {
        lines.text.append(&mut rest);
    }
    on_case(lines.case())?;
    lines.each(&mut rest.as_slice(), on_case)
}

fn is_value(text: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(text).is_ok()
}

/// The line that is being read.
struct Lines<'a> {
    source_name: &'a str,
    number: usize,
    text: Vec<u8>,
}

impl Lines<'_> {
    /// Passes each of the remaining lines to `on_case`.
    fn each(&mut self, reader: &mut dyn BufRead, on_case: &mut OnCase<'_>) -> io::Result<()> {
        loop {
            match self.next(reader) {
                Ok(true) => on_case(self.case())?,
                Ok(false) => return Ok(()),
                Err(error) => return on_case(Err(error)),
            }
        }
    }

    /// Reads the next line that is not empty. Returns false at the end.
    fn next(&mut self, reader: &mut dyn BufRead) -> Result<bool, String> {
        loop {
            self.text.clear();
            self.number += 1;
            let read = reader.read_until(b'\n', &mut self.text);
            match read.map_err(|source| self.io(source))? {
                0 => return Ok(false),
                _ if self.text.trim_ascii().is_empty() => {}
                _ => return Ok(true),
            }
        }
    }

    fn case(&self) -> CaseResult {
        serde_json::from_slice(self.text.trim_ascii_end()).map_err(|error| {
            let line = self.number - 1 + error.line().max(1);
            format!("parse {}:{line}: {error}", self.source_name)
        })
    }

    fn io(&self, error: io::Error) -> String {
        format!("read {}: {error}", self.source_name)
    }
}
