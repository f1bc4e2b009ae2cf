//! `cri-proxy`: runs in the container that has access to the runtime's socket in place of the agent.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use eviction_cri::Endpoint;
use eviction_cri::proxy::serve;

use super::output::VerbError;
use crate::daemon::{Failure, StopSignals, start_runtime};
use crate::telemetry::http::local::LocalSocket;

/// Offer node reclaim the socket of the container runtime: what it reads, and removals of what is not in use
#[derive(Debug, Args)]
pub(super) struct CriProxyArgs {
    /// Socket of the container runtime, such as unix:///run/containerd/containerd.sock
    #[arg(long, value_name = "PATH", value_parser = Endpoint::parse)]
    cri_socket: Endpoint,
    /// Socket to serve at, for the agent's --cri-socket; that of a process that has ended is replaced
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
}

/// Runs the verb until SIGTERM or SIGINT.
pub(super) fn run(args: &CriProxyArgs) -> Result<ExitCode, VerbError> {
    let CriProxyArgs { cri_socket, socket } = args;
    let failed = |error: std::io::Error| Failure::because(format!("serve at {}", socket.display()), &error);
    start_runtime()?.block_on(async {
        let mut stop_signals = StopSignals::watch()?;
        let listening = LocalSocket::bind(socket).map_err(failed)?;
        tracing::info!(socket = %socket.display(), runtime = %cri_socket.path().display(), "CRI proxy");
        tokio::select! {
            error = serve(listening.listener(), cri_socket) => Err(failed(error).into()),
            _ = stop_signals.next() => Ok(ExitCode::SUCCESS),
        }
    })
}
