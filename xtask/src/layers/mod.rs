//! The layer rule: data goes one way, and the imports show it.
//!
//! The sources are parsed; every path in them, wherever it stands, is resolved to what it
//! means, and held against [`rules`]. What is imported under another name, through a
//! re-export, or inside a macro is seen as well.

mod names;
mod paths;
mod rules;
mod tree;
mod visit;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use proc_macro2::Span;

use crate::length;
use crate::shell::{self, Dependency, Metadata, Package};
use names::Names;
use tree::{Read, Tree};

/// A place that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    file: PathBuf,
    line: usize,
    column: usize,
    what: String,
}

impl Finding {
    fn new(file: &Path, span: Span, what: impl Into<String>) -> Self {
        let start = span.start();
        Self { file: file.to_owned(), line: start.line, column: start.column + 1, what: what.into() }
    }

    fn of_file(file: &Path, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line: 1, column: 1, what: what.into() }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}: {}", self.file.display(), self.line, self.column, self.what)
    }
}

/// Holds the workspace against the rule.
pub(crate) fn check() -> Result<Vec<Finding>> {
    let metadata = Metadata::read()?;
    let root = shell::root();
    let mut findings = check_packages(&metadata.packages, root);
    let read = |file: &Path| std::fs::read_to_string(root.join(file)).ok();
    let package = metadata.package("eviction-agent")?;
    let source = Path::new("eviction-agent/src");
    let files: BTreeSet<PathBuf> =
        length::sources(root)?.into_iter().filter(|file| file.starts_with(source)).collect();
    findings.extend(check_agent(source, &files, &package.dependencies, &read)?);
    Ok(findings)
}

/// Which packages depend on which.
fn check_packages(packages: &[Package], root: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let manifest = package.manifest_path.strip_prefix(root).unwrap_or(&package.manifest_path);
        let Some(rule) = rules::PACKAGES.iter().find(|rule| rule.package == package.name) else {
            findings.push(Finding::of_file(
                manifest,
                format!("package `{}` has no place in xtask/src/layers/rules.rs", package.name),
            ));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|one| one.path.is_some()) {
            let name = dependency.name.as_str();
            let for_tests = dependency.kind.as_deref() == Some("dev");
            if !(rule.sees.contains(&name) || for_tests && rule.tests_see.contains(&name)) {
                findings.push(Finding::of_file(
                    manifest,
                    format!("package `{}` must not depend on `{name}`", package.name),
                ));
            }
        }
    }
    findings
}

/// Checks the library and the binary of the agent.
fn check_agent(
    source: &Path,
    files: &BTreeSet<PathBuf>,
    dependencies: &[Dependency],
    read: Read<'_>,
) -> Result<Vec<Finding>> {
    let mut crates: BTreeSet<String> =
        ["std", "core", "alloc", "proc_macro", "eviction_agent"].map(str::to_owned).into();
    for Dependency { name, rename, .. } in dependencies {
        crates.insert(rename.as_ref().unwrap_or(name).replace('-', "_"));
    }

    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    for root in ["lib.rs", "main.rs"] {
        let root = source.join(root);
        let tree = Tree::read(&root, read, &mut findings)?;
        let names = Names { tree: &tree, crates: &crates };
        let is_main = root.ends_with("main.rs");
        visit::check(&names, is_main, &mut findings);
        seen.extend(tree.files);
    }
    for file in files.difference(&seen) {
        findings.push(Finding::of_file(file, "this file is part of no module"));
    }
    findings.sort();
    findings.dedup();
    Ok(findings)
}

/// Prints the findings, and fails if there are any.
pub(crate) fn run() -> Result<()> {
    let findings = check()?;
    for finding in &findings {
        println!("error: {finding}");
    }
    let broken = findings.len();
    ensure!(broken == 0, "{broken} places break the rule that docs/architecture.md tells");
    Ok(())
}

#[cfg(test)]
mod tests;
