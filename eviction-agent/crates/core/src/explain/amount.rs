//! Amounts, times and names as people read them.

use crate::pod::PodName;
use crate::signal::Resource;
use crate::time::Timestamp;
use crate::units::{Quantity, display_bytes};

/// An amount of a resource to three digits: `1.43Gi`, `12345`.
pub(super) fn amount(resource: Resource, number: i64) -> String {
    match resource {
        Resource::Memory | Resource::EphemeralStorage => bytes(number),
        Resource::Inodes | Resource::Pids => number.to_string(),
    }
}

/// The same with its unit, to be read in a sentence: `1.43Gi`, `12345 inodes`.
pub(super) fn spoken(resource: Resource, number: i64) -> String {
    let one = number.unsigned_abs() == 1;
    match resource {
        Resource::Memory | Resource::EphemeralStorage => bytes(number),
        Resource::Inodes => format!("{number} {}", if one { "inode" } else { "inodes" }),
        Resource::Pids => format!("{number} {}", if one { "process" } else { "processes" }),
    }
}

/// The same to the last digit, for what has to be exact: `300Mi and 1 byte`.
pub(super) fn exact(resource: Resource, number: i64) -> String {
    let rounded = spoken(resource, number);
    if matches!(resource, Resource::Inodes | Resource::Pids) || is_exactly(&rounded, number) {
        return rounded;
    }
    let below = number.saturating_sub(1);
    let rounded_below = bytes(below);
    if is_exactly(&rounded_below, below) {
        return format!("{rounded_below} and 1 byte");
    }
    format!("{rounded} ({number} bytes)")
}

fn is_exactly(text: &str, number: i64) -> bool {
    let read = Quantity::parse(text.trim_end_matches('B')).ok();
    read.and_then(|quantity| quantity.as_i64()) == Some(number)
}

/// A quantity as it was configured, in the same form if it is an amount of whole units.
pub(super) fn quantity(resource: Resource, text: &str) -> String {
    let whole = Quantity::parse(text).ok().and_then(|quantity| quantity.as_i64());
    whole.map_or_else(|| text.to_owned(), |number| amount(resource, number))
}

fn bytes(number: i64) -> String {
    display_bytes(number.into())
}

/// An instant, without its date if that is the one of `today`.
pub(super) fn clock(time: Timestamp, today: Timestamp) -> String {
    let (time, today) = (time.to_string(), today.to_string());
    match (time.split_once('T'), today.split_once('T')) {
        (Some((date, clock)), Some((same, _))) if date == same => clock.to_owned(),
        _ => time,
    }
}

/// `namespace/name`.
pub(super) fn pod(name: &PodName) -> String {
    printable(&format!("{}/{}", name.namespace, name.name))
}

/// A text from outside, with nothing in it that a terminal would obey.
pub(super) fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// `2 passes`, `1 evaluation`.
pub(super) fn passes(number: usize) -> String {
    format!("{number} {}", if number == 1 { "pass" } else { "passes" })
}

/// `2 pods`, `1 pod`.
pub(super) fn count(number: usize, one: &str) -> String {
    format!("{number} {one}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::{exact, printable};
    use crate::signal::Resource::{Inodes, Memory, Pids};

    #[test]
    fn what_is_rounded_is_told_to_the_byte_as_well() {
        assert_eq!(exact(Memory, 200 << 20), "200Mi");
        assert_eq!(exact(Memory, (200 << 20) + 1), "200Mi and 1 byte");
        assert_eq!(exact(Memory, (200 << 20) + 2), "200Mi (209715202 bytes)");
        assert_eq!(exact(Memory, 7), "7B");
        assert_eq!(exact(Inodes, 12_345), "12345 inodes");
        assert_eq!(exact(Pids, 1), "1 process");
    }

    #[test]
    fn a_terminal_is_told_nothing() {
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
    }
}
