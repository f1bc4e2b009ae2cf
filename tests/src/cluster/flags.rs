//! The command lines and files of the programs of a cluster.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::binaries::Binaries;
use super::pki::{self, Authority, write_private};
use super::program::free_ports;

/// The files, ports and tokens of a cluster.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) folder: PathBuf,
    binaries: Binaries,
    /// The port of the API server.
    pub(super) port: u16,
    etcd_port: u16,
    etcd_peer_port: u16,
    pub(super) admin_token: String,
    controllers_token: String,
    scheduler_token: String,
}

impl Layout {
    /// Chooses ports and tokens, and writes the files.
    pub(super) fn new(folder: &Path, binaries: &Binaries, authority: &Authority) -> Result<Self> {
        let [port, etcd_port, etcd_peer_port] = free_ports()?;
        let layout = Self {
            folder: folder.to_owned(),
            binaries: binaries.clone(),
            port,
            etcd_port,
            etcd_peer_port,
            admin_token: random_token()?,
            controllers_token: random_token()?,
            scheduler_token: random_token()?,
        };
        let (private, public) = pki::token_key()?;
        let serving = authority.server()?;
        let to_kubelets = authority.client("kube-apiserver-kubelet-client", "system:masters")?;
        let tokens = format!(
            "{},admin,1,\"system:masters\"\n{},system:kube-controller-manager,2\n{},system:kube-scheduler,3\n",
            layout.admin_token, layout.controllers_token, layout.scheduler_token
        );
        for (name, text) in [
            ("ca.crt", &authority.pem),
            ("apiserver.crt", &serving.certificate),
            ("apiserver.key", &serving.key),
            ("kubelet-client.crt", &to_kubelets.certificate),
            ("kubelet-client.key", &to_kubelets.key),
            ("sa.key", &private),
            ("sa.pub", &public),
            ("tokens.csv", &tokens),
        ] {
            write_private(folder, name, text)?;
        }
        Ok(layout)
    }

    pub(super) fn authority(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    fn command(&self, name: &str) -> Command {
        Command::new(self.binaries.program(name))
    }

    /// Returns the command of etcd. Its data is not needed after its end.
    pub(super) fn etcd(&self) -> Command {
        let (client, peer) =
            [self.etcd_port, self.etcd_peer_port].map(|port| format!("http://127.0.0.1:{port}")).into();
        let mut command = self.command("etcd");
        command
            .args(["--name=cluster", "--data-dir=etcd", "--unsafe-no-fsync", "--log-level=warn"])
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster=cluster={peer}"));
        command
    }

    pub(super) fn server(&self) -> Command {
        let mut command = self.command("kube-apiserver");
        command
            .arg(format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port))
            .arg(format!("--secure-port={}", self.port))
            .args([
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                "--endpoint-reconciler-type=none",
                "--tls-cert-file=apiserver.crt",
                "--tls-private-key-file=apiserver.key",
                "--client-ca-file=ca.crt",
                "--service-account-issuer=https://kubernetes.default.svc",
                "--service-account-key-file=sa.pub",
                "--service-account-signing-key-file=sa.key",
                "--service-cluster-ip-range=10.96.0.0/24",
                "--token-auth-file=tokens.csv",
                "--authorization-mode=Node,RBAC",
                // Not a default: without it a node's token could change other nodes.
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true",
                "--profiling=false",
                "--kubelet-preferred-address-types=InternalIP",
                "--kubelet-client-certificate=kubelet-client.crt",
                "--kubelet-client-key=kubelet-client.key",
            ]);
        command
    }

    pub(super) fn controllers(&self) -> Result<Command> {
        let [port] = free_ports()?;
        let config = self.kubeconfig("kube-controller-manager", &self.controllers_token)?;
        let mut command = self.command("kube-controller-manager");
        command.arg(format!("--kubeconfig={}", config.display())).arg(format!("--secure-port={port}")).args(
            [
                "--bind-address=127.0.0.1",
                "--leader-elect=false",
                "--use-service-account-credentials=true",
                "--service-account-private-key-file=sa.key",
                "--root-ca-file=ca.crt",
                // No kubelet sends heartbeats for a node that is only an object.
                "--node-monitor-grace-period=1h",
            ],
        );
        Ok(command)
    }

    pub(super) fn scheduler(&self) -> Result<Command> {
        let [port] = free_ports()?;
        let config = self.kubeconfig("kube-scheduler", &self.scheduler_token)?;
        let mut command = self.command("kube-scheduler");
        command
            .arg(format!("--kubeconfig={}", config.display()))
            .arg(format!("--secure-port={port}"))
            .args(["--bind-address=127.0.0.1", "--leader-elect=false"]);
        Ok(command)
    }

    fn kubeconfig(&self, user: &str, token: &str) -> Result<PathBuf> {
        let text = kubeconfig(&self.authority(), user, &format!("    token: {token}\n"), self.port);
        write_private(&self.folder, &format!("{user}.kubeconfig"), &text)
    }
}

/// Returns a kubeconfig as kubectl writes it. The credentials are lines of the user's block.
pub(super) fn kubeconfig(authority: &Path, user: &str, credentials: &str, port: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: cluster\n\
         clusters:\n- name: cluster\n  cluster:\n    certificate-authority: {}\n    server: https://127.0.0.1:{port}\n\
         contexts:\n- name: cluster\n  context:\n    cluster: cluster\n    user: {user}\n\
         users:\n- name: {user}\n  user:\n{credentials}",
        authority.display()
    )
}

/// Returns a token that other users of this machine cannot guess.
fn random_token() -> Result<String> {
    let path = "/proc/sys/kernel/random/uuid";
    let text = std::fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    Ok(text.trim_end().to_owned())
}
