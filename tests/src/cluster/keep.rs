//! Keeps a cluster running before it ends, for inspection.

use std::time::Duration;

use super::Cluster;

/// The environment variable that requests this; as in `xtask/src/e2e/mod.rs`.
const KEEP: &str = "EVICTION_AGENT_KEEP_CLUSTER";

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::env::var_os(KEEP).is_none() || self.interrupt.check().is_err() {
            return;
        }
        match self.admin_kubeconfig() {
            Ok(config) => eprintln!(
                "the cluster stays up: kubectl --kubeconfig={}; logs are in {}; Ctrl-C ends it",
                config.display(),
                self.path().display()
            ),
            Err(error) => eprintln!("the cluster stays up, but cannot be reached: {error:#}; Ctrl-C ends it"),
        }
        while self.interrupt.sleep(Duration::from_secs(3600)).is_ok() {}
    }
}
