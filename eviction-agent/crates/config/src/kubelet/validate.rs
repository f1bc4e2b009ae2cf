//! Rules of `ValidateKubeletConfiguration` about the fields that count here. It has none
//! about the eviction maps.

use super::super::problem::Problem;
use super::fields::Fields;

const FIELD: &str = "enforceNodeAllocatable";
const OPTIONS: [&str; 6] = [
    "pods",
    "system-reserved",
    "system-reserved-compressible",
    "kube-reserved",
    "kube-reserved-compressible",
    "none",
];

/// `enforceNodeAllocatable`: known, unique, `none` alone, a reserved cgroup where its limits
/// are enforced, in one of the two ways only, and all of it only with cgroups for QoS.
pub(super) fn enforce_node_allocatable(fields: &Fields, problems: &mut Vec<Problem>) {
    let enforced = fields.enforced();
    for whole in ["system-reserved", "kube-reserved"] {
        let compressible = format!("{whole}-compressible");
        if enforced.contains(&whole) && enforced.contains(&compressible.as_str()) {
            problems.push(Problem::new(FIELD, format!("`{whole}` and `{compressible}` exclude each other")));
        }
    }
    for (index, option) in enforced.iter().enumerate() {
        let path = format!("{FIELD}[{index}]");
        let mut wrong = |cause: String| problems.push(Problem::new(path.clone(), cause));
        if enforced[..index].contains(option) {
            wrong(format!("`{option}` is given twice"));
            continue;
        }
        match *option {
            "pods" => {}
            "none" => {
                if enforced.len() > 1 {
                    wrong("`none` must stand alone".to_owned());
                }
                continue;
            }
            "system-reserved" | "system-reserved-compressible" => {
                if fields.system_reserved_cgroup.as_deref().unwrap_or("").is_empty() {
                    wrong(format!("`{option}` needs systemReservedCgroup"));
                }
            }
            "kube-reserved" | "kube-reserved-compressible" => {
                if fields.kube_reserved_cgroup.as_deref().unwrap_or("").is_empty() {
                    wrong(format!("`{option}` needs kubeReservedCgroup"));
                }
            }
            _ => {
                wrong(format!(
                    "`{option}` is none of {}",
                    OPTIONS.map(|name| format!("`{name}`")).join(", ")
                ));
                continue;
            }
        }
        if fields.cgroups_per_qos == Some(false) {
            wrong(format!("`{option}` needs cgroupsPerQOS: true"));
        }
    }
}
