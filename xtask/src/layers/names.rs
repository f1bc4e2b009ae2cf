//! What a path means: `crate`, `self`, `super`, modules, other names, crates.

use std::collections::BTreeSet;

use super::paths::RawPath;
use super::tree::{Module, Tree};

/// A crate, and what is known by name in it.
pub(super) struct Names<'a> {
    pub(super) tree: &'a Tree,
    /// The crates that the code may name.
    pub(super) crates: &'a BTreeSet<String>,
}

impl Names<'_> {
    /// Everything that a path written in a module may mean: segments from `crate` or from
    /// the name of another crate. Empty for what is local, generic or unknown.
    pub(super) fn resolve(&self, module: &[String], path: &RawPath) -> Vec<Vec<String>> {
        let mut search = Search { names: self, asked: BTreeSet::new(), meanings: BTreeSet::new() };
        search.path(module, path.global, &path.segments);
        search.meanings.into_iter().collect()
    }
}

/// A circle of names that stand for each other may make a path longer at each turn.
const LONGEST: usize = 32;

/// The search for what one path means.
struct Search<'a> {
    names: &'a Names<'a>,
    /// What was asked already: names may go in circles.
    asked: BTreeSet<(Vec<String>, Vec<String>)>,
    meanings: BTreeSet<Vec<String>>,
}

impl Search<'_> {
    /// A path as it stands in a module. True if it was found to mean something.
    fn path(&mut self, module: &[String], global: bool, segments: &[String]) -> bool {
        let Some(first) = segments.first() else {
            return false;
        };
        match first.as_str() {
            _ if global => self.absolute(of_crate(segments)),
            "crate" => self.absolute(segments.to_vec()),
            "self" | "super" => {
                let start = usize::from(first == "self");
                let ups = segments[start..].iter().take_while(|word| *word == "super").count();
                let kept = module.len().saturating_sub(ups);
                self.absolute(in_module(&module[..kept], &segments[start + ups..]));
            }
            _ if self.look_up(module, segments) => {}
            _ if self.names.crates.contains(first) => self.absolute(of_crate(segments)),
            _ => return false,
        }
        true
    }

    /// A path whose first segment is a name in this module: a submodule, another name, or
    /// something from a module that is imported whole.
    fn look_up(&mut self, module: &[String], segments: &[String]) -> bool {
        let Some((name, rest)) = segments.split_first() else {
            return false;
        };
        let asked = (module.to_vec(), segments.to_vec());
        if segments.len() > LONGEST || !self.asked.insert(asked) {
            return false;
        }
        let tree = self.names.tree;
        let Some(Module { aliases, globs, children, .. }) = tree.modules.get(module) else {
            return false;
        };
        if children.contains(name) {
            self.absolute(in_module(module, segments));
            return true;
        }
        if let Some(aliases) = aliases.get(name) {
            for RawPath { global, segments, .. } in aliases {
                // `use log::log`: the first segment is the crate, not the name it introduces.
                let global = *global || segments.first() == Some(name);
                self.path(module, global, &[segments, rest].concat());
            }
            return true;
        }
        let mut found = false;
        for RawPath { global, segments: glob, .. } in globs {
            let mut whole =
                Search { names: self.names, asked: self.asked.clone(), meanings: BTreeSet::new() };
            whole.path(module, *global, glob);
            for place in whole.meanings {
                if let Some((first, path)) = place.split_first()
                    && first == "crate"
                {
                    found |= self.look_up(path, segments);
                }
            }
        }
        found
    }

    /// Walks an absolute path down the modules; where it leaves them by a name that stands
    /// for something else, goes on there too, so that a re-export hides nothing.
    fn absolute(&mut self, path: Vec<String>) {
        if let Some((first, below)) = path.split_first()
            && first == "crate"
        {
            for (at, name) in below.iter().enumerate() {
                let module = &below[..at];
                let Some(known) = self.names.tree.modules.get(module) else {
                    break;
                };
                if !known.children.contains(name) {
                    self.look_up(module, &below[at..]);
                    break;
                }
            }
        }
        self.meanings.insert(path);
    }
}

fn in_module(module: &[String], rest: &[String]) -> Vec<String> {
    let root = ["crate".to_owned()];
    [&root, module, rest].concat()
}

/// `core` and `alloc` are doors to the same house as `std`.
fn of_crate(segments: &[String]) -> Vec<String> {
    let mut path = segments.to_vec();
    if let Some(first) = path.first_mut()
        && (first == "core" || first == "alloc")
    {
        "std".clone_into(first);
    }
    path
}
