//! The options that select and override the configuration.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use eviction_config::{Origin, Setting, ThresholdSource};
use eviction_core::policy::preferences::Profile;
use eviction_core::units::Quantity;
use eviction_node::fs::FsPaths;
use serde_json::{Value, json};

use crate::daemon::{Action, ConfigurationFiles, DryRun, Failure, find_capacities};

/// Where the configuration is, what overrides it, and which node it is for.
#[derive(Debug, Args)]
pub(super) struct ConfigurationArgs {
    /// AgentConfiguration file (eviction-agent.io/v1alpha1) [default: built-in defaults]
    #[arg(long, value_name = "FILE", help_heading = "Policy")]
    config: Option<PathBuf>,
    /// Eviction rules to follow, in place of `profile` of the AgentConfiguration [default: kubelet]
    #[arg(long, value_parser = profile_parser(), help_heading = "Policy")]
    profile: Option<Profile>,
    /// KubeletConfiguration file (kubelet.config.k8s.io/v1beta1) with the eviction thresholds
    /// [default: the kubelet's defaults]
    #[arg(long, value_name = "FILE", help_heading = "Kubelet")]
    kubelet_config: Option<PathBuf>,
    /// Directory of drop-in files (*.conf) merged over the KubeletConfiguration file
    #[arg(long, value_name = "DIR", help_heading = "Kubelet")]
    kubelet_config_dir: Option<PathBuf>,
    /// Read the running kubelet's configuration from its /configz endpoint (port 10250).
    /// If the kubelet does not answer, its last known answer in --state-dir is used, else the files
    #[arg(long, help_heading = "Kubelet")]
    kubelet_configz: bool,
    /// File with the CA certificates (PEM) that verify the kubelet's serving certificate
    /// [default: the CA of the API server]
    #[arg(long, value_name = "FILE", help_heading = "Kubelet")]
    kubelet_certificate_authority: Option<PathBuf>,
    /// Do not verify the kubelet's serving certificate. Insecure: any process that answers at the
    /// kubelet's address gets the agent's token
    #[arg(long, help_heading = "Kubelet")]
    kubelet_insecure_tls: bool,
    /// File with the node's pods (a v1 PodList, JSON or YAML), used in place of the API server. `run` and
    /// `record` read it again when it changes, `check` checks it, and `config` does not read it
    #[arg(long, value_name = "FILE", conflicts_with = "node_name", help_heading = "Cluster")]
    pub(super) pods_file: Option<PathBuf>,
    /// Kubeconfig file for the API server [default in a pod: the pod's service account]
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Name of this node's Node object [default: $NODE_NAME]
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    node_name: Option<String>,
    /// Memory capacity of the node, a Kubernetes quantity such as 8Gi [default: MemTotal]
    #[arg(long, value_name = "QUANTITY", help_heading = "Testing")]
    memory_capacity: Option<String>,
    /// Number of process IDs the node has [default: the kernel's limit]
    #[arg(long, value_name = "N", help_heading = "Testing")]
    pub(super) pid_capacity: Option<u64>,
    /// What to do with the chosen pod, in place of `action` of the AgentConfiguration [default: none]
    #[arg(long, value_parser = action_parser(), help_heading = "Policy")]
    action: Option<Action>,
    /// Report the action without carrying it out; --dry-run alone means client. In place of `dryRun`
    /// of the AgentConfiguration [default: none]
    #[arg(
        long,
        value_parser = dry_run_parser(),
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "client",
        help_heading = "Policy"
    )]
    dry_run: Option<DryRun>,
    /// Address (IP:PORT) that serves /metrics, /healthz and /readyz; port 0 picks a free port. In place
    /// of the address in the AgentConfiguration [default: 127.0.0.1:9095]
    #[arg(long, value_name = "ADDRESS", help_heading = "Output")]
    listen_address: Option<SocketAddr>,
    /// Socket of the container runtime, for node reclaim with `eviction.nodeReclaim: CRI`. In place of
    /// `reclaim.criSocket` of the AgentConfiguration [default: the kubelet's containerRuntimeEndpoint]
    #[arg(long, value_name = "SOCKET", help_heading = "Policy")]
    cri_socket: Option<String>,
    /// The directory of `record`.
    #[arg(skip)]
    recorder_directory: Option<PathBuf>,
}

