//! The privileges of this process, by name.
#![forbid(unsafe_code)]

use std::path::Path;

use crate::file::read_once;
use crate::kv_file::complete_lines;
use eviction_core::reading::{Reading, UnknownReason};

/// The names of include/uapi/linux/capability.h without their prefix, in order of their bits.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// A set of capabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// Whether the capability with this name, without `CAP_`, is in the set.
    pub fn has(self, name: &str) -> bool {
        NAMES.iter().position(|known| *known == name).is_some_and(|bit| self.0 >> bit & 1 == 1)
    }

    /// The names in the set; bits that have no name yet are left out.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        NAMES.iter().enumerate().filter(move |(bit, _)| self.0 >> bit & 1 == 1).map(|(_, name)| *name)
    }
}

impl FromIterator<&'static str> for Capabilities {
    /// From names without `CAP_`; one that is not known is in no set.
    fn from_iter<I: IntoIterator<Item = &'static str>>(names: I) -> Self {
        let bits = names.into_iter().filter_map(|name| NAMES.iter().position(|known| *known == name));
        Self(bits.fold(0, |set, bit| set | 1 << bit))
    }
}

/// The effective capabilities in the text of a `status` file.
pub fn parse_effective(text: &[u8]) -> Result<Capabilities, UnknownReason> {
    let mut found = None;
    for line in complete_lines(text)? {
        if let Some(value) = line.strip_prefix(b"CapEff:") {
            let value = std::str::from_utf8(value).map_err(|_| UnknownReason::Unparsable)?.trim();
            if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_hexdigit()) || found.is_some() {
                return Err(UnknownReason::Unparsable);
            }
            found = Some(u64::from_str_radix(value, 16).map_err(|_| UnknownReason::Unparsable)?);
        }
    }
    found.map(Capabilities).ok_or(UnknownReason::Absent)
}

/// The effective capabilities of this process.
pub fn read_effective(proc: &Path) -> Reading<Capabilities> {
    read_once(&proc.join("self/status"), 1 << 16).and_then(|text| parse_effective(&text)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn capabilities_have_names() {
        let text = b"Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t000001fffeffffff\n";
        let set = parse_effective(text).unwrap();
        assert!(set.has("BPF") && set.has("CHOWN") && set.has("CHECKPOINT_RESTORE"));
        assert!(!set.has("SYS_RESOURCE") && !set.has("NO_SUCH"));
        assert_eq!(set.names().count(), 40);
        assert_eq!(parse_effective(b"CapEff:\t0\n").unwrap().names().count(), 0);
    }

    #[test]
    fn bad_status_texts() {
        assert_eq!(parse_effective(b"Name:\tx\n"), Err(UnknownReason::Absent));
        assert_eq!(parse_effective(b"CapEff:\t1\nCapEff:\t1\n"), Err(UnknownReason::Unparsable));
        assert_eq!(parse_effective(b"CapEff:\t+1\n"), Err(UnknownReason::Unparsable));
        assert_eq!(parse_effective(b"CapEff:\t\n"), Err(UnknownReason::Unparsable));
        assert_eq!(parse_effective(b"CapEff:\t11111111111111111\n"), Err(UnknownReason::Unparsable));
        assert!(read_effective(Path::new("/proc")).known().is_some());
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>) {
            let _ = parse_effective(&bytes);
        }
    }
}
