//! How much room the kubelet's list of thresholds has.
//!
//! `UpdateContainerFsThresholds` writes into a list that its caller goes on walking. What the
//! caller sees of it depends on whether the list had to move, and so on how Go makes slices
//! grow (`runtime/slice.go: growslice`, Go 1.26). Users see it in the first pass of a kubelet,
//! if they have set thresholds of containerfs.

/// The number of thresholds that can be appended before the list moves: for a number of hard
/// and soft ones, and of copies as `allocatableMemory.available` if the pods' cgroup is
/// enforced. Mirrors `ParseThresholdConfig` and `addAllocatableThresholds`.
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

/// The capacity after growing, for elements of 64 bytes with pointers in them.
fn grown(capacity: usize, needed: usize) -> usize {
    /// What fits into Go's classes of sizes behind a header of 8 bytes.
    const CLASSES: [usize; 13] = [9, 10, 11, 13, 15, 17, 19, 21, 23, 27, 31, 35, 41];
    let wanted = needed.max(2 * capacity);
    match wanted {
        // Up to 512 bytes there is no header, and every size has its class.
        0..=8 => wanted,
        _ => *CLASSES.iter().find(|class| **class >= wanted).unwrap_or(&wanted),
    }
}

#[cfg(test)]
mod tests {
    use super::room;

    /// As a program with the same appends prints them, built with Go 1.26.8 for amd64.
    #[test]
    fn room_is_that_of_go_slices() {
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
