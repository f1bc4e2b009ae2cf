//! Configurations of the kubelet, good and bad, one a file.

#![expect(clippy::expect_used, reason = "a test stops at the first surprise")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use eviction_agent::config::{KubeletConfiguration, load_kubelet};

fn files(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the folder is part of the repository");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("it can be read").path()).collect();
    files.sort();
    files
}

fn written(configuration: &KubeletConfiguration) -> String {
    let mut text = String::new();
    for setting in &configuration.settings {
        writeln!(text, "{} = {} ({})", setting.path, setting.value, setting.origin).expect("it is a string");
    }
    for note in &configuration.notes {
        writeln!(text, "note: {note}").expect("it is a string");
    }
    text
}

fn name(file: &Path) -> String {
    file.file_name().expect("a file has a name").to_string_lossy().into_owned()
}

#[test]
fn good_configurations_are_resolved() {
    let files = files("tests/kubelet/good");
    assert!(files.len() >= 8, "only {} files", files.len());
    for file in files {
        let configuration = load_kubelet(Some(&file), None).unwrap_or_else(|errors| panic!("{errors}"));
        insta::assert_snapshot!(
            format!("good/{}", name(&file)).replace(['/', '.'], "-"),
            written(&configuration)
        );
    }
}

#[test]
fn all_that_is_wrong_is_said_at_once() {
    let files = files("tests/kubelet/bad");
    assert!(files.len() >= 14, "only {} files", files.len());
    for file in files {
        let errors = load_kubelet(Some(&file), None).expect_err(&name(&file));
        assert!(!errors.0.is_empty());
        insta::assert_snapshot!(format!("bad/{}", name(&file)).replace(['/', '.'], "-"), errors.to_string());
    }
}

#[test]
fn drop_in_files_are_laid_over_in_their_order() {
    let base = Path::new("tests/kubelet/drop-in/base.yaml");
    let directory = Path::new("tests/kubelet/drop-in/conf.d");
    let both = load_kubelet(Some(base), Some(directory)).expect("both are right");
    insta::assert_snapshot!("drop-in-both", written(&both));
    let alone = load_kubelet(None, Some(directory)).expect("it is right");
    insta::assert_snapshot!("drop-in-alone", written(&alone));
    let faulty = Path::new("tests/kubelet/drop-in/faulty.d");
    let errors = load_kubelet(Some(base), Some(faulty)).expect_err("it is wrong");
    insta::assert_snapshot!("drop-in-faulty", errors.to_string());
}

#[test]
fn what_cannot_be_read_is_named() {
    let errors = |file, directory: Option<&Path>| {
        load_kubelet(Some(Path::new(file)), directory).expect_err(file).to_string()
    };
    let missing = "tests/kubelet/none.yaml: No such file or directory (os error 2)";
    assert_eq!(errors("tests/kubelet/none.yaml", None), missing);
    assert_eq!(errors("tests/kubelet", None), "tests/kubelet: is a directory, not a file");
    let base = "tests/kubelet/good/defaults.yaml";
    let directory = errors(base, Some(Path::new("tests/kubelet/none.d")));
    assert_eq!(directory, "tests/kubelet/none.d: No such file or directory (os error 2)");
}
