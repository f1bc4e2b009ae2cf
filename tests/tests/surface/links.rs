//! Checks that links between the pages have a target.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use tests::folder::repository;

use super::{Text, pages};

#[test]
fn every_link_between_pages_has_a_target() {
    let pages = pages();
    let mut found = 0;
    let mut broken = Vec::new();
    for page in &pages {
        for target in links(&page.text) {
            found += 1;
            if let Err(cause) = resolve(page, target, &pages) {
                broken.push(format!("{}: {target}: {cause}", page.name));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(found > 50, "only {found} links were found");
}

/// Returns the targets of the links in a page, except those that lead to other sites.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
}

fn resolve(page: &Text, target: &str, pages: &[Text]) -> Result<(), &'static str> {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = Path::new(&page.name).parent().unwrap_or(Path::new(""));
    let name = if path.is_empty() { PathBuf::from(&page.name) } else { normal(&folder.join(path)) };
    if !repository(&name).exists() {
        return Err("there is no such file");
    }
    let page = pages.iter().find(|page| Path::new(&page.name) == name);
    match page {
        Some(page) if !anchor.is_empty() && !anchors(&page.text).contains(anchor) => {
            Err("the page has no such heading")
        }
        _ => Ok(()),
    }
}

/// Returns a path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut parts: Vec<Component<'_>> = Vec::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(parts.pop()),
            Component::CurDir => {}
            part => parts.push(part),
        }
    }
    parts.into_iter().collect()
}

/// Returns the anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut anchors = BTreeSet::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if !fenced && line.starts_with('#') {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|it| it.is_alphanumeric() || [' ', '-', '_'].contains(it));
            anchors.insert(kept.collect::<String>().replace(' ', "-"));
        }
    }
    anchors
}

#[test]
fn a_link_without_a_target_is_found() {
    let page = Text { name: "docs/reference/a.md".to_owned(), text: "# `A` thing, of it\n".to_owned() };
    let pages = [page];
    for (target, expected) in [
        ("#a-thing-of-it", Ok(())),
        ("#another", Err("the page has no such heading")),
        ("../../README.md", Ok(())),
        ("../README.md", Err("there is no such file")),
    ] {
        let target_page = Text { name: "README.md".to_owned(), text: pages[0].text.clone() };
        let page = if target.starts_with('#') { &target_page } else { &pages[0] };
        assert_eq!(resolve(page, target, std::slice::from_ref(&target_page)), expected, "{target}");
    }
    assert_eq!(links("[a](b.md#c) [d](https://e) [f](g)").collect::<Vec<_>>(), ["b.md#c", "g"]);
}
