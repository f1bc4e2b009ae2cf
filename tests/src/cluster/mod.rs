//! A real Kubernetes for tests: etcd and kube-apiserver, and optionally kube-controller-manager and
//! kube-scheduler, on loopback and in their own folder, with nodes and pods that are only objects.
//!
//! All programs end with their [`Cluster`], also after a panic, and with the process that started it. They are
//! Kubernetes' own; [`Binaries`] finds them.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use serde_json::json;
//! use tests::cluster::{Binaries, Cluster, Options, manifest};
//! use tests::interrupt::Interrupt;
//!
//! let binaries = Binaries::find().map_err(anyhow::Error::msg)?;
//! let cluster = Cluster::start(&binaries, &Options::default(), &Interrupt::default())?;
//! cluster.add_node("n1")?;
//! let pod = cluster.run_pod(&manifest::pod("web", "n1"))?;
//! let account = cluster.account("agent", &json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]))?;
//! let seen = cluster.client(&account.token)?.get("/api/v1/pods")?.ok()?;
//! assert_eq!(seen["items"][0]["metadata"]["uid"], pod["metadata"]["uid"]);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod account;
mod background;
mod binaries;
mod client;
mod deployed;
mod fake_kubelet;
mod flags;
mod keep;
pub mod manifest;
pub mod node;
mod node_pods;
mod objects;
mod pki;
pub(crate) mod program;
pub mod proxy;
mod stream;
mod tls;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::Signal;
use serde_json::json;

pub use account::Account;
pub use binaries::{Binaries, FOLDER, kubernetes_version};
pub use client::{Answer, Client, Patch};
pub use deployed::{Manifests, NAME};
pub use fake_kubelet::FakeKubelet;
pub use stream::Watch;

use crate::folder::Folder;
use crate::interrupt::Interrupt;
use background::Background;
use flags::Layout;
use pki::{Authority, write_private};
use program::Program;

/// The timeout for programs that hang. It does not measure their speed.
pub const GUARD: Duration = Duration::from_secs(180);

/// How many starts are tried, with other ports, if another process has taken the free ones.
const MAX_START_ATTEMPTS: u32 = 3;

/// The programs besides etcd and the API server.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// kube-controller-manager: it computes PodDisruptionBudgets, removes pods of absent nodes, and turns node
    /// conditions into taints. It leaves nodes without heartbeats alone for an hour.
    pub controllers: bool,
    /// kube-scheduler.
    pub scheduler: bool,
}

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    // Ended in this order, so that no program loses its server first.
    scheduler: Option<Program>,
    controllers: Option<Program>,
    server: Option<Program>,
    etcd: Program,
    admin: Client,
    background: Background,
    authority: Authority,
    layout: Layout,
    interrupt: Interrupt,
    _folder: Folder,
}

impl Cluster {
    /// Starts a cluster, and waits until it serves and pods can be created in the namespace `default`.
    ///
    /// # Errors
    /// If a program ends or does not come up, with the end of its log; [`Interrupted`] if interrupted.
    ///
    /// [`Interrupted`]: crate::interrupt::Interrupted
    pub fn start(binaries: &Binaries, options: &Options, interrupt: &Interrupt) -> Result<Self> {
        let mut attempts = 1;
        loop {
            match Self::try_start(binaries, options, interrupt) {
                Err(error)
                    if attempts < MAX_START_ATTEMPTS
                        && format!("{error:#}").contains("address already in use") =>
                {
                    attempts += 1;
                }
                result => return result.context("start a cluster"),
            }
        }
    }

