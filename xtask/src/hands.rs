//! The linker takes a pattern that matches nothing for granted, so a module that is renamed would leave the place of
//! the code that decides and kills without a word.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::shell;

const SCRIPT: &str = "eviction-agent/hands.ld";
const CRATE: &str = "eviction_agent";

/// Holds each module that the script names against the sources.
pub(crate) fn run() -> Result<()> {
    let root = shell::root();
    let script = std::fs::read_to_string(root.join(SCRIPT)).with_context(|| format!("read {SCRIPT}"))?;
    let modules = modules(&script)?;
    ensure!(!modules.is_empty(), "{SCRIPT} names no module");
    for module in modules {
        ensure!(
            is_there(&root.join("eviction-agent/src"), &module),
            "{SCRIPT}: there is no module `{module}`"
        );
    }
    Ok(())
}

/// The paths behind the crate's name, with slashes.
fn modules(script: &str) -> Result<Vec<String>> {
    let mut modules = Vec::new();
    for pattern in script.split(['*', ' ', '(', ')', '\n']) {
        if let Some(path) = pattern.strip_prefix(&format!("{}{CRATE}", CRATE.len())) {
            modules.push(names(path).with_context(|| format!("`{pattern}` in {SCRIPT}"))?);
        } else if let Some(path) = pattern.strip_prefix(&format!("{CRATE}..")) {
            modules.push(path.trim_end_matches('.').replace("..", "/"));
        }
    }
    Ok(modules)
}

/// `6source3bpf` is `source/bpf`.
fn names(mut path: &str) -> Result<String> {
    let mut names = Vec::new();
    while !path.is_empty() {
        let digits = path.find(|c: char| !c.is_ascii_digit()).context("a length without a name")?;
        let (length, rest) = path.split_at(digits);
        let length: usize = length.parse().context("a name without its length")?;
        let name = rest.get(..length).with_context(|| format!("`{rest}` is shorter than {length}"))?;
        names.push(name);
        path = &rest[length..];
    }
    Ok(names.join("/"))
}

fn is_there(sources: &Path, module: &str) -> bool {
    sources.join(module).is_dir() || sources.join(format!("{module}.rs")).is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_in_both_forms() {
        let script = "/* said */ *(.text.*14eviction_agent6source3bpf* .text.*eviction_agent..core..*)\n*(.text.*4rtrb*)";
        assert_eq!(modules(script).unwrap(), ["source/bpf", "core"]);
    }

    #[test]
    fn a_wrong_length_is_an_error_with_its_pattern() {
        for path in ["7source", "6source3", "source", "99source"] {
            let why = modules(&format!("*(.text.*14eviction_agent{path}*)")).unwrap_err();
            assert!(format!("{why:#}").contains(path), "{why:#}");
        }
    }

    #[test]
    fn a_module_is_a_file_or_a_folder() {
        let sources = shell::root().join("eviction-agent/src");
        assert!(["agent/code", "agent/hook", "core"].iter().all(|module| is_there(&sources, module)));
        assert!(!is_there(&sources, "action/rehearsal"));
    }
}
