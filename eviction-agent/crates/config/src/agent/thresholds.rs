//! Where the kubelet's settings come from: the `thresholds` part of an `AgentConfiguration`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use eviction_core::units::GoDuration;

/// Where the kubelet's settings come from: thresholds, and what goes with them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ThresholdSettings {
    /// Where they are read.
    pub source: ThresholdSource,
    /// The kubelet's files.
    pub files: KubeletFiles,
    /// How the kubelet's `/configz` is reached.
    pub configz: Configz,
    /// Settings for `source: Inline`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inline: Option<InlineSettings>,
}

/// Where they are read.for the kubelet's settings.
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

/// What the command line says of asking the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AskConfigz {
    /// It is to be asked, whatever the source is in the file.
    pub ask: bool,
    /// File with those who vouch for its serving certificate.
    pub certificate_authority: Option<PathBuf>,
    /// Any certificate will do.
    pub insecure: bool,
}

/// Fields of a KubeletConfiguration, with its defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct InlineSettings {
    /// By signal, below which amount pods are evicted at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eviction_hard: Option<BTreeMap<String, String>>,
    /// By signal, below which amount pods are evicted after a grace period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eviction_soft: Option<BTreeMap<String, String>>,
    /// By signal, how long a soft threshold must be met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eviction_soft_grace_period: Option<BTreeMap<String, String>>,
    /// By signal, how much more must be available before it counts as resolved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eviction_minimum_reclaim: Option<BTreeMap<String, String>>,
    /// How long a node condition outlives its cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "duration"))]
    pub eviction_pressure_transition_period: Option<GoDuration>,
    /// The most time a pod gets to end in a soft eviction, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eviction_max_pod_grace_period: Option<i32>,
    /// Whether default thresholds are kept whose signal `evictionHard` does not name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge_default_eviction_settings: Option<bool>,
    /// Whether pods are held to their own limits of local storage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_storage_capacity_isolation: Option<bool>,
    /// With `pods`, hard thresholds of memory hold for allocatable memory as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforce_node_allocatable: Option<Vec<String>>,
}
