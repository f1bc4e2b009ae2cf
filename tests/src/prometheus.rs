//! Prometheus' programs: promtool, and a server that scrapes agents.

use std::path::PathBuf;

/// Says where promtool is; `cargo xtask test` unpacks it.
const PROMTOOL: &str = "EVICTION_AGENT_PROMTOOL";

/// promtool as the environment names it, else that of this machine, else what an earlier `cargo xtask test` unpacked.
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
