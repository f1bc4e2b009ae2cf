//! Where the kubelet's settings come from: the `thresholds` part of an `AgentConfiguration`.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kubelet::KubeletFields;

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
    pub inline: Option<KubeletFields>,
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
