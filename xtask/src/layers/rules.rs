//! Who may see whom. docs/architecture.md says why; this is the list that is enforced.

/// What a package of the workspace may depend on.
pub(super) struct PackageRule {
    pub(super) package: &'static str,
    pub(super) sees: &'static [&'static str],
    /// For its own tests only.
    pub(super) tests_see: &'static [&'static str],
}

/// Every package. `xtask`, and what it uses, does without the agent: `cargo xtask setup` has
/// to build before the BPF toolchain is there.
pub(super) const PACKAGES: &[PackageRule] = &[
    PackageRule { package: "eviction-common", sees: &[], tests_see: &[] },
    PackageRule { package: "eviction-ebpf", sees: &["eviction-common"], tests_see: &[] },
    PackageRule { package: "eviction-agent", sees: &["eviction-common"], tests_see: &["tests"] },
    PackageRule { package: "tests", sees: &[], tests_see: &["eviction-agent", "eviction-common"] },
    PackageRule { package: "xtask", sees: &["tests"], tests_see: &[] },
];

/// The layers of the agent: its top-level modules, and which others each may see.
pub(super) const LAYERS: &[(&str, &[&str])] = &[
    ("core", &[]),
    // An error's text; it knows none of us.
    ("causes", &[]),
    // A format that configuration and pods files share; it knows none of us.
    ("yaml", &[]),
    // How requests travel to the API server; what they mean is for those who ask.
    ("api", &["yaml"]),
    ("config", &["core", "yaml"]),
    ("source", &["core", "yaml", "api", "causes"]),
    ("action", &["core", "api"]),
    ("journal", &["core"]),
    // Worlds in a file, read as a node's own configuration and pods are; recorded decisions among them.
    ("scenario", &["core", "config", "source", "journal"]),
    ("metrics", &["core"]),
    ("http", &["core", "metrics"]),
    ("top", &["core", "journal"]),
    ("agent", &["core", "causes", "api", "config", "source", "action", "journal", "metrics", "http"]),
    (
        "cli",
        &[
            "core", "api", "config", "source", "action", "journal", "scenario", "metrics", "http", "top",
            "agent",
        ],
    ),
    (MAIN, &["cli"]),
];

/// The binary target: parse, start the log, dispatch.
pub(super) const MAIN: &str = "main";

/// The layer without IO, clock, async, logging, randomness and hash order.
pub(super) const CORE: &str = "core";

/// Layers that print; everyone else logs or returns.
pub(super) const PRINTERS: &[&str] = &["cli", MAIN];

/// Crates that only one module may name.
pub(super) const CONFINED: &[(&str, &str)] = &[
    ("aya", "source::bpf"),
    ("aya_log", "source::bpf"),
    ("aya_obj", "source::bpf"),
    ("eviction_common", "source::bpf"),
];

/// The crates that `core` may name; its tests may name any development dependency as well.
pub(super) const CORE_CRATES: &[&str] = &["std", "serde", "schemars", "thiserror", "jiff", "num_bigint"];

/// The crates that only the tests of `core` may name.
pub(super) const CORE_TEST_CRATES: &[&str] = &["insta", "proptest", "serde_json", "tempfile"];

/// What `core` must not reach inside the crates that it may name, and what it would break.
/// The tests of `core` may use what lies in `std`.
pub(super) const CORE_DENIED: &[(&[&str], &str)] = &[
    (&["std", "time", "Instant"], CLOCK),
    (&["std", "time", "SystemTime"], CLOCK),
    (&["std", "time", "UNIX_EPOCH"], CLOCK),
    (&["jiff", "Timestamp", "now"], CLOCK),
    (&["jiff", "Zoned", "now"], CLOCK),
    (&["jiff", "tz", "TimeZone", "system"], "what the machine is set to comes from outside"),
    (&["std", "env"], IO),
    (&["std", "fs"], IO),
    (&["std", "io"], IO),
    (&["std", "net"], IO),
    (&["std", "os"], IO),
    (&["std", "process"], IO),
    (&["std", "sync", "mpsc"], THREADS),
    (&["std", "thread"], THREADS),
    (&["std", "future"], THREADS),
    (&["std", "task"], THREADS),
    (&["std", "collections", "HashMap"], HASH),
    (&["std", "collections", "HashSet"], HASH),
    (&["std", "collections", "hash_map"], HASH),
    (&["std", "collections", "hash_set"], HASH),
    (&["std", "hash", "RandomState"], HASH),
];

/// Modules of `core` that may hold a `HashMap` all the same, with a hasher that is said and
/// fixed: it is looked into by key and never gone through.
pub(super) const CORE_LOOKUPS: &[&str] = &["core::pods::set"];

const CLOCK: &str = "time arrives with each input";
const IO: &str = "core does no input or output";
const THREADS: &str = "core knows no threads and no async";
const HASH: &str = "hash order must not decide anything; BTreeMap and BTreeSet have one order";
