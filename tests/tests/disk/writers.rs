//! A pod that fills nodefs, by each way to take space and on each file system: the kernel reports the crossing where
//! there is a hook for it, else the timer finds it, and the writer's pod is selected.

use std::path::Path;

use tests::agent::Agent;
use tests::file_system::Kind;

use crate::agent::{node, pod, writer};
use crate::hooks::start;
use crate::{MIB, mount};

/// The bytes until the threshold, and how many more are written. btrfs reserves metadata for a writer as well.
const HEADROOM: u64 = 64 * MIB;
const BEYOND: u64 = 24 * MIB;

/// The timer runs every millisecond near the threshold, and is sometimes before the kernel.
const TRIES: usize = 20;

/// A way to take space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Buffered,
    Mmap,
    Direct,
    Fallocate,
}

impl Way {
    /// Returns the arguments of a workload that takes so many bytes in this way.
    fn arguments(self, file: &Path, size: u64) -> Vec<String> {
        let mode: &[&str] = match self {
            Self::Buffered => &["write", "--how", "buffered"],
            Self::Mmap => &["write", "--how", "mmap"],
            Self::Direct => &["write", "--how", "direct"],
            Self::Fallocate => &["allocate"],
        };
        let (file, size) = (file.display().to_string(), size.to_string());
        mode.iter().copied().chain(["--file", &file, "--size", &size]).map(str::to_owned).collect()
    }

    /// Returns the backend that reports it on this file system; `None` if only the timer finds it.
    fn backend(self, agent: &Agent, kind: Kind) -> Option<String> {
        let is_cached = matches!(self, Self::Buffered | Self::Mmap);
        let source = if kind == Kind::Xfs { "disk xfs" } else { "disk" };
        let backend = agent.backend(source).filter(|_| agent.has_backend(source))?;
        let is_seen = match kind {
            // Without the on-demand probe, only write-back is seen.
            Kind::Ext4 => !is_cached || agent.has_backend("disk near"),
            Kind::Xfs => is_cached || backend.contains("xfs_alloc_vextent_finish"),
            _ => false,
        };
        is_seen.then_some(backend)
    }
}

/// Fills a disk in that way until the writer's pod is selected. Returns what detected the crossing, and what is
/// expected to; `None` if this machine cannot do it.
fn fill(kind: Kind, way: Way) -> Option<[String; 2]> {
    let (disk, mut node) = (mount!(kind), node!());
    let (calm, hog) = (node.add(pod("calm", None)).unwrap(), node.add(pod("hog", None)).unwrap());
    let _bystander = writer(&disk, &node, calm, 4);
    let mut agent = start(&disk, &node, HEADROOM, &[]);
    let expected = way.backend(&agent, kind).unwrap_or_else(|| "timer".to_owned());
    let file = node.pods[hog].create_volume(&disk).unwrap().join("file");
    let arguments = way.arguments(&file, HEADROOM + BEYOND);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let _writes = node.run(hog, &arguments).unwrap();
    let met = agent.wait_for_threshold("met").unwrap();
    let decision = agent.wait_for_decision().unwrap();
    let selected = (decision.pod(), decision.text("signal").to_owned());
    assert_eq!(selected, ("shop/hog".to_owned(), "nodefs.available".to_owned()), "{kind:?} {way:?}");
    agent.stop().unwrap();
    Some([met.text("detected_by").to_owned(), expected])
}

fn assert_writers_are_selected(kind: Kind) {
    for way in [Way::Buffered, Way::Mmap, Way::Direct, Way::Fallocate] {
        let mut last = None;
        let is_expected = (0..TRIES).any(|_| {
            last = fill(kind, way);
            last.as_ref().is_none_or(|[detected_by, expected]| detected_by == expected)
        });
        assert!(is_expected, "{kind:?} {way:?}: detected by and expected {last:?}, {TRIES} times");
    }
}

#[test]
fn each_kind_of_writer_on_ext4_is_selected() {
    assert_writers_are_selected(Kind::Ext4);
}

#[test]
fn each_kind_of_writer_on_xfs_is_selected() {
    assert_writers_are_selected(Kind::Xfs);
}

#[test]
fn each_kind_of_writer_on_btrfs_is_selected_by_the_timer() {
    assert_writers_are_selected(Kind::Btrfs);
}