/// Where the node's disks are.
#[derive(Debug, Args)]
#[command(next_help_heading = "Disks")]
pub(super) struct DiskArgs {
    /// Path on nodefs, the file system of the kubelet's root directory [default in a pod: found by
    /// /etc/hosts; else --kubelet-root-dir, else /var/lib/kubelet]
    #[arg(long, value_name = "PATH")]
    nodefs: Option<PathBuf>,
    /// Path on imagefs, the file system of images and writable layers [default in a pod: found by its
    /// root; else with --nodefs the same, else the root directory of containerd or CRI-O, else nodefs]
    #[arg(long, value_name = "PATH")]
    imagefs: Option<PathBuf>,
    /// Path on containerfs, the file system of writable layers, if that is nodefs although images are on a disk
    /// of their own [default: imagefs; in a pod with --imagefs found by its root]
    #[arg(long, value_name = "PATH")]
    containerfs: Option<PathBuf>,
    /// The kubelet's root directory, in which the pods' volumes are. Without it the usage of volumes is
    /// not known
    #[arg(long, value_name = "DIR")]
    kubelet_root_dir: Option<PathBuf>,
    /// Directory of the pods' logs. Without it the usage of logs is not known
    #[arg(long, value_name = "DIR")]
    pod_logs_dir: Option<PathBuf>,
}

impl From<DiskArgs> for FsPaths {
    fn from(args: DiskArgs) -> Self {
        let DiskArgs { nodefs, imagefs, containerfs, kubelet_root_dir, pod_logs_dir } = args;
        Self {
            node_fs: nodefs,
            image_fs: imagefs,
            container_fs: containerfs,
            kubelet_root: kubelet_root_dir,
            pod_logs: pod_logs_dir,
        }
    }
}

/// Returns a parser of named values. Each has a help text.
fn named_values<T: Copy + Send + Sync + 'static, const N: usize>(
    values: [(&'static str, T, &'static str); N],
) -> impl TypedValueParser<Value = T> {
    let possible = values.map(|(name, _, help)| PossibleValue::new(name).help(help));
    PossibleValuesParser::new(possible).try_map(move |text| {
        let value = values.iter().find(|(name, ..)| *name == text);
        value.map(|(_, value, _)| *value).ok_or("unknown value")
    })
}

fn action_parser() -> impl TypedValueParser<Value = Action> {
    named_values([
        (Action::None.name(), Action::None, "Report decisions and do nothing"),
        (Action::Kill.name(), Action::Kill, "Kill the processes in the pod's cgroup"),
        (Action::Evict.name(), Action::Evict, "Ask the API server to evict the pod"),
    ])
}

pub(super) fn dry_run_parser() -> impl TypedValueParser<Value = DryRun> {
    let server = "Send requests as dry runs: the API server checks them and changes nothing";
    named_values([
        (DryRun::None.name(), DryRun::None, "Carry it out"),
        (DryRun::Client.name(), DryRun::Client, "Report what would be done; change nothing"),
        (DryRun::Server.name(), DryRun::Server, server),
    ])
}

pub(super) fn profile_parser() -> impl TypedValueParser<Value = Profile> {
    let enhanced = "The kubelet's rules with the settings under `policy` of the AgentConfiguration";
    named_values([
        ("kubelet", Profile::Kubelet, "The kubelet's own eviction rules, unchanged"),
        ("enhanced", Profile::Enhanced, enhanced),
    ])
}

/// Set in every pod; also where the service account is found.
const IN_CLUSTER: &str = "KUBERNETES_SERVICE_HOST";
const NODE_NAME: &str = "NODE_NAME";
const NODE_IP: &str = "NODE_IP";

impl ConfigurationArgs {
    /// Sets the options of an agent that records in this directory, takes no action, and may run beside another one.
    pub(super) fn record_only(&mut self, directory: PathBuf) -> Result<(), Failure> {
        if let Some(action @ (Action::Kill | Action::Evict)) = self.action {
            return Err(Failure::usage(format!("--action {action}: record evicts no pod")));
        }
        self.action = Some(Action::None);
        self.dry_run = Some(DryRun::None);
        self.listen_address.get_or_insert(SocketAddr::from(([127, 0, 0, 1], 0)));
        self.recorder_directory = Some(directory);
        Ok(())
    }

