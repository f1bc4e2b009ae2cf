//! Thresholds of containerfs, which cannot be configured: `helpers.go: UpdateContainerFsThresholds`.

use crate::disk_layout::{Arrangement, DiskLayout};
use crate::policy::Threshold;
use crate::signal::Signal;
use crate::units::GoDuration;

/// The changes of the thresholds when the layout is known.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Derived {
    /// The replacements of configured thresholds, by index. None if a threshold is dropped.
    pub(super) replaced: Vec<Replacement>,
    /// The thresholds that are appended to the configured ones.
    pub(super) appended: Vec<Threshold>,
}

#[derive(Debug, PartialEq)]
pub(super) struct Replacement {
    /// The index of the configured threshold.
    pub(super) index: usize,
    /// The threshold that counts instead.
    pub(super) by: Option<Threshold>,
    /// Whether the evaluation that learns the layout already uses the replacement.
    pub(super) at_once: bool,
}

/// Each of {bytes, inodes} × {hard, soft} follows nodefs if writable layers are there, otherwise imagefs. The
/// derived threshold replaces the last such threshold that the user configured, or is appended if there is
/// none. Without a source the user's threshold is dropped.
///
/// The evaluation that learns the layout uses the former list. It only sees those changes that the kubelet
/// makes before its list moves, which happens when there is no `room` to append.
pub(super) fn derive(given: &[Threshold], room: usize, layout: DiskLayout) -> Derived {
    let (available, inodes_free) = match layout.arrangement() {
        // A split without a dedicated imagefs is inconsistent, so nothing is derived from it.
        Arrangement::Shared if layout.split_image_fs => return Derived::default(),
        Arrangement::Shared | Arrangement::Split => (Signal::NodeFsAvailable, Signal::NodeFsInodesFree),
        Arrangement::Dedicated => (Signal::ImageFsAvailable, Signal::ImageFsInodesFree),
    };
    let last = |signal, hard| {
        let matches = |threshold: &Threshold| threshold.signal == signal && threshold.is_hard() == hard;
        given.iter().rposition(matches)
    };
    let mut derived = Derived::default();
    let mut room_taken = 0;
    for (signal, source, hard) in [
        (Signal::ContainerFsAvailable, available, true),
        (Signal::ContainerFsAvailable, available, false),
        (Signal::ContainerFsInodesFree, inodes_free, true),
        (Signal::ContainerFsInodesFree, inodes_free, false),
    ] {
        let by = last(source, hard).map(|at| derived_threshold(&given[at], signal, hard));
        if let Some(index) = last(signal, hard) {
            let at_once = room_taken <= room;
            derived.replaced.push(Replacement { index, by, at_once });
        } else {
            // A threshold without a source takes room as well, but is never met.
            room_taken += 1;
            derived.appended.extend(by);
        }
    }
    derived
}

fn derived_threshold(source: &Threshold, signal: Signal, hard: bool) -> Threshold {
    Threshold {
        signal,
        value: source.value.clone(),
        grace_period: if hard { GoDuration::ZERO } else { source.grace_period },
        min_reclaim: source.min_reclaim.clone(),
    }
}

/// Returns the number of thresholds that can be appended before the kubelet's list moves, for a number of
/// hard and soft ones, and of copies as `allocatableMemory.available` if the pods' cgroup is enforced.
/// Mirrors `ParseThresholdConfig` and `addAllocatableThresholds`.
pub fn room(hard: usize, soft: usize, copies: Option<usize>) -> usize {
    let (mut length, mut capacity) = (0, 0);
    let mut append = |length: &mut usize, more: usize| {
        *length += more;
        if *length > capacity {
            capacity = grown(capacity, *length);
        }
        capacity
    };
    match copies {
        None => {
            append(&mut length, hard);
            append(&mut length, soft) - length
        }
        Some(copies) => {
            append(&mut length, hard + soft);
            append(&mut length, copies) - length
        }
    }
}

/// Returns the capacity after growing, for elements of 64 bytes that contain pointers.
fn grown(capacity: usize, needed: usize) -> usize {
    /// The numbers of elements that fit into Go's size classes behind a header of 8 bytes.
    const CLASSES: [usize; 13] = [9, 10, 11, 13, 15, 17, 19, 21, 23, 27, 31, 35, 41];
    let wanted = needed.max(2 * capacity);
    match wanted {
        // Up to 512 bytes there is no header, and every size has a class.
        0..=8 => wanted,
        _ => *CLASSES.iter().find(|class| **class >= wanted).unwrap_or(&wanted),
    }
}

#[cfg(test)]
mod tests {
    use super::room;

    /// The values that a Go program with the same appends prints, built with Go 1.26.8 for amd64.
    #[test]
    fn room_matches_the_capacity_of_go_slices() {
        let table = [
            ((0, 0), [0, 0, 0, 0]),
            ((0, 9), [0, 0, 9, 8]),
            ((2, 1), [1, 0, 2, 1]),
            ((5, 9), [1, 1, 0, 15]),
            ((6, 6), [1, 1, 0, 13]),
            ((7, 5), [3, 1, 0, 13]),
            ((8, 1), [8, 0, 9, 8]),
            ((8, 4), [5, 1, 0, 13]),
            ((9, 3), [7, 1, 0, 13]),
            ((9, 8), [2, 0, 17, 16]),
            ((9, 9), [1, 1, 0, 21]),
        ];
        for ((hard, soft), expected) in table {
            let found = [None, Some(0), Some(1), Some(2)].map(|copies| room(hard, soft, copies));
            assert_eq!(found, expected, "{hard} hard, {soft} soft");
        }
    }
}
