//! Finding scenarios: in a file, a folder, a stream with one a line, on standard input, each
//! also compressed with zstd.

use std::fs::File;
use std::io;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;

use crate::scenario::format::Case;
use crate::zstd_stream::Frames;

/// What was found at a place: a scenario, or why it is none.
pub type Found = Result<Case, String>;

/// Passes on everything that is found at a path, `-` being standard input. Directories are searched for `.json` and
/// `.jsonl`, with `.zst` behind or not, in the order of names.
pub fn each(path: &Path, use_one: &mut dyn FnMut(Found)) {
    if path == Path::new("-") {
        return stream("standard input", &mut io::stdin().lock(), use_one);
    }
    match files(path) {
        Ok(files) => files.iter().for_each(|file| each_in_file(file, use_one)),
        Err(source) => use_one(Err(io_error(path, source))),
    }
}

fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.metadata()?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut inside = Vec::new();
    for entry in path.read_dir()? {
        inside.push(entry?.path());
    }
    inside.sort();
    let mut found = Vec::new();
    for path in inside {
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

fn each_in_file(path: &Path, use_one: &mut dyn FnMut(Found)) {
    let place = path.display().to_string();
    let compressed = path.extension().is_some_and(|extension| extension == "zst");
    let opened = File::open(path).map(BufReader::new).map(|file| match compressed {
        true => Box::new(BufReader::new(Frames::new(file))) as Box<dyn BufRead>,
        false => Box::new(file),
    });
    match opened {
        Ok(mut reader) => stream(&place, &mut *reader, use_one),
        Err(source) => use_one(Err(io_error(path, source))),
    }
}

fn io_error(path: &Path, error: io::Error) -> String {
    format!("read {}: {error}", path.display())
}

/// One value a line, unless the whole is one value over several lines.
fn stream(place: &str, reader: &mut dyn BufRead, use_one: &mut dyn FnMut(Found)) {
    let mut lines = Lines { place, number: 0, text: Vec::new() };
    let mut first = true;
    loop {
        match lines.next(reader) {
            Ok(false) => return,
            Ok(true) if first && !is_value(&lines.text) => {
                return without_whole_first_line(lines, reader, use_one);
            }
            Ok(true) => use_one(lines.case()),
            Err(error) => return use_one(Err(error)),
        }
        first = false;
    }
}

/// Either a value over several lines, or a stream whose first line is broken.
fn without_whole_first_line(mut lines: Lines<'_>, reader: &mut dyn BufRead, use_one: &mut dyn FnMut(Found)) {
    let mut rest = Vec::new();
    if let Err(source) = reader.read_to_end(&mut rest) {
        return use_one(Err(lines.io(source)));
    }
    let is_stream =
        rest.split(|byte| *byte == b'\n').any(|line| line.first() == Some(&b'{') && is_value(line));
    if !is_stream {
        lines.text.append(&mut rest);
        return use_one(lines.case());
    }
    use_one(lines.case());
    let mut rest = rest.as_slice();
    while lines.next(&mut rest).unwrap_or(false) {
        use_one(lines.case());
    }
}

fn is_value(text: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(text).is_ok()
}

/// The line that is being read.
struct Lines<'a> {
    place: &'a str,
    number: usize,
    text: Vec<u8>,
}

impl Lines<'_> {
    /// Goes on to the next line that is not empty, if there is one.
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

    fn case(&self) -> Found {
        serde_json::from_slice(self.text.trim_ascii_end()).map_err(|error| {
            let line = self.number - 1 + error.line().max(1);
            format!("parse {}:{line}: {error}", self.place)
        })
    }

    fn io(&self, error: io::Error) -> String {
        format!("read {}: {error}", self.place)
    }
}
