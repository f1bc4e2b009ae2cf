//! `ui`: serves the page of `report` to a browser on this machine.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;

use super::client::SocketArgs;
use super::output::{Out, VerbError};
use super::report::WindowArgs;
use crate::daemon::{Failure, start_runtime};
use crate::report::live::LiveReport;
use crate::report::random_hex;
use crate::report::server::{CurrentReport, serve};
use crate::telemetry::live::EventCursor;
use crate::telemetry::live::state::NodeState;
use std::io::Write as _;

/// The interval of requests to the agent.
const INTERVAL: Duration = Duration::from_secs(1);

/// Serve the page of `report` on loopback: live from the running agent, or from a recording
#[derive(Debug, Args)]
pub(super) struct UiArgs {
    /// Recording, in place of the running agent
    #[arg(value_name = "FILE", conflicts_with = "socket")]
    file: Option<PathBuf>,
    #[command(flatten)]
    socket: SocketArgs,
    #[command(flatten)]
    window: WindowArgs,
    /// Loopback address to serve the page at; port 0 lets the system choose
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8090")]
    listen_address: SocketAddr,
}

/// Runs the verb until a signal ends it.
pub(super) fn run(args: UiArgs, out: &mut Out) -> Result<ExitCode, VerbError> {
    let address = args.listen_address;
    if !address.ip().is_loopback() {
        let error = format!("ui: --listen-address {address} is not a loopback address");
        return Err(Failure::usage(error).help("reach it through `ssh -L` or `kubectl port-forward`").into());
    }
    let current: CurrentReport = match &args.file {
        Some(file) => Arc::new(Mutex::new(Ok(args.window.read(file)?))),
        None => poll_agent(args.socket)?,
    };
    let failed = |error: std::io::Error| Failure::because(format!("serve at {address}"), &error);
    let runtime = start_runtime()?;
    let token = random_hex().map_err(failed)?;
    let listener = runtime.block_on(tokio::net::TcpListener::bind(address)).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    writeln!(out, "http://{bound}/{token}/")?;
    out.flush()?;
    runtime.block_on(serve(listener, token, current));
    Ok(ExitCode::SUCCESS)
}

/// Sends requests to the agent every second, on a separate thread.
fn poll_agent(socket: SocketArgs) -> Result<CurrentReport, Failure> {
    let request = move |cursor: EventCursor| -> Result<(NodeState, String), Failure> {
        let state = socket.get_json("/v1/state")?;
        Ok((state, socket.get(&cursor.target())?))
    };
    // Without an agent, the verb fails here.
    let (state, events) = request(EventCursor::default())?;
    let mut live = LiveReport::new(&state);
    live.take(&state, &events);
    let current = Arc::new(Mutex::new(Ok(live.report())));
    let shared = Arc::clone(&current);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(INTERVAL);
            let report = match request(live.cursor()) {
                Ok((state, events)) => {
                    live.take(&state, &events);
                    Ok(live.report())
                }
                Err(failure) => Err(failure.report().0),
            };
            *shared.lock().unwrap_or_else(PoisonError::into_inner) = report;
        }
    });
    Ok(current)
}
