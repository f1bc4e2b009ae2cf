//! The fields of a `KubeletConfiguration` that count here, and their defaults.

use std::collections::BTreeMap;

use super::layer::{Layer, Origins};
use eviction_core::signal::Signal;
use eviction_core::units::GoDuration;

pub(super) type StringMap = BTreeMap<String, String>;

/// What the files say, `None` where they say nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Fields {
    pub(super) eviction_hard: Option<StringMap>,
    pub(super) eviction_soft: Option<StringMap>,
    pub(super) eviction_soft_grace_period: Option<StringMap>,
    pub(super) eviction_minimum_reclaim: Option<StringMap>,
    pub(super) eviction_pressure_transition_period: Option<GoDuration>,
    pub(super) eviction_max_pod_grace_period: Option<i32>,
    pub(super) merge_default_eviction_settings: Option<bool>,
    pub(super) local_storage_capacity_isolation: Option<bool>,
    pub(super) enforce_node_allocatable: Option<Vec<String>>,
    pub(super) cgroups_per_qos: Option<bool>,
    pub(super) system_reserved: Option<StringMap>,
    pub(super) kube_reserved: Option<StringMap>,
    pub(super) system_reserved_cgroup: Option<String>,
    pub(super) kube_reserved_cgroup: Option<String>,
    pub(super) node_status_update_frequency: Option<GoDuration>,
    pub(super) node_status_report_frequency: Option<GoDuration>,
    pub(super) feature_gates: Option<BTreeMap<String, bool>>,
}

/// Their names in files.
pub(super) const NAMES: [&str; 17] = [
    "evictionHard",
    "evictionSoft",
    "evictionSoftGracePeriod",
    "evictionMinimumReclaim",
    "evictionPressureTransitionPeriod",
    "evictionMaxPodGracePeriod",
    "mergeDefaultEvictionSettings",
    "localStorageCapacityIsolation",
    "enforceNodeAllocatable",
    "cgroupsPerQOS",
    "systemReserved",
    "kubeReserved",
    "systemReservedCgroup",
    "kubeReservedCgroup",
    "nodeStatusUpdateFrequency",
    "nodeStatusReportFrequency",
    "featureGates",
];

impl Fields {
    /// Lays one file over what is there.
    pub(super) fn read(&mut self, layer: &mut Layer<'_>) {
        let Self {
            eviction_hard,
            eviction_soft,
            eviction_soft_grace_period,
            eviction_minimum_reclaim,
            eviction_pressure_transition_period,
            eviction_max_pod_grace_period,
            merge_default_eviction_settings,
            local_storage_capacity_isolation,
            enforce_node_allocatable,
            cgroups_per_qos,
            system_reserved,
            kube_reserved,
            system_reserved_cgroup,
            kube_reserved_cgroup,
            node_status_update_frequency,
            node_status_report_frequency,
            feature_gates,
        } = self;
        layer.string_map("evictionHard", eviction_hard);
        layer.string_map("evictionSoft", eviction_soft);
        layer.string_map("evictionSoftGracePeriod", eviction_soft_grace_period);
        layer.string_map("evictionMinimumReclaim", eviction_minimum_reclaim);
        layer.duration("evictionPressureTransitionPeriod", eviction_pressure_transition_period);
        layer.int32("evictionMaxPodGracePeriod", eviction_max_pod_grace_period);
        layer.boolean("mergeDefaultEvictionSettings", merge_default_eviction_settings);
        layer.boolean("localStorageCapacityIsolation", local_storage_capacity_isolation);
        layer.strings("enforceNodeAllocatable", enforce_node_allocatable);
        layer.boolean("cgroupsPerQOS", cgroups_per_qos);
        layer.string_map("systemReserved", system_reserved);
        layer.string_map("kubeReserved", kube_reserved);
        layer.string("systemReservedCgroup", system_reserved_cgroup);
        layer.string("kubeReservedCgroup", kube_reserved_cgroup);
        layer.duration("nodeStatusUpdateFrequency", node_status_update_frequency);
        layer.duration("nodeStatusReportFrequency", node_status_report_frequency);
        layer.boolean_map("featureGates", feature_gates);
    }

    /// `loadConfigFile`: the default hard thresholds, of which any map that is given replaces
    /// all, unless it asks for those it lacks.
    pub(super) fn default_eviction_hard(&mut self) {
        match (&mut self.eviction_hard, self.merge_default_eviction_settings) {
            (None, _) => {
                self.eviction_hard = Some(default_thresholds().collect());
            }
            (Some(given), Some(true)) => {
                for (signal, value) in default_thresholds() {
                    given.entry(signal).or_insert(value);
                }
            }
            (Some(_), _) => {}
        }
    }

    /// What is lost when the kubelet writes its configuration as JSON in order to lay drop-in
    /// files over it: empty maps and lists become absent.
    pub(super) fn omit_empty(&mut self, origins: &mut Origins) {
        let maps = [
            &mut self.eviction_hard,
            &mut self.eviction_soft,
            &mut self.eviction_soft_grace_period,
            &mut self.eviction_minimum_reclaim,
        ];
        for map in maps {
            map.take_if(|map| map.is_empty());
        }
        if self.enforce_node_allocatable.take_if(|list| list.is_empty()).is_some() {
            origins.remove("enforceNodeAllocatable");
        }
    }

    /// Absent or zero means five minutes.
    pub(super) fn pressure_transition_period(&self) -> GoDuration {
        or_if_zero(self.eviction_pressure_transition_period, 300)
    }

    /// Absent or zero means ten seconds.
    pub(super) fn status_update_frequency(&self) -> GoDuration {
        or_if_zero(self.node_status_update_frequency, 10)
    }

    /// Absent or zero means as often as it is updated if that is given, else five minutes.
    pub(super) fn status_report_frequency(&self) -> GoDuration {
        let update = self.node_status_update_frequency;
        or_if_zero(
            self.node_status_report_frequency.filter(|report| *report != GoDuration::ZERO).or(update),
            300,
        )
    }

    /// Absent means the pods as a whole; an empty list means nothing.
    pub(super) fn enforced(&self) -> Vec<&str> {
        match &self.enforce_node_allocatable {
            Some(list) => list.iter().map(String::as_str).collect(),
            None => vec!["pods"],
        }
    }
}

fn or_if_zero(duration: Option<GoDuration>, seconds: i64) -> GoDuration {
    duration.filter(|duration| *duration != GoDuration::ZERO).unwrap_or(GoDuration::from_secs(seconds))
}

/// `DefaultEvictionHard` on Linux.
fn default_thresholds() -> impl Iterator<Item = (String, String)> {
    [
        (Signal::MemoryAvailable, "100Mi"),
        (Signal::NodeFsAvailable, "10%"),
        (Signal::NodeFsInodesFree, "5%"),
        (Signal::ImageFsAvailable, "15%"),
        (Signal::ImageFsInodesFree, "5%"),
    ]
    .into_iter()
    .map(|(signal, value)| (signal.name().to_owned(), value.to_owned()))
}
