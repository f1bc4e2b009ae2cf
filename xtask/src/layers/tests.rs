//! Each rule broken on purpose in invented sources, and the real tree.

use std::collections::BTreeMap;

use super::*;

/// What the rule says of an agent made of these files; `lib.rs` and `main.rs` come by
/// themselves.
fn findings(files: &[(&str, &str)]) -> Vec<String> {
    let mut sources: BTreeMap<PathBuf, String> =
        files.iter().map(|(file, text)| (Path::new("src").join(file), (*text).to_owned())).collect();
    let modules: BTreeSet<&str> = files
        .iter()
        .filter_map(|(file, _)| file.split(['/', '.']).next())
        .filter(|module| !["lib", "main"].contains(module))
        .collect();
    let lib: String = modules.iter().map(|module| format!("pub mod {module};\n")).collect();
    sources.entry("src/lib.rs".into()).or_insert(lib);
    sources.entry("src/main.rs".into()).or_insert("fn main() { eviction_agent::cli::main() }".into());
    let listed = sources.keys().cloned().collect();
    let dependencies = [
        "tokio",
        "tracing",
        "libc",
        "rustix",
        "rand",
        "kube",
        "jiff",
        "serde",
        "aya",
        "eviction-common",
        "chrono",
        "proptest",
        "thiserror",
    ]
    .map(|name| Dependency { name: name.to_owned(), rename: None, kind: None, path: None });
    let read = |file: &Path| sources.get(file).cloned();
    check_agent(Path::new("src"), &listed, &dependencies, &read)
        .unwrap()
        .iter()
        .map(Finding::to_string)
        .collect()
}

/// Asserts that exactly one place of the file breaks the rule, for that reason.
#[track_caller]
fn caught(file: &str, text: &str, why: &str) {
    let found = findings(&[(file, text)]);
    assert!(
        matches!(found.as_slice(), [one] if one.contains(why)),
        "{file}: {text}\nexpected one finding with {why:?}, got {found:#?}"
    );
}

#[track_caller]
fn fine(files: &[(&str, &str)]) {
    assert_eq!(findings(files), [""; 0], "{files:?}");
}

#[test]
fn core_sees_nothing_of_ours() {
    for other in ["config", "source", "action", "journal", "metrics", "http", "top", "agent", "cli"] {
        let why = format!(": `core` must not see `{other}`");
        caught("core/mod.rs", &format!("use crate::{other}::X;"), &why);
    }
}

#[test]
fn a_finding_names_its_place() {
    let found = findings(&[("core/mod.rs", "\nuse crate::{\n    config::{A, B},\n};")]);
    let why = "`core` must not see `config`";
    assert_eq!(found, [format!("src/core/mod.rs:3:14: {why}"), format!("src/core/mod.rs:3:17: {why}")]);
}

#[test]
fn core_names_no_crate_with_io_clock_or_async() {
    for name in ["tokio", "tracing", "libc", "rustix", "rand", "kube", "chrono"] {
        caught("core/mod.rs", &format!("use {name}::x;"), &format!("must not name the crate `{name}`"));
    }
    fine(&[("core/mod.rs", "use serde::Serialize; use thiserror::Error; use jiff::SignedDuration;")]);
}

#[test]
fn core_has_no_clock() {
    for text in [
        "use std::time::Instant;",
        "use std::time::{Duration, Instant as I};",
        "use std::{fmt, time::{self, SystemTime}};",
        "use std::time::*;",
        "use std::*;",
        "use core::time::*;",
        "use std::time; fn f() { time::Instant::now(); }",
        "use std::time as t; type C = t::SystemTime;",
        "use std as s; fn f() -> s::time::Instant { loop {} }",
        "extern crate std as s; use s::time::Instant;",
        "fn f() { let a = ::std::time::Instant::now(); }",
        "fn f() { dbg(std::time::UNIX_EPOCH) }",
        "struct S { at: Option<std::time::Instant> }",
        "impl From<std::time::SystemTime> for S {}",
        "fn f<T: Into<std::time::SystemTime>>(t: T) {}",
        "fn f(x: X) { match x { std::time::UNIX_EPOCH => {} } }",
        "use jiff::Timestamp; fn f() { Timestamp::now(); }",
        "use jiff::Timestamp as T; fn f() { let g = T::now; }",
        "fn f() { <jiff::Timestamp>::now(); }",
        "type T = jiff::Zoned; fn f() { T::now(); }",
        "fn f() { use jiff::Zoned; Zoned::now(); }",
        "fn f() { jiff::tz::TimeZone::system(); }",
    ] {
        caught("core/mod.rs", text, "`core` must not use `");
    }
    fine(&[("core/mod.rs", "use std::time::Duration; use jiff::{Timestamp, Zoned}; fn f(t: Timestamp) {}")]);
}

