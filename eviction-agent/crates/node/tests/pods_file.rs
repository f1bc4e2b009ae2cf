//! A pods file that is written, replaced, broken and repaired while it is watched.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use std::future::Future;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use eviction_core::error::chain;
use eviction_node::file::FileError;
use eviction_node::pods_file::{LARGEST, PodsFile};

type TextFile = PodsFile<String>;

/// Parses a text. One that begins with `bad` is an error.
fn parse(text: &[u8]) -> Result<String, String> {
    let text = String::from_utf8_lossy(text).into_owned();
    if text.starts_with("bad") { Err(text) } else { Ok(text) }
}

fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let guarded = async { tokio::time::timeout(Duration::from_secs(120), test).await.expect("hangs") };
    runtime.block_on(guarded)
}

fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pods.yaml");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

fn open(path: &Path) -> (TextFile, String) {
    PodsFile::open(path, parse).unwrap()
}

async fn next_content(watched: &mut TextFile) -> String {
    watched.changed().await.unwrap()
}

async fn next_error(watched: &mut TextFile) -> FileError {
    watched.changed().await.unwrap_err()
}

/// Checks that no change is reported within several read intervals.
async fn expect_no_change(watched: &mut TextFile) {
    let change = tokio::time::timeout(Duration::from_millis(2500), watched.changed()).await;
    assert!(change.is_err(), "{change:?}");
}

#[test]
fn write_in_place_and_replacement_are_reported() {
    run(async {
        let (folder, path) = file("one");
        let (mut watched, content) = open(&path);
        assert_eq!(content, "one");
        assert_eq!(watched.info().backend, "inotify");
        std::fs::write(&path, "two").unwrap();
        assert_eq!(next_content(&mut watched).await, "two");
        // New content of the same length within the same clock tick.
        std::fs::write(&path, "2wo").unwrap();
        assert_eq!(next_content(&mut watched).await, "2wo");
        let other = folder.path().join("other");
        std::fs::write(&other, "three").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(next_content(&mut watched).await, "three");
    });
}

#[test]
fn the_same_content_again_is_no_change() {
    run(async {
        let (_folder, path) = file("one");
        let (mut watched, _) = open(&path);
        std::fs::write(&path, "one").unwrap();
        expect_no_change(&mut watched).await;
        std::fs::write(&path, "two").unwrap();
        assert_eq!(next_content(&mut watched).await, "two");
    });
}

#[test]
fn replaced_config_map_is_reported() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let fill = |name: &str, text: &str| {
            std::fs::create_dir(at(name)).unwrap();
            std::fs::write(at(name).join("pods.yaml"), text).unwrap();
        };
        fill("..2024_1", "one");
        symlink("..2024_1", at("..data")).unwrap();
        symlink("..data/pods.yaml", at("pods.yaml")).unwrap();
        let (mut watched, content) = open(&at("pods.yaml"));
        assert_eq!(content, "one");
        for (number, text) in [(2, "two"), (3, "three")] {
            fill(&format!("..2024_{number}"), text);
            symlink(format!("..2024_{number}"), at("..data_tmp")).unwrap();
            std::fs::rename(at("..data_tmp"), at("..data")).unwrap();
            std::fs::remove_dir_all(at(&format!("..2024_{}", number - 1))).unwrap();
            assert_eq!(next_content(&mut watched).await, text);
        }
    });
}

#[test]
fn invalid_or_missing_file_is_reported_once() {
    run(async {
        let (_folder, path) = file("one");
        let (mut watched, _) = open(&path);
        std::fs::write(&path, "bad 1").unwrap();
        let error = next_error(&mut watched).await;
        assert_eq!(chain(&error), format!("cannot understand {}: bad 1", path.display()));
        expect_no_change(&mut watched).await;
        std::fs::write(&path, "bad 2").unwrap();
        assert!(next_error(&mut watched).await.what.starts_with("cannot understand "));

        std::fs::remove_file(&path).unwrap();
        let error = next_error(&mut watched).await;
        assert_eq!(error.what, format!("cannot read {}", path.display()));
        expect_no_change(&mut watched).await;
        std::fs::write(&path, "two").unwrap();
        // Between creation and writing the file is empty, which is valid content.
        let mut content = next_content(&mut watched).await;
        if content.is_empty() {
            content = next_content(&mut watched).await;
        }
        assert_eq!(content, "two");
    });
}

#[test]
fn file_in_a_replaced_directory_is_read_again() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let path = inner.join("pods.yaml");
        std::fs::write(&path, "one").unwrap();
        let (mut watched, _) = open(&path);
        std::fs::rename(&inner, folder.path().join("gone")).unwrap();
        assert!(next_error(&mut watched).await.what.starts_with("cannot read "));
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(inner.join("tmp"), "two").unwrap();
        std::fs::rename(inner.join("tmp"), &path).unwrap();
        assert_eq!(next_content(&mut watched).await, "two");
    });
}

#[test]
fn unusable_file_is_refused_at_open() {
    run(async {
        let refuse = |path: &Path| match PodsFile::open(path, parse) {
            Ok(_) => panic!("{} was taken", path.display()),
            Err(error) => chain(&error),
        };
        let (folder, path) = file("bad");
        assert!(refuse(&path).starts_with("cannot understand "));
        assert!(refuse(&folder.path().join("absent")).starts_with("cannot read "));
        assert!(refuse(folder.path()).starts_with("cannot read "));
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        assert!(refuse(&pipe).starts_with("cannot read "));
        let large = folder.path().join("large");
        std::fs::File::create(&large).unwrap().set_len(LARGEST + 1).unwrap();
        let why = format!("cannot read {}: {} bytes are more than {LARGEST}", large.display(), LARGEST + 1);
        assert_eq!(refuse(&large), why);
    });
}

#[test]
fn cancelled_wait_does_not_lose_the_last_change() {
    run(async {
        let (_folder, path) = file("one");
        let (mut watched, _) = open(&path);
        for number in 0..20 {
            std::fs::write(&path, format!("text {number}")).unwrap();
            let _ = tokio::time::timeout(Duration::from_micros(number * 50), watched.changed()).await;
        }
        std::fs::write(&path, "last").unwrap();
        while next_content(&mut watched).await != "last" {}
    });
}