    fn try_start(binaries: &Binaries, options: &Options, interrupt: &Interrupt) -> Result<Self> {
        let Options { controllers, scheduler } = *options;
        let folder = Folder::in_memory("eviction-cluster")?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700))
            .with_context(|| format!("close {}", folder.path().display()))?;
        let authority = Authority::new("cluster")?;
        let layout = Layout::new(folder.path(), binaries, &authority)?;
        let background = Background::start()?;
        let admin = Client::new(&background, layout.port, &authority.pem, &layout.admin_token)?;
        let start = |name, mut command| Program::start(name, &mut command, folder.path());
        let etcd = start("etcd", layout.etcd())?;
        let server = start("kube-apiserver", layout.server())?;
        let mut cluster = Self {
            scheduler: None,
            controllers: None,
            server: Some(server),
            etcd,
            admin,
            background,
            authority,
            layout,
            interrupt: interrupt.clone(),
            _folder: folder,
        };
        cluster.wait_until_ready()?;
        // Both exit if the server is not available.
        let path = cluster.path().to_owned();
        if controllers {
            let mut command = cluster.layout.controllers()?;
            cluster.controllers = Some(Program::start("kube-controller-manager", &mut command, &path)?);
        }
        if scheduler {
            let mut command = cluster.layout.scheduler()?;
            cluster.scheduler = Some(Program::start("kube-scheduler", &mut command, &path)?);
        }
        cluster.wait_until_usable()?;
        Ok(cluster)
    }

    /// Waits until `/readyz` returns 200.
    fn wait_until_ready(&mut self) -> Result<()> {
        let Self { etcd, server, admin, interrupt, .. } = self;
        interrupt.until("the API server is ready", GUARD, || {
            etcd.check()?;
            let Some(server) = server else { bail!("there is no API server") };
            server.check()?;
            // There is no answer until the server listens.
            Ok(admin.get("/readyz").is_ok_and(|answer| answer.status == 200).then_some(()))
        })
    }

    /// Waits until the namespace and its service account exist, which every pod needs. Creates the service
    /// account if no controller does.
    fn wait_until_usable(&mut self) -> Result<()> {
        let accounts = "/api/v1/namespaces/default/serviceaccounts";
        self.until("the namespace `default` is there", |it| {
            Ok((it.admin.get("/api/v1/namespaces/default")?.status == 200).then_some(()))
        })?;
        if self.controllers.is_none() {
            let created = self.admin.post(accounts, &json!({"metadata": {"name": "default"}}))?;
            if created.status != 409 {
                created.ok()?;
            }
        }
        self.until("the service account `default` is there", |it| {
            Ok((it.admin.get(&format!("{accounts}/default"))?.status == 200).then_some(()))
        })
    }

    /// Returns the interrupt, which reports whether the program was asked to end.
    pub fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// Calls `poll` repeatedly until it returns a value, and fails when a program has ended.
    ///
    /// # Errors
    /// The error of `poll`, the end of a program, or a timeout, which names `what`.
    pub fn until<T>(&mut self, what: &str, mut poll: impl FnMut(&Self) -> Result<Option<T>>) -> Result<T> {
        let interrupt = self.interrupt.clone();
        interrupt.until(what, GUARD, || {
            self.etcd.check()?;
            for program in
                [&mut self.server, &mut self.controllers, &mut self.scheduler].into_iter().flatten()
            {
                program.check()?;
            }
            poll(self)
        })
    }

    /// Returns the process IDs of its programs.
    pub fn pids(&self) -> Vec<u32> {
        let others = [&self.server, &self.controllers, &self.scheduler];
        others.into_iter().flatten().chain([&self.etcd]).map(Program::pid).collect()
    }

    /// Returns the folder with its certificates, logs and data.
    pub fn path(&self) -> &Path {
        &self.layout.folder
    }

    /// Returns the API server's port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.layout.port
    }

    /// Returns `https://127.0.0.1:<port>`.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port())
    }

    /// Returns the file with the certificate of the authority that signed the server's.
    pub fn authority(&self) -> PathBuf {
        self.layout.authority()
    }

    /// Returns a client with all rights.
    pub fn admin(&self) -> &Client {
        &self.admin
    }

    /// Returns a client with a token; without one (`""`) it is `system:anonymous`.
    ///
    /// # Errors
    /// If the authority's certificate is invalid.
    pub fn client(&self, token: &str) -> Result<Client> {
        self.client_at(token, self.port())
    }

    /// Returns a client with another port of 127.0.0.1, such as that of a [`Proxy`](proxy::Proxy).
    ///
    /// # Errors
    /// If the authority's certificate is invalid.
    pub fn client_at(&self, token: &str, port: u16) -> Result<Client> {
        Client::new(&self.background, port, &self.authority.pem, token)
    }

    /// Writes a kubeconfig of a user with that token, and returns the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn kubeconfig(&self, user: &str, token: &str) -> Result<PathBuf> {
        self.kubeconfig_at(user, token, self.port())
    }

    /// Writes a kubeconfig with another port of 127.0.0.1, such as that of a [`Proxy`](proxy::Proxy).
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn kubeconfig_at(&self, user: &str, token: &str, port: u16) -> Result<PathBuf> {
        let text = flags::kubeconfig(&self.authority(), user, &format!("    token: {token}\n"), port);
        write_private(self.path(), &format!("{user}-{port}.kubeconfig"), &text)
    }

    /// Writes a kubeconfig of the administrator, for manual use.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn admin_kubeconfig(&self) -> Result<PathBuf> {
        self.kubeconfig("admin", &self.layout.admin_token)
    }

    /// Stops the process of the API server: it accepts connections and does not answer.
    ///
    /// # Errors
    /// If the process cannot be signalled.
    pub fn freeze_server(&self) -> Result<()> {
        self.running_server()?.signal(Signal::STOP)
    }

    /// Continues the process of the API server.
    ///
    /// # Errors
    /// If the process cannot be signalled.
    pub fn thaw_server(&self) -> Result<()> {
        self.running_server()?.signal(Signal::CONT)
    }

    fn running_server(&self) -> Result<&Program> {
        self.server.as_ref().context("the API server was ended")
    }

    /// Kills the API server: connections are reset, new ones are refused.
    ///
    /// # Errors
    /// If it does not end.
    pub fn kill_server(&mut self) -> Result<()> {
        self.server.take().context("the API server was ended")?.kill()
    }

    /// Starts the API server again, on the same port, and waits until it serves.
    ///
    /// # Errors
    /// If it does not come up.
    pub fn start_server(&mut self) -> Result<()> {
        let mut command = self.layout.server();
        self.server = Some(Program::start("kube-apiserver", &mut command, &self.layout.folder)?);
        self.wait_until_ready()
    }
}
