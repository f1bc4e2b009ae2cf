//! Thresholds of containerfs, which nobody can set:
//! `helpers.go: UpdateContainerFsThresholds`.

use crate::disk_layout::{Arrangement, DiskLayout};
use crate::policy::Threshold;
use crate::signal::Signal;
use crate::units::GoDuration;

/// What becomes of the thresholds when the layout is known.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Derived {
    /// Replacements of given thresholds, by place; none where nothing comes in their stead.
    pub(super) replaced: Vec<Replacement>,
    /// What comes behind the given ones.
    pub(super) appended: Vec<Threshold>,
}

#[derive(Debug, PartialEq)]
pub(super) struct Replacement {
    /// The place of the given one.
    pub(super) place: usize,
    /// What counts instead.
    pub(super) by: Option<Threshold>,
    /// Whether the pass that learns the layout sees it already.
    pub(super) at_once: bool,
}

/// Each of {bytes, inodes} × {hard, soft} follows nodefs if writable layers lie there, else
/// imagefs. It takes the place of the last such threshold that the user gave, and is
/// appended if there is none. Without a source the user's threshold is lost.
///
/// The pass that learns the layout walks the list of before, and sees of this only what the
/// kubelet writes before its list moves: it moves when there is no `room` to append.
pub(super) fn derive(given: &[Threshold], room: usize, layout: DiskLayout) -> Derived {
    let (available, inodes_free) = match layout.arrangement() {
        // A split without a dedicated imagefs makes no sense, and nothing of it.
        Arrangement::Shared if layout.split_image_fs => return Derived::default(),
        Arrangement::Shared | Arrangement::Split => (Signal::NodeFsAvailable, Signal::NodeFsInodesFree),
        Arrangement::Dedicated => (Signal::ImageFsAvailable, Signal::ImageFsInodesFree),
    };
    let last = |signal, hard| {
        let is_it = |line: &Threshold| line.signal == signal && line.is_hard() == hard;
        given.iter().rposition(is_it)
    };
    let mut derived = Derived::default();
    let mut room_taken = 0;
    for (signal, source, hard) in [
        (Signal::ContainerFsAvailable, available, true),
        (Signal::ContainerFsAvailable, available, false),
        (Signal::ContainerFsInodesFree, inodes_free, true),
        (Signal::ContainerFsInodesFree, inodes_free, false),
    ] {
        let by = last(source, hard).map(|at| follow(&given[at], signal, hard));
        if let Some(place) = last(signal, hard) {
            let at_once = room_taken <= room;
            derived.replaced.push(Replacement { place, by, at_once });
        } else {
            // An empty threshold takes room as well, but is never met.
            room_taken += 1;
            derived.appended.extend(by);
        }
    }
    derived
}

fn follow(source: &Threshold, signal: Signal, hard: bool) -> Threshold {
    Threshold {
        signal,
        value: source.value.clone(),
        grace_period: if hard { GoDuration::ZERO } else { source.grace_period },
        min_reclaim: source.min_reclaim.clone(),
    }
}
