//! Checks that the top-level modules of a crate of the agent do not import each other in a cycle.
//!
//! Imports are found in the text: paths that begin with `crate::`, and chains of `super::` that leave a top-level
//! module. Unit tests may import anything.

#![expect(clippy::unwrap_used, reason = "for tests alone")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use tests::folder::repository;

/// The modules that each top-level module imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

#[test]
fn no_crate_has_an_import_cycle() {
    let agent = repository("eviction-agent");
    let crates = fs::read_dir(agent.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let sources: Vec<PathBuf> = crates.chain([agent]).map(|folder| folder.join("src")).collect();
    assert!(sources.len() > 5, "the crates are found: {sources:?}");
    for source in sources {
        let imports = read_imports(&source);
        assert!(imports.len() > 1, "{}: no modules", source.display());
        assert_eq!(find_cycle(&imports), None, "{}", source.display());
    }
}

#[test]
fn an_import_cycle_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let file = folder.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    write("lib.rs", "mod a;\nmod b;\nmod c;\npub use c::{Thing, deep::Other};\n");
    write("a.rs", "use std::fmt;\nuse crate::{b, b::inner::{X, Y}};\n// use crate::c;\n");
    write("b/mod.rs", "mod inner;\n#[cfg(test)]\nmod tests;\n");
    write("b/inner.rs", "use super::super::c::Thing;\nuse super::tests;\n");
    write("b/tests.rs", "use crate::a;\n");
    write("c.rs", "fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n");
    assert_eq!(find_cycle(&read_imports(folder.path())), None);
    for import in ["use super::a::A;", "fn f() -> crate::a::A {}", "use crate::{\n    b::X,\n    d,\n};"] {
        write("c.rs", import);
        let cycle = find_cycle(&read_imports(folder.path())).expect(import);
        assert!(cycle.ends_with(&["c".to_owned()]) || cycle.contains(&"c".to_owned()), "{cycle:?}");
    }
    write("c.rs", "");
    write("d.rs", "use crate::Other;");
    write("c/deep.rs", "use crate::d;");
    let cycle = find_cycle(&read_imports(folder.path()));
    assert_eq!(cycle, Some(["c", "d", "c"].map(str::to_owned).to_vec()), "a re-export of the root counts");
}

fn read_imports(source: &Path) -> Imports {
    let mut files = Vec::new();
    find_files(source, &mut files);
    let module = |file: &Path| -> Vec<String> {
        let path = file.strip_prefix(source).unwrap().with_extension("");
        let parts = path.iter().map(|part| part.to_str().unwrap().to_owned());
        parts.filter(|part| !["mod", "lib", "main"].contains(&part.as_str())).collect()
    };
    let modules: BTreeSet<String> = files.iter().filter_map(|file| module(file).into_iter().next()).collect();
    let exports =
        fs::read_to_string(source.join("lib.rs")).map_or_else(|_| BTreeMap::new(), |lib| exports(&lib));
    let mut imports: Imports = modules.iter().map(|module| (module.clone(), BTreeSet::new())).collect();
    for file in &files {
        let path = module(file);
        let Some(imported) = path.first().and_then(|top| imports.get_mut(top)) else { continue };
        for name in names_at_root(&without_tests(&fs::read_to_string(file).unwrap()), path.len()) {
            let name = exports.get(&name).unwrap_or(&name);
            if modules.contains(name) && Some(name) != path.first() {
                imported.insert(name.clone());
            }
        }
    }
    imports
}

/// Finds all source files below the folder, except those of unit tests.
fn find_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        if stem == "tests" || stem.ends_with("_tests") {
            continue;
        }
        if path.is_dir() {
            find_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
}

/// Returns the text without comments and without the unit tests, which are last.
fn without_tests(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).map(|line| format!("{line}\n")).collect()
}

/// Returns the first names of all paths that begin at the root, in a module that is `depth` modules below it.
fn names_at_root(text: &str, depth: usize) -> BTreeSet<String> {
    let to_root = "super::".repeat(depth);
    let starts = ["crate::", to_root.as_str()].into_iter().flat_map(|start| {
        let found = text.match_indices(start).filter(|(at, _)| {
            let before = text[..*at].chars().next_back();
            !before.is_some_and(|before| before.is_alphanumeric() || "_:$".contains(before))
        });
        found.map(move |(at, _)| &text[at + start.len()..]).collect::<Vec<_>>()
    });
    starts.flat_map(first_names).filter(|name| !name.is_empty()).collect()
}

/// Returns the first names of a path: `a::{b, c}` → `a`; `{a, b::{c, d}}` → `a`, `b`.
fn first_names(path: &str) -> Vec<String> {
    let name = |text: &str| -> String {
        text.trim_start().chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
    };
    let Some(group) = path.strip_prefix('{') else { return vec![name(path)] };
    let (mut names, mut depth) = (vec![name(group)], 1);
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => names.push(name(&group[at + 1..])),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names
}

/// Returns the module of each name that the root re-exports.
fn exports(lib: &str) -> BTreeMap<String, String> {
    let mut exports = BTreeMap::new();
    for statement in lib.split("pub use ").skip(1).filter_map(|text| text.split(';').next()) {
        let Some((module, names)) = statement.split_once("::") else { continue };
        let words = names.split(|letter: char| !(letter.is_alphanumeric() || letter == '_'));
        exports.extend(words.map(|word| (word.to_owned(), module.to_owned())));
    }
    exports
}

/// Returns a cycle as the modules on it, with the first one again at its end.
fn find_cycle(imports: &Imports) -> Option<Vec<String>> {
    fn visit(imports: &Imports, path: &mut Vec<String>, done: &mut BTreeSet<String>) -> bool {
        let module = path.last().unwrap().clone();
        for next in imports.get(&module).into_iter().flatten() {
            let begin = path.iter().position(|on_path| on_path == next);
            path.push(next.clone());
            if let Some(begin) = begin {
                path.drain(..begin);
                return true;
            }
            if !done.contains(next) && visit(imports, path, done) {
                return true;
            }
            path.pop();
        }
        done.insert(module);
        false
    }
    let mut done = BTreeSet::new();
    imports.keys().find_map(|module| {
        let mut path = vec![module.clone()];
        (!done.contains(module) && visit(imports, &mut path, &mut done)).then_some(path)
    })
}