    /// Returns the memory capacity in bytes, if it is given.
    ///
    /// # Errors
    /// If it is not a quantity, or not positive.
    pub(super) fn memory_bytes(&self) -> Result<Option<u64>, Failure> {
        let Some(text) = &self.memory_capacity else { return Ok(None) };
        let usage = |why: String| Failure::usage(format!("--memory-capacity {text}: {why}"));
        let quantity = Quantity::parse(text).map_err(usage)?;
        match u64::try_from(quantity.value()) {
            Ok(bytes) if bytes > 0 => Ok(Some(bytes)),
            _ => Err(usage("must be positive".to_owned())),
        }
    }

    /// Returns the location of this node's configuration, and the overrides of the command line.
    ///
    /// # Errors
    /// If options contradict each other, or the memory capacity is not valid.
    pub(super) fn files(self) -> Result<ConfigurationFiles, Failure> {
        let capacities = find_capacities(self.memory_bytes()?, self.pid_capacity);
        if let (Some(action @ (Action::None | Action::Kill)), Some(DryRun::Server)) =
            (self.action, self.dry_run)
        {
            let error = "only --action evict sends requests to the API server";
            return Err(Failure::usage(format!("--dry-run=server with --action {action}: {error}"))
                .help("use --dry-run=client"));
        }
        // Pods come from a cluster if it is named, or if the agent runs in a pod.
        let is_named = self.kubeconfig.is_some() || self.node_name.is_some();
        let in_cluster = self.pods_file.is_none() && (is_named || std::env::var_os(IN_CLUSTER).is_some());
        Ok(ConfigurationFiles {
            overrides: self.overrides(),
            node_name: self.node_name().map(|(name, _)| name),
            kubeconfig: self.kubeconfig,
            node_ip: variable(NODE_IP),
            kubelet_certificate_authority: self.kubelet_certificate_authority,
            recorder_directory: self.recorder_directory,
            kubelet: self.kubelet_config,
            kubelet_drop_ins: self.kubelet_config_dir,
            last_configz: None,
            agent: self.config,
            in_cluster,
            capacities,
        })
    }

    /// Returns the fields of the AgentConfiguration that options set, with their values. Paths are not among them.
    fn overrides(&self) -> Vec<(&'static str, Value)> {
        let options = [
            ("thresholds.source", self.kubelet_configz.then(|| json!(ThresholdSource::Configz))),
            ("thresholds.configz.insecureSkipTLSVerify", self.kubelet_insecure_tls.then_some(json!(true))),
            ("profile", self.profile.map(|profile| json!(profile))),
            ("action", self.action.map(|action| json!(action))),
            ("dryRun", self.dry_run.map(|dry_run| json!(dry_run))),
            ("server.listenAddress", self.listen_address.map(|address| json!(address))),
            ("reclaim.criSocket", self.cri_socket.as_ref().map(|socket| json!(socket))),
        ];
        options.into_iter().filter_map(|(field, value)| Some((field, value?))).collect()
    }

    fn node_name(&self) -> Option<(String, Origin)> {
        let given = self.node_name.clone().map(|name| (name, Origin::CommandLine));
        given.or_else(|| Some((variable(NODE_NAME)?, Origin::Environment(NODE_NAME.to_owned()))))
    }

    /// Returns the options of the cluster, which are not part of an AgentConfiguration, each with its origin.
    pub(super) fn cluster_settings(&self) -> Vec<Setting> {
        let setting = |path: &str, value: String, origin| Setting { path: path.to_owned(), value, origin };
        let kubeconfig = self
            .kubeconfig
            .as_ref()
            .map(|file| setting("--kubeconfig", file.display().to_string(), Origin::CommandLine));
        let name = self.node_name().map(|(name, origin)| setting("--node-name", name, origin));
        kubeconfig.into_iter().chain(name).collect()
    }
}

/// Returns an environment variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
