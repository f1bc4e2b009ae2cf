//! The settings of containerd and the kubelet.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::programs::Programs;
use super::{PREFIX, image};
use crate::cluster::pki::write_private;
use crate::cluster::{Cluster, flags};
use crate::node::with_fields;

/// The files and ports of a node.
#[derive(Debug)]
pub(super) struct Settings {
    programs: Programs,
    folder: PathBuf,
    name: String,
    /// The port of the kubelet.
    pub(super) port: u16,
}

impl Settings {
    pub(super) fn write(
        cluster: &Cluster,
        programs: &Programs,
        folder: &Path,
        name: &str,
        port: u16,
        config: &Value,
    ) -> Result<Self> {
        let settings =
            Self { programs: programs.clone(), folder: folder.to_owned(), name: name.to_owned(), port };
        for name in ["cni", "static"] {
            let path = folder.join(name);
            fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        }
        let identity = cluster.authority.client(&format!("system:node:{name}"), "system:nodes")?;
        let kubelet = settings.kubelet_config(cluster, config)?;
        let credentials =
            format!("    client-certificate: {0}/node.crt\n    client-key: {0}/node.key\n", folder.display());
        let kubeconfig = flags::kubeconfig(&cluster.authority(), "kubelet", &credentials, cluster.port());
        for (name, text) in [
            ("node.crt", identity.certificate),
            ("node.key", identity.key),
            ("kubeconfig", kubeconfig),
            ("kubelet.json", kubelet.to_string()),
            ("containerd.toml", settings.containerd_config()),
        ] {
            write_private(folder, name, &text)?;
        }
        let network = settings.network().to_string();
        write_private(&folder.join("cni"), "10-pods.conflist", &network)?;
        Ok(settings)
    }

    pub(super) fn static_pods(&self) -> PathBuf {
        self.folder.join("static")
    }

    pub(super) fn kubelet_root(&self) -> PathBuf {
        self.folder.join("kubelet")
    }

    pub(super) fn containerd_root(&self) -> PathBuf {
        self.folder.join("containerd")
    }

    pub(super) fn containerd_socket(&self) -> PathBuf {
        self.folder.join("containerd.sock")
    }

    pub(super) fn pod_logs(&self) -> PathBuf {
        self.folder.join("pod-logs")
    }

    fn kubelet_config(&self, cluster: &Cluster, fields: &Value) -> Result<Value> {
        let in_folder = |name: &str| self.folder.join(name).display().to_string();
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": self.port,
            "healthzPort": 0,
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": false,
            "failSwapOn": false,
            "authentication": {
                "anonymous": {"enabled": false},
                "webhook": {"enabled": true},
                "x509": {"clientCAFile": cluster.authority()},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": format!("unix://{}", self.containerd_socket().display()),
            "staticPodPath": self.static_pods(),
            "podLogsDir": self.pod_logs(),
            "volumePluginDir": in_folder("volume-plugins"),
            // A test must not change the machine's firewall.
            "makeIPTablesUtilChains": false,
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi"},
        });
        with_fields(config, fields)
    }

    fn containerd_config(&self) -> String {
        let network = format!(
            "netns_mounts_under_state_dir = true\n\
             [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"{}\"\nconf_dir = \"{}/cni\"\n",
            self.programs.runtime.plugins().display(),
            self.folder.display()
        );
        containerd_config(&self.containerd_root(), &self.folder, &network)
    }

    /// Returns the network of the pods, with addresses of a range that is not routed.
    fn network(&self) -> Value {
        let ipam = json!({
            "type": "host-local", "subnet": "198.18.9.0/24", "dataDir": self.folder.join("ipam"),
        });
        json!({"cniVersion": "1.0.0", "name": PREFIX, "plugins": [{"type": "ptp", "ipam": ipam}]})
    }

    /// Returns the command of containerd. It joins that cgroup first, so that its shims are in it as well.
    pub(super) fn containerd(&self, group: &Path) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(group.join("cgroup.procs"))
            .arg(self.programs.runtime.containerd())
            .arg("--config=containerd.toml")
            .env("PATH", self.programs.runtime.path());
        command
    }

    pub(super) fn ctr(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.programs.runtime.ctr());
        command.arg("--address").arg(self.containerd_socket()).args(arguments);
        command
    }

    pub(super) fn kubelet(&self) -> Command {
        let mut command = Command::new(&self.programs.kubelet);
        command
            .args(["--config=kubelet.json", "--kubeconfig=kubeconfig"])
            .arg(format!("--hostname-override={}", self.name))
            .arg(format!("--root-dir={}", self.kubelet_root().display()))
            .arg(format!("--cert-dir={}", self.folder.join("certificates").display()));
        command
    }
}

/// Returns the configuration of a containerd that keeps its images in `root`. `more` are further settings of the CRI
/// plugin, and then other tables.
pub(crate) fn containerd_config(root: &Path, folder: &Path, more: &str) -> String {
    let (root, folder, sandbox) = (root.display(), folder.display(), image::reference("pause"));
    // Without CAP_SYS_RESOURCE, runc could not set an oom_score_adj below the inherited one, so it is
    // restricted to what is allowed.
    format!(
        "version = 2\nroot = \"{root}\"\nstate = \"{folder}/run\"\n\
         [grpc]\naddress = \"{folder}/containerd.sock\"\n\
         [ttrpc]\naddress = \"{folder}/containerd.sock.ttrpc\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\"]\n\
         sandbox_image = \"{sandbox}\"\nrestrict_oom_score_adj = true\ndisable_apparmor = true\n{more}\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n\
         runtime_type = \"io.containerd.runc.v2\"\n"
    )
}
