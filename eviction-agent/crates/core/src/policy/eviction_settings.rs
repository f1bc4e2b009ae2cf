//! How evictions are carried out: the `eviction` part of an `AgentConfiguration`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::signal::Signal;
use crate::units::GoDuration;

/// How evictions through the API server are carried out, in either profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EvictionSettings {
    /// What is done with a victim of a hard memory threshold.
    pub hard_mode: HardMode,
    /// Whether a hard threshold evicts a pod against its PodDisruptionBudget when no other pod of its
    /// class can be evicted instead.
    #[serde(rename = "hardIgnoresPDB")]
    pub hard_ignores_pdb: bool,
    /// Which conditions and taints an agent that acts writes to the Node object.
    pub node_status: NodeStatusSettings,
    /// What is done about hard thresholds while the API server is unavailable. Soft ones wait.
    #[serde(rename = "whenAPIServerDown")]
    pub when_api_server_down: WhenApiServerDown,
    /// How long a pod stays frozen at most.
    #[schemars(with = "String", extend("format" = "positive-duration"))]
    pub freeze_timeout: GoDuration,
    /// How much the memory of a pod may grow in the grace period of a hard memory eviction, where the
    /// agent ends its processes: beyond that all of them get SIGKILL at once. `0` turns it off.
    #[serde(with = "kill_on_growth")]
    #[schemars(with = "String", extend("format" = "quantity"))]
    pub kill_on_growth: Option<u64>,
    /// What removes unused images and dead containers before a pod is evicted for a disk.
    pub node_reclaim: NodeReclaim,
}

impl Default for EvictionSettings {
    /// `hard_ignores_pdb` is true, because the kubelet ignores PodDisruptionBudgets.
    fn default() -> Self {
        Self {
            hard_mode: HardMode::default(),
            hard_ignores_pdb: true,
            node_status: NodeStatusSettings::default(),
            when_api_server_down: WhenApiServerDown::default(),
            freeze_timeout: GoDuration::from_secs(60),
            // A process that ends on SIGTERM needs less memory than that to do so. One that grows at 3 GB/s
            // allocates it in 6 ms.
            kill_on_growth: Some(16 << 20),
            node_reclaim: NodeReclaim::default(),
        }
    }
}

/// What removes unused images and dead containers when a disk is short, before a pod is evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NodeReclaim {
    /// The kubelet, which does so when it evicts. Where the unused images of the node are estimated to be
    /// enough, the agent leaves it to the kubelet for 15 seconds.
    #[default]
    Kubelet,
    /// The agent, through the container runtime interface, and only as many as are needed.
    #[serde(rename = "CRI")]
    Cri,
    /// Nothing: pods are evicted at once.
    Off,
}

/// What is done with a victim of a hard memory threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HardMode {
    /// Its eviction is requested, and the kubelet terminates it.
    #[default]
    Evict,
    /// Its processes are killed at the same moment. Needs the host's PID namespace.
    EvictAndKill,
}

/// What is done about hard thresholds while the API server is unavailable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WhenApiServerDown {
    /// Nothing: the kubelet evicts at its own thresholds.
    #[default]
    Wait,
    /// The processes of victims are killed. Needs the host's PID namespace.
    Kill,
    /// The pod that would be evicted first for a hard threshold of memory is frozen until the API server is back,
    /// for no longer than `freezeTimeout`.
    Freeze,
}

/// Conditions and taints that an agent that acts writes to the Node object, in either profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NodeStatusSettings {
    /// Whether the agent sets the conditions `EvictionAgentMemoryPressure`, `EvictionAgentDiskPressure` and
    /// `EvictionAgentPIDPressure`.
    pub conditions: bool,
    /// Whether the agent taints the node `PreferNoSchedule` while a soft threshold is met.
    pub prefer_no_schedule: bool,
    /// Whether the agent taints the node `NoSchedule` while a hard threshold is met.
    pub no_schedule: bool,
}

impl Default for NodeStatusSettings {
    fn default() -> Self {
        Self { conditions: true, prefer_no_schedule: true, no_schedule: true }
    }
}

impl NodeStatusSettings {
    /// The agent writes nothing, and removes its conditions and taints from the node.
    pub const NONE: Self = Self { conditions: false, prefer_no_schedule: false, no_schedule: false };
}

/// Which evictions a BPF program may carry out in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "KernelKill")]
pub enum KernelKillMode {
    /// None.
    #[default]
    Off,
    /// Those for a hard threshold of `memory.available`: the memory charge that crosses the threshold kills
    /// a process of the pod that would be evicted first, if that pod's growth crossed it.
    HardMemory,
    /// Those for a hard threshold of `nodefs.available` on an ext4: the buffered write that crosses the threshold
    /// kills the process that writes, if it is of the pod that would be evicted first.
    HardDisk,
    /// Both.
    HardMemoryAndDisk,
}

impl KernelKillMode {
    /// Returns whether there may be a kill order for a threshold of this signal.
    pub fn includes(self, signal: Signal) -> bool {
        match signal {
            Signal::MemoryAvailable => matches!(self, Self::HardMemory | Self::HardMemoryAndDisk),
            Signal::NodeFsAvailable => matches!(self, Self::HardDisk | Self::HardMemoryAndDisk),
            _ => false,
        }
    }
}

/// A number of bytes as a quantity. `0` is `None`.
mod kill_on_growth {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::units::{Format, Quantity};

    pub(super) fn serialize<S: Serializer>(bytes: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = i64::try_from(bytes.unwrap_or(0)).unwrap_or(i64::MAX);
        Quantity::from_i64(bytes, Format::BinarySi).serialize(serializer)
    }

    /// Rounds a fraction of a byte up.
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
        let quantity = Quantity::deserialize(deserializer)?;
        let error = |bound: &str| D::Error::custom(format_args!("must be {bound}, got {quantity}"));
        if quantity.signum() < 0 {
            return Err(error("at least 0"));
        }
        if quantity > Quantity::from_i64(i64::MAX, Format::DecimalSi) {
            return Err(error("less than 8Ei"));
        }
        Ok(Some(quantity.value().unsigned_abs()).filter(|bytes| *bytes > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kill_on_growth_is_read_from_a_quantity_of_bytes() {
        let read = |text: &str| {
            let settings = serde_json::from_value(serde_json::json!({"killOnGrowth": text}));
            settings
                .map(|settings: EvictionSettings| settings.kill_on_growth)
                .map_err(|error| error.to_string())
        };
        assert_eq!(read("16Mi"), Ok(Some(16 << 20)));
        assert_eq!(read("1M"), Ok(Some(1_000_000)));
        assert_eq!(read("1500m"), Ok(Some(2)));
        assert_eq!(read("0"), Ok(None));
        for (wrong, why) in [
            ("-1Mi", "must be at least 0, got -1Mi"),
            ("9223372036854775808", "must be less than 8Ei, got 9223372036854775808"),
            ("1e30", "must be less than 8Ei, got 1e30"),
        ] {
            assert_eq!(read(wrong).unwrap_err(), why);
        }
        let written = |kill_on_growth| {
            let settings = EvictionSettings { kill_on_growth, ..EvictionSettings::default() };
            serde_json::to_value(settings).unwrap()["killOnGrowth"].clone()
        };
        assert_eq!((written(Some(16 << 20)), written(None)), ("16Mi".into(), "0".into()));
    }
}
