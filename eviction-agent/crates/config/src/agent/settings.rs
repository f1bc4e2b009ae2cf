//! Parts of an `AgentConfiguration`: the action, the source of the kubelet's settings, kernel probes,
//! eviction requests, memory limits, metrics and the HTTP server.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use eviction_core::units::{Format, GoDuration, Quantity};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kubelet::KubeletFields;
use crate::problem::Problem;

// The names are those on the command line and in events.
eviction_core::named_enum! {
    /// What is done with the chosen pods. A change takes effect when the agent is restarted.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum Action {
        /// Decisions are reported and nothing is done.
        #[default]
        None = "none",
        /// The processes in the pod's cgroup are killed.
        Kill = "kill",
        /// The agent requests the pod's eviction from the API server.
        Evict = "evict",
    }
}

eviction_core::named_enum! {
    /// How much of the action is left out. A change takes effect when the agent is restarted.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum DryRun {
        /// The action is carried out.
        #[default]
        None = "none",
        /// The agent reports what it would do, and sends no request.
        Client = "client",
        /// The API server gets the requests with `dryRun: All`: it checks them and changes nothing.
        /// For the action Evict only.
        Server = "server",
    }
}

/// The action and its dry run mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActionSettings {
    /// The action for the chosen pods.
    pub action: Action,
    /// The dry run mode.
    pub dry_run: DryRun,
}

impl ActionSettings {
    /// Checks that the dry run mode is valid for the action.
    ///
    /// # Errors
    /// If the dry run mode is `Server` and the action sends no requests to the API server.
    pub fn check(self) -> Result<(), Problem> {
        let Self { action, dry_run } = self;
        if action == Action::Evict || dry_run != DryRun::Server {
            return Ok(());
        }
        let cause =
            format!("`Server` needs the action Evict, which asks the API server; the action is {action:?}");
        Err(Problem::new("dryRun", cause))
    }

    /// Returns whether nothing on the node or in the cluster is changed.
    pub fn is_dry(self) -> bool {
        self.action == Action::None || self.dry_run != DryRun::None
    }

    /// Returns whether evictions are requested from the API server, including its own dry run.
    pub fn requests_evictions(self) -> bool {
        self.action == Action::Evict && self.dry_run != DryRun::Client
    }

    /// Returns whether killing processes is the action itself.
    pub fn kills(self) -> bool {
        self.action == Action::Kill && !self.is_dry()
    }
}

impl fmt::Display for ActionSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { action, dry_run } = self;
        f.write_str(action.name())?;
        match dry_run {
            DryRun::None => Ok(()),
            DryRun::Client | DryRun::Server => write!(f, " (dry run: {})", dry_run.name()),
        }
    }
}

/// Where the kubelet's settings come from: thresholds, and what goes with them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ThresholdSettings {
    /// The source of the settings.
    pub source: ThresholdSource,
    /// The kubelet's files.
    pub files: KubeletFiles,
    /// How the kubelet's `/configz` is reached.
    pub configz: Configz,
    /// Settings for `source: Inline`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inline: Option<KubeletFields>,
}

/// The source of the kubelet's settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ThresholdSource {
    /// The kubelet's configuration file and its drop-ins; without a file its defaults.
    #[default]
    Files,
    /// The running kubelet at `/configz`, command line included. If it does not answer: its last answer,
    /// else its files if they are named.
    Configz,
    /// `thresholds.inline`.
    Inline,
}

/// The kubelet's files. The options `--kubelet-config` and `--kubelet-config-dir` go before them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct KubeletFiles {
    /// KubeletConfiguration file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<PathBuf>,
    /// Folder of drop-in files over it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_dir: Option<PathBuf>,
}

/// How the kubelet's `/configz` is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Configz {
    /// Host name or address of the kubelet; absent: `NODE_IP` of the environment, else 127.0.0.1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Its port.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// PEM file with the authorities for its serving certificate; absent: those of the API server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_authority: Option<PathBuf>,
    /// The name in its certificate; absent: the node's name, or the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    /// Whether any certificate is accepted. Then any server at that address can read the token.
    #[serde(rename = "insecureSkipTLSVerify")]
    pub insecure_skip_tls_verify: bool,
}

impl Default for Configz {
    fn default() -> Self {
        Self {
            address: None,
            port: 10250,
            certificate_authority: None,
            server_name: None,
            insecure_skip_tls_verify: false,
        }
    }
}

/// When kernel probes are attached that cost too much to stay attached, in either profile. A change
/// takes effect at the next start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Probes {
    /// The headroom to a threshold, in percent of the node's memory, below which they are attached; 64Mi
    /// is always near.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub near_threshold_percent: f64,
    /// How long a probe stays attached after it was last needed.
    #[schemars(with = "String", extend("format" = "duration"))]
    pub detach_after: GoDuration,
}

impl Default for Probes {
    fn default() -> Self {
        Self { near_threshold_percent: 3.0, detach_after: GoDuration::from_secs(10) }
    }
}