#[test]
fn core_has_no_io_threads_or_hash_order() {
    for path in [
        "fs::File",
        "io::Error",
        "net::IpAddr",
        "env::var",
        "process::id",
        "os::fd::OwnedFd",
        "thread::spawn",
        "sync::mpsc::channel",
        "collections::HashMap",
        "collections::HashSet",
        "collections::hash_map::Entry",
        "hash::RandomState",
        "future::Future",
        "task::Poll",
    ] {
        caught("core/mod.rs", &format!("use std::{path};"), "`core` must not use `std::");
    }
    fine(&[("core/mod.rs", "use std::{collections::{BTreeMap, VecDeque}, path::Path, sync::Arc};")]);
}

#[test]
fn a_lookup_table_needs_a_hasher_that_is_said() {
    let files = |text| {
        findings(&[
            ("core/mod.rs", "mod pods;"),
            ("core/pods/mod.rs", "mod set;"),
            ("core/pods/set.rs", text),
        ])
    };
    let said = "use std::collections::HashMap; struct S { m: HashMap<u8, u8, Fixed> }";
    assert_eq!(files(said), [""; 0]);
    for text in [
        "use std::collections::HashMap; struct S { m: HashMap<u8, u8> }",
        "struct S { m: std::collections::HashMap<u8, u8> }",
        "use std::collections::HashMap as M; fn f() { M::new(); }",
        "use std::collections::HashSet;",
    ] {
        assert_eq!(files(text).len(), 1, "{text}");
    }
}

#[test]
fn core_is_not_async() {
    for text in ["async fn f() {}", "fn f() { async {}; }", "trait T { async fn f(); }"] {
        caught("core/mod.rs", text, "`core` must not be async");
    }
}

#[test]
fn tests_of_core_may_use_the_standard_library_alone() {
    let tests = "#[cfg(test)] mod tests { use std::{collections::HashSet, fs}; use proptest::prelude::*; }";
    fine(&[("core/mod.rs", tests)]);
    fine(&[("core/mod.rs", "#[cfg(test)] mod tests;"), ("core/tests.rs", "use std::fs;")]);
    fine(&[("core/mod.rs", "#[test] fn f() { std::fs::read(\"x\"); }")]);
    fine(&[("core/mod.rs", "#[cfg(all(test, unix))] use std::fs;")]);
    caught("core/mod.rs", "#[cfg(any(test, unix))] use std::fs;", "std::fs");
    caught("core/mod.rs", "#[cfg(not(test))] use std::fs;", "std::fs");
    caught("core/mod.rs", "#[cfg(all(any(unix, test, windows), unix))] use std::fs;", "std::fs");
    caught("core/mod.rs", "use proptest::prelude::*;", "proptest");
    caught("core/mod.rs", "#[cfg(test)] mod tests { use crate::source::X; }", "must not see `source`");
    caught("core/mod.rs", "#[cfg(test)] mod tests { use tokio::net; }", "tokio");
}

#[test]
fn source_and_action_do_not_see_each_other() {
    caught("source/mod.rs", "use crate::action::Executor;", "`source` must not see `action`");
    caught("action/mod.rs", "use crate::source::Reading;", "`action` must not see `source`");
    fine(&[
        ("source/mod.rs", "pub mod pods;"),
        ("source/pods.rs", "use crate::core::Pod; use super::pods; use std::fs;"),
        ("core/mod.rs", "pub struct Pod;"),
    ]);
}

