//! Finds promtool of Prometheus.

use std::path::PathBuf;

/// The environment variable with the path of promtool, which `cargo xtask test` unpacks.
const PROMTOOL: &str = "EVICTION_AGENT_PROMTOOL";

/// Returns promtool as the environment names it, else that of this machine, else the one that an earlier `cargo
/// xtask test` has unpacked.
pub fn promtool() -> Option<PathBuf> {
    if let Some(program) = std::env::var_os(PROMTOOL) {
        return Some(PathBuf::from(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(std::env::home_dir()?.join(".cache")))
        .map(|cache| cache.join("eviction-agent/tools/prometheus/usr/bin"));
    std::env::split_paths(&path).chain(cache).map(|folder| folder.join("promtool")).find(|it| it.is_file())
}