/// Eviction requests to the API server. A change takes effect at the next start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EvictionRequests {
    /// The most requests at the same time.
    #[schemars(range(min = 1, max = 64))]
    pub max_in_flight: u16,
    /// The timeout of a request.
    #[schemars(with = "String", extend("format" = "positive-duration"))]
    pub timeout: GoDuration,
    /// The most time between a decision and its request; an older decision is made again.
    #[schemars(with = "String", extend("format" = "positive-duration"))]
    pub max_age: GoDuration,
}

impl Default for EvictionRequests {
    fn default() -> Self {
        let five = GoDuration::from_secs(5);
        Self { max_in_flight: 8, timeout: five, max_age: five }
    }
}

/// The HTTP server of the agent. A change takes effect at the next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Server {
    /// The address of `/metrics`, `/healthz` and `/readyz`; port 0 lets the kernel choose.
    #[schemars(with = "String", extend("format" = "socket-address"))]
    pub listen_address: SocketAddr,
}

impl Default for Server {
    fn default() -> Self {
        Self { listen_address: (Ipv4Addr::LOCALHOST, 9095).into() }
    }
}

/// Memory limits of pods, containers and the cgroups above them, at which the kernel kills. A change
/// takes effect at the next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MemoryLimits {
    /// How far below a limit the working set is reported, in percent of the limit.
    #[schemars(range(min = 1, max = 50))]
    pub warn_percent: u8,
}

impl Default for MemoryLimits {
    fn default() -> Self {
        Self { warn_percent: 10 }
    }
}

/// What is exported as metrics. A change takes effect at the next start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MetricsSettings {
    /// The pods whose memory is exported. The eviction rank is that of the first ten, or of none.
    pub pods: PodMetrics,
}

/// The pods whose memory is exported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PodMetrics {
    /// All pods, up to 512.
    All,
    /// The ten that would be evicted first.
    #[default]
    Top,
    /// None, nor any rank.
    Off,
}

/// Recordings of what the engine decides by, for `replay` and `what-if`. A change takes effect at the next
/// start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RecorderSettings {
    /// The directory of the recordings, one per agent; without it nothing is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// The most that all recordings take on the disk. The oldest are removed.
    #[schemars(with = "String", extend("format" = "quantity"))]
    pub max_size: Quantity,
    /// How long a recording is kept.
    #[schemars(with = "String", extend("format" = "positive-duration"))]
    pub max_age: GoDuration,
    /// With less free space on the disk the oldest recordings are removed, and then nothing is recorded.
    #[schemars(with = "String", extend("format" = "quantity"))]
    pub min_free_disk: Quantity,
}

impl Default for RecorderSettings {
    fn default() -> Self {
        Self {
            directory: None,
            max_size: Quantity::from_i64(256 << 20, Format::BinarySi),
            max_age: GoDuration::from_secs(24 * 3600),
            min_free_disk: Quantity::from_i64(1 << 30, Format::BinarySi),
        }
    }
}

/// How the disk usage of pods is read: volumes, writable layers and logs. A change takes effect at the next start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PodStorageSettings {
    /// The source of the usage.
    pub source: PodStorageSource,
}

/// The source of the pods' disk usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PodStorageSource {
    /// The pods' directories, where they are mounted: exact at that moment.
    #[default]
    Directories,
    /// The kubelet's `/stats/summary`, read when a threshold is met, at most once a minute. Its values for volumes
    /// are up to two minutes old. The kubelet is reached as for `thresholds.configz`, and checks for `get` on `nodes/stats`.
    Summary,
}

/// How unused images and dead containers are removed with `eviction.nodeReclaim: CRI`. A change takes
/// effect at the next start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ReclaimSettings {
    /// The socket of the container runtime, as `unix:///PATH` or an absolute path; by default the kubelet's
    /// `containerRuntimeEndpoint`.
    #[schemars(extend("format" = "cri-socket"))]
    pub cri_socket: Option<String>,
    /// Patterns of images that are never removed, by name or id; `*` stands for any text.
    pub keep_images: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_eviction_has_a_server_dry_run() {
        for (action, dry_run, is_valid) in [
            (Action::None, DryRun::Client, true),
            (Action::None, DryRun::Server, false),
            (Action::Kill, DryRun::Client, true),
            (Action::Kill, DryRun::Server, false),
            (Action::Evict, DryRun::Client, true),
            (Action::Evict, DryRun::Server, true),
        ] {
            let checked = ActionSettings { action, dry_run }.check();
            assert_eq!(checked.is_ok(), is_valid, "{action:?} {dry_run:?}");
            if let Err(problem) = checked {
                assert!(problem.to_string().contains(&format!("{action:?}")), "{problem}");
            }
        }
    }

    #[test]
    fn client_dry_run_sends_no_requests_and_kills_no_processes() {
        let settings = |action, dry_run| ActionSettings { action, dry_run };
        assert!(!settings(Action::Evict, DryRun::Client).requests_evictions());
        assert!(settings(Action::Evict, DryRun::Server).requests_evictions());
        assert!(settings(Action::Evict, DryRun::Server).is_dry());
        assert!(settings(Action::Kill, DryRun::Client).is_dry());
        assert!(!settings(Action::Kill, DryRun::Client).kills());
        assert!(settings(Action::Kill, DryRun::None).kills());
        assert!(ActionSettings::default().is_dry());
    }
}
