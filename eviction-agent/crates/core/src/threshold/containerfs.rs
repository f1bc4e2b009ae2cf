//! Thresholds of containerfs, which cannot be configured: `helpers.go: UpdateContainerFsThresholds`.

use std::sync::Arc;

use crate::disk_layout::DiskLayout;
use crate::policy::Threshold;
use crate::signal::Signal;
use crate::threshold::Thresholds;

impl Thresholds {
    /// Derives the thresholds of containerfs when the layout is known; `room` is that of [`Policy::list_room`].
    ///
    /// Each of {bytes, inodes} × {hard, soft} follows nodefs if writable layers are there, otherwise imagefs.
    /// The derived threshold replaces the last such threshold that the user configured, or is appended if there
    /// is none. Without a source the user's threshold is dropped.
    ///
    /// The evaluation that learns the layout uses the former list. It only sees those changes that the kubelet
    /// makes before its list moves, which happens when there is no `room` to append. The others are not visible
    /// before [`Thresholds::show_all`].
    ///
    /// [`Policy::list_room`]: crate::policy::Policy::list_room
    pub(crate) fn derive_containerfs(&mut self, room: usize, layout: DiskLayout) {
        if layout.is_inconsistent() {
            return;
        }
        let (available, inodes_free) = match layout.has_layers_on_image_fs() {
            true => (Signal::ImageFsAvailable, Signal::ImageFsInodesFree),
            false => (Signal::NodeFsAvailable, Signal::NodeFsInodesFree),
        };
        let given = Arc::clone(&self.all);
        let last = |signal, hard| {
            let matches = |threshold: &Threshold| threshold.signal == signal && threshold.is_hard() == hard;
            given.iter().rposition(matches)
        };
        let mut all = given.to_vec();
        let mut add = |threshold| {
            all.push(threshold);
            u8::try_from(all.len() - 1).ok()
        };
        let mut visible: Vec<Option<u8>> = self.effective.iter().copied().map(Some).collect();
        let mut effective = visible.clone();
        let mut appended = Vec::new();
        let mut room_taken = 0;
        for (signal, source, hard) in [
            (Signal::ContainerFsAvailable, available, true),
            (Signal::ContainerFsAvailable, available, false),
            (Signal::ContainerFsInodesFree, inodes_free, true),
            (Signal::ContainerFsInodesFree, inodes_free, false),
        ] {
            let derived = last(source, hard).map(|at| Threshold { signal, ..given[at].clone() });
            if let Some(index) = last(signal, hard) {
                effective[index] = derived.and_then(&mut add);
                if room_taken <= room {
                    visible[index] = effective[index];
                }
            } else {
                // A threshold without a source takes room as well, but is never met.
                room_taken += 1;
                appended.extend(derived);
            }
        }
        effective.extend(appended.into_iter().map(add));
        self.all = all.into();
        self.visible = visible.into_iter().flatten().collect();
        self.effective = effective.into_iter().flatten().collect();
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
