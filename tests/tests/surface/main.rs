//! What users and external tools read: the words in it, and the links between the pages.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod kubectl_plugin;
mod links;
mod metrics;
mod pipes;
mod promtool;
mod screen;
mod words;

use tests::folder::repository;

/// A text, and the name by which a failure reports it.
struct Text {
    name: String,
    text: String,
}

/// Returns the pages: README.md, CONTRIBUTING.md, CHANGELOG.md and everything below docs.
fn pages() -> Vec<Text> {
    let mut pages: Vec<_> = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(read).into();
    pages.extend(files("docs").into_iter().filter(|page| page.name.ends_with(".md")));
    pages
}

fn read(name: &str) -> Text {
    let text = std::fs::read_to_string(repository(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    Text { name: name.to_owned(), text }
}

/// Returns the text files below a folder of the repository, sorted by name, without pictures.
fn files(folder: &str) -> Vec<Text> {
    let entries = std::fs::read_dir(repository(folder)).unwrap().map(|entry| entry.unwrap());
    let is_text = |entry: &std::fs::DirEntry| entry.path().extension().is_none_or(|it| it != "png");
    let mut entries: Vec<_> = entries.filter(is_text).collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    let below = entries.iter().map(|entry| {
        let name = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.file_type().unwrap().is_dir() { files(&name) } else { vec![read(&name)] }
    });
    below.flatten().collect()
}
