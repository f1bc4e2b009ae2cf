//! Helm, and the chart that it installs.

use std::path::PathBuf;
use std::process::Command;

use crate::folder::repository;

/// The environment variable with the path of Helm, which `cargo xtask` installs.
const HELM: &str = "EVICTION_AGENT_HELM";

/// Returns the folder of the chart.
pub fn chart() -> PathBuf {
    repository("deploy/charts/eviction-agent")
}

/// Returns the program that this variable names, else that of this machine.
pub fn program(variable: &str, name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|it| it.is_file());
    std::env::var_os(variable).map(PathBuf::from).or(found)
}

/// Helm, with its settings in its own folder.
#[derive(Debug)]
pub struct Helm {
    program: PathBuf,
    home: tempfile::TempDir,
    kubeconfig: PathBuf,
}

impl Helm {
    /// Returns a Helm without a cluster. Where Helm is not installed, prints that and returns `None`.
    pub fn find() -> Option<Self> {
        let (program, home) = (program(HELM, "helm"), tempfile::tempdir().ok());
        if program.is_none() {
            crate::report_skip("there is no helm: `cargo xtask chart` installs it");
        }
        Some(Self { program: program?, home: home?, kubeconfig: "/dev/null".into() })
    }

    /// Uses the cluster of that kubeconfig.
    #[must_use]
    pub fn of_cluster(self, kubeconfig: PathBuf) -> Self {
        Self { kubeconfig, ..self }
    }

    /// Runs Helm, and returns its standard output.
    ///
    /// # Errors
    /// Its standard error, if it fails.
    pub fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new(&self.program)
            .args(arguments)
            .envs(
                ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"]
                    .map(|name| (name, self.home.path())),
            )
            .env("KUBECONFIG", &self.kubeconfig)
            .output()
            .map_err(|error| format!("run {}: {error}", self.program.display()))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }
}
