//! A real Kubernetes for tests: etcd and kube-apiserver, and if asked for kube-controller-manager and
//! kube-scheduler, on loopback and below a folder of their own, with nodes and pods that nobody runs.
//!
//! All of it ends with its [`Cluster`], also after a panic, and with the process that started it.
//! The programs are Kubernetes' own; [`Binaries`] says where they are.
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
mod asked_kubelet;
mod background;
mod binaries;
mod client;
mod deployed;
mod flags;
mod keep;
pub mod manifest;
pub mod node;
mod objects;
mod pki;
mod place;
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
pub use asked_kubelet::AskedKubelet;
pub use binaries::{Binaries, FOLDER, kubernetes_version};
pub use client::{Answer, Client, Patch};
pub use deployed::{Manifests, NAME};
pub use stream::Watch;

use crate::folder::Folder;
use crate::interrupt::Interrupt;
use background::Background;
use flags::Layout;
use pki::{Authority, write_private};
use program::Program;

/// A guard against programs that hang, no measure of their speed.
pub const GUARD: Duration = Duration::from_secs(180);

/// How often other ports are tried when somebody else took those that were free.
const TRIES: u32 = 3;

/// What there is besides etcd and the API server.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// kube-controller-manager: PodDisruptionBudgets are reckoned, pods of absent nodes removed, node
    /// conditions turned into taints. Nodes without heartbeats are left alone for an hour.
    pub controllers: bool,
    /// kube-scheduler.
    pub scheduler: bool,
}

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    // Ended in this order: who would complain of the others' end first.
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
    /// Starts one, and waits until it serves and pods can be made in the namespace `default`.
    ///
    /// # Errors
    /// If a program ends or does not come up, with how its log ends; [`Interrupted`] if broken off.
    ///
    /// [`Interrupted`]: crate::interrupt::Interrupted
    pub fn start(binaries: &Binaries, options: &Options, interrupt: &Interrupt) -> Result<Self> {
        let mut tries = 1;
        loop {
            match Self::try_start(binaries, options, interrupt) {
                Err(error) if tries < TRIES && format!("{error:#}").contains("address already in use") => {
                    tries += 1;
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
        // Both give up when the server is not there.
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

    /// Waits until `/readyz` says ok.
    fn wait_until_ready(&mut self) -> Result<()> {
        let Self { etcd, server, admin, interrupt, .. } = self;
        interrupt.until("the API server is ready", GUARD, || {
            etcd.check()?;
            let Some(server) = server else { bail!("there is no API server") };
            server.check()?;
            // Until it listens there is no answer.
            Ok(admin.get("/readyz").is_ok_and(|answer| answer.status == 200).then_some(()))
        })
    }

    /// Waits until there is what every pod needs: the namespace, and its service account, which is made
    /// here where no controller makes it.
    fn wait_until_usable(&mut self) -> Result<()> {
        let accounts = "/api/v1/namespaces/default/serviceaccounts";
        self.until("the namespace `default` is there", |it| {
            Ok((it.admin.get("/api/v1/namespaces/default")?.status == 200).then_some(()))
        })?;
        if self.controllers.is_none() {
            let made = self.admin.post(accounts, &json!({"metadata": {"name": "default"}}))?;
            if made.status != 409 {
                made.ok()?;
            }
        }
        self.until("the service account `default` is there", |it| {
            Ok((it.admin.get(&format!("{accounts}/default"))?.status == 200).then_some(()))
        })
    }

    /// Whether the program was asked to end.
    pub fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// Looks again and again until there is something, and gives up when a program has ended.
    ///
    /// # Errors
    /// What `look` fails with, a program's end, or `what` did not come about.
    pub fn until<T>(&mut self, what: &str, mut look: impl FnMut(&Self) -> Result<Option<T>>) -> Result<T> {
        let interrupt = self.interrupt.clone();
        interrupt.until(what, GUARD, || {
            self.etcd.check()?;
            for program in
                [&mut self.server, &mut self.controllers, &mut self.scheduler].into_iter().flatten()
            {
                program.check()?;
            }
            look(self)
        })
    }

    /// The processes of its programs.
    pub fn pids(&self) -> Vec<u32> {
        let others = [&self.server, &self.controllers, &self.scheduler];
        others.into_iter().flatten().chain([&self.etcd]).map(Program::pid).collect()
    }

    /// The folder with its certificates, logs and data.
    pub fn path(&self) -> &Path {
        &self.layout.folder
    }

    /// The API server's port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.layout.port
    }

    /// `https://127.0.0.1:<port>`.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port())
    }

    /// The file with the certificate of the authority that signed the server's.
    pub fn authority(&self) -> PathBuf {
        self.layout.authority()
    }

    /// A client who may do everything.
    pub fn admin(&self) -> &Client {
        &self.admin
    }

    /// A client with a token; without one (`""`) it is `system:anonymous`.
    ///
    /// # Errors
    /// If the authority's certificate is no good.
    pub fn client(&self, token: &str) -> Result<Client> {
        self.client_at(token, self.port())
    }

    /// The same by another port of 127.0.0.1, such as that of a [`Proxy`](proxy::Proxy).
    ///
    /// # Errors
    /// If the authority's certificate is no good.
    pub fn client_at(&self, token: &str, port: u16) -> Result<Client> {
        Client::new(&self.background, port, &self.authority.pem, token)
    }

    /// A kubeconfig, written to a file, of a user with that token.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn kubeconfig(&self, user: &str, token: &str) -> Result<PathBuf> {
        self.kubeconfig_at(user, token, self.port())
    }

    /// The same by another port of 127.0.0.1, such as that of a [`Proxy`](proxy::Proxy).
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn kubeconfig_at(&self, user: &str, token: &str, port: u16) -> Result<PathBuf> {
        let text = flags::kubeconfig(&self.authority(), user, &format!("    token: {token}\n"), port);
        write_private(self.path(), &format!("{user}-{port}.kubeconfig"), &text)
    }

    /// A kubeconfig for people, of the one who may do everything.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn admin_kubeconfig(&self) -> Result<PathBuf> {
        self.kubeconfig("admin", &self.layout.admin_token)
    }

    /// Stops the API server where it is: it accepts connections and says nothing.
    ///
    /// # Errors
    /// If it cannot be reached.
    pub fn freeze_server(&self) -> Result<()> {
        self.running_server()?.signal(Signal::STOP)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// If it cannot be reached.
    pub fn thaw_server(&self) -> Result<()> {
        self.running_server()?.signal(Signal::CONT)
    }

    fn running_server(&self) -> Result<&Program> {
        self.server.as_ref().context("the API server was ended")
    }

    /// Kills the API server: connections are reset, new ones refused.
    ///
    /// # Errors
    /// If it does not end.
    pub fn kill_server(&mut self) -> Result<()> {
        self.server.take().context("the API server was ended")?.kill()
    }

    /// Starts it again, on the same port, and waits until it serves.
    ///
    /// # Errors
    /// If it does not come up.
    pub fn start_server(&mut self) -> Result<()> {
        let mut command = self.layout.server();
        self.server = Some(Program::start("kube-apiserver", &mut command, &self.layout.folder)?);
        self.wait_until_ready()
    }
}
