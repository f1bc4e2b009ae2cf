//! Finds promtool of Prometheus.

use std::path::PathBuf;

use crate::folder::cache;
use crate::helm::program;

/// The environment variable with the path of promtool, which `cargo xtask test` unpacks.
const PROMTOOL: &str = "EVICTION_AGENT_PROMTOOL";

/// Returns promtool as the environment names it, else that of this machine, else the one that an earlier `cargo
/// xtask test` has unpacked.
pub fn promtool() -> Option<PathBuf> {
    let unpacked = || Some(cache()?.join("tools/prometheus/usr/bin/promtool")).filter(|it| it.is_file());
    program(PROMTOOL, "promtool").or_else(unpacked)
}