#[test]
fn every_direction_of_the_architecture_holds() {
    for (layer, other) in [
        ("config", "source"),
        ("config", "agent"),
        ("config", "cli"),
        ("source", "config"),
        ("source", "metrics"),
        ("source", "agent"),
        ("source", "cli"),
        ("action", "config"),
        ("action", "journal"),
        ("action", "agent"),
        ("journal", "source"),
        ("journal", "action"),
        ("journal", "agent"),
        ("metrics", "source"),
        ("metrics", "agent"),
        ("http", "source"),
        ("http", "action"),
        ("top", "source"),
        ("top", "agent"),
        ("top", "action"),
        ("agent", "cli"),
        ("agent", "top"),
    ] {
        caught(
            &format!("{layer}/mod.rs"),
            &format!("fn f() {{ crate::{other}::x(); }}"),
            &format!("`{layer}` must not see `{other}`"),
        );
    }
    for (layer, others) in rules::LAYERS.iter().filter(|(layer, _)| *layer != rules::MAIN) {
        let uses: String = others.iter().map(|other| format!("use crate::{other}::X;")).collect();
        fine(&[(&format!("{layer}.rs"), &uses)]);
    }
}

#[test]
fn main_sees_the_command_line_alone() {
    let main = "fn main() { eviction_agent::agent::run() }";
    assert_eq!(findings(&[("main.rs", main)]), ["src/main.rs:1:13: `main` must not see `agent`"]);
}

#[test]
fn no_detour_hides_an_import() {
    for text in [
        "use crate::{source::X, core::Y};",
        "use crate::source as core;",
        "use super::source::X;",
        "use self::super::source;",
        "mod inner { use super::super::source::X; }",
        "mod inner { use super::c; use crate as c; fn f() { c::source::x(); } }",
        "pub use crate::source::*;",
        "use crate::*;",
        "use super::*;",
        "use crate as c;",
        "use crate::{self as c};",
        "fn f() { let x: Vec<crate::source::X> = vec![]; }",
        "impl crate::source::Read for X {}",
        "impl X where X: crate::source::Read {}",
        "fn f() -> impl crate::source::Read { loop {} }",
        "fn f() { if let crate::source::E::A = x {} }",
        "fn f() { crate::source::X { a: 1 }; }",
        "fn f() { <crate::source::X as Default>::default(); }",
        "fn f() { crate::source::log!(\"x\"); }",
        "fn f() { assert_eq!(1, crate::source::x()); }",
        "fn f() { vec![vec![crate::source::x()]]; }",
        "fn f() { matches!(x, crate :: source :: E::A(_)); }",
        "macro_rules! m { () => { $crate::source::x() }; }",
        "macro_rules! m { () => { use crate::{core::A, source::B}; }; }",
        "#[derive(crate::source::Derive)] struct X;",
        "#[crate::source::attribute] struct X;",
        "struct X { #[serde(deserialize_with = \"crate::source::parse\")] a: u8 }",
        "const N: usize = { use crate::source::N as M; M };",
    ] {
        let found = findings(&[("core/mod.rs", text)]);
        assert!(!found.is_empty(), "not caught: {text}");
    }
}

#[test]
fn a_reexport_hides_nothing() {
    let lib = "pub mod core; pub mod source; pub use source::Reading; use crate::source as inlet;";
    let source = ("source.rs", "pub struct Reading;");
    for text in ["use crate::Reading;", "use crate::inlet::Reading;"] {
        let found = findings(&[("lib.rs", lib), ("core.rs", text), source]);
        assert!(found.iter().any(|one| one.contains("must not see `source`")), "{text}: {found:?}");
    }
    let action = "mod a { pub use std::fs; } mod b { use super::a; }";
    fine(&[("lib.rs", "mod action;"), ("action.rs", action)]);
    let core = "mod a { pub use std::fs as f; } mod b { use super::a::f; } mod c { use super::a::*; fn g() { f::read(); } }";
    let found = findings(&[("core.rs", core)]);
    assert_eq!(found.len(), 3, "{found:#?}");
}

#[test]
fn names_may_go_in_circles() {
    let circle = "mod a { pub use super::b::*; pub use super::c::*; } mod b { pub use super::a::*; pub use super::c::*; } \
                  mod c { pub use super::a::*; pub use super::b::*; fn f() { x::y(); } } \
                  use self::d::e as d; use self::g as h; use self::h as g; fn f() { d::x(); g::x(); }";
    fine(&[("core.rs", circle)]);
}

#[test]
fn what_only_looks_like_an_import_is_fine() {
    fine(&[
        (
            "core/mod.rs",
            concat!(
                "//! See [`crate::source`].\n",
                "pub(crate) mod log; mod fs { pub fn read() {} } mod tokio { pub struct Y; }\n",
                "/// Not `std::fs::read`.\n",
                "#[expect(dead_code, reason = \"std::fs::read\")]\n",
                "pub(in crate::core) fn f(libc: u8) { let rand = libc; fs::read(); self::log::x(); tokio::Y; }\n",
                "enum Instant { Now } fn g() { Instant::Now; let s = \"crate::source::x\"; Self::h(); }\n",
                "fn h<T: Trait>() { T::now(); format!(\"{}\", crate::core::fs::read()); }\n",
            ),
        ),
        ("core/log.rs", "pub fn x() { super::fs::read(); }"),
    ]);
}

#[test]
fn only_source_bpf_names_the_kernel_side() {
    for name in ["aya", "eviction_common"] {
        let text = format!("fn f() {{ {name}::x(); }}");
        caught("source/mod.rs", &text, "only `source::bpf` may name");
        caught("agent/mod.rs", &text, "only `source::bpf` may name");
        caught("cli/mod.rs", &text, "only `source::bpf` may name");
        caught("core/mod.rs", &text, "only `source::bpf` may name");
        fine(&[
            ("source/mod.rs", "pub mod bpf;"),
            ("source/bpf/mod.rs", "mod ring;"),
            ("source/bpf/ring.rs", &text),
        ]);
    }
}

#[test]
fn only_the_command_line_prints() {
    caught("agent/mod.rs", "fn f() { println!(\"x\"); }", "only the command line prints");
    caught("core/mod.rs", "fn f() { std::eprintln!(\"x\"); }", "only the command line prints");
    fine(&[("cli/mod.rs", "fn f() { println!(\"x\"); }")]);
    fine(&[("agent/mod.rs", "#[cfg(test)] mod tests { fn f() { println!(\"x\"); } }")]);
}

#[test]
fn code_cannot_hide_from_the_rule() {
    caught("core/mod.rs", "include!(\"x.rs\");", "include! carries code past");
    caught("core/mod.rs", "#[path = \"../source/x.rs\"] mod x;", "#[path]");
    caught("core/mod.rs", "#[cfg_attr(unix, path = \"../source/x.rs\")] mod x;", "#[path]");
    caught("core/mod.rs", "#[macro_use] mod x {}", "#[macro_use]");
    caught("core/mod.rs", "mod absent;", "does not exist");
    caught("helpers.rs", "", "module `helpers` has no layer");
    caught("helpers.rs", "mod inner { use crate::core::X; }", "module `helpers` has no layer");
    caught("core/mod.rs", "fn f() { mod x {} }", "a module inside a body");
    let orphan = findings(&[("core/mod.rs", ""), ("core/orphan.rs", "")]);
    assert_eq!(orphan, ["src/core/orphan.rs:1:1: this file is part of no module"]);
}

#[test]
fn text_that_is_no_rust_is_an_error_with_its_place() {
    let read = |file: &Path| Some(if file.ends_with("lib.rs") { "fn (" } else { "" }.to_owned());
    let error = check_agent(Path::new("src"), &BTreeSet::new(), &[], &read).unwrap_err();
    assert!(format!("{error:#}").starts_with("src/lib.rs:1:4: "), "{error:#}");
}

#[test]
fn packages_depend_as_they_should() {
    let check = |name: &str, on: &str, kind: Option<&str>| {
        let dependency = Dependency {
            name: on.to_owned(),
            rename: None,
            kind: kind.map(str::to_owned),
            path: Some("/w".into()),
        };
        let package = Package {
            name: name.to_owned(),
            manifest_path: Path::new("/w").join(name).join("Cargo.toml"),
            dependencies: vec![dependency],
        };
        check_packages(&[package], Path::new("/w")).len()
    };
    assert_eq!(check("eviction-agent", "eviction-common", None), 0);
    assert_eq!(check("eviction-ebpf", "eviction-common", None), 0);
    assert_eq!(check("eviction-ebpf", "eviction-agent", None), 1);
    assert_eq!(check("eviction-common", "eviction-ebpf", Some("build")), 1);
    assert_eq!(check("tests", "eviction-agent", Some("dev")), 0);
    assert_eq!(check("tests", "eviction-agent", None), 1);
    assert_eq!(check("xtask", "tests", None), 0);
    assert_eq!(check("xtask", "eviction-agent", Some("dev")), 1);
    assert_eq!(check("another", "eviction-common", None), 1);
}

#[test]
fn the_real_tree_keeps_the_rule() {
    let found: Vec<_> = check().unwrap().iter().map(Finding::to_string).collect();
    assert_eq!(found, [""; 0]);
}
