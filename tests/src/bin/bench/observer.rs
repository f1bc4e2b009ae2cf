//! The observers of the agent while it is measured: none, its own recorder, or ten screens.

use ::tests::agent::Options;
use ::tests::node::Node;
use ::tests::process::Process;
use ::tests::terminal::Terminal;
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

const SCREENS: usize = 10;

/// An observer of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Observer {
    None,
    /// `recorder` of the AgentConfiguration.
    Recorder,
    /// Ten `top`, each on its own terminal.
    Screens,
}

impl Observer {
    pub(crate) const ALL: [Self; 3] = [Self::None, Self::Recorder, Self::Screens];

    /// Returns what is added to the name of a case.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Recorder => ", recording",
            Self::Screens => ", ten top",
        }
    }

    /// Prepares the agent's options for the observer.
    pub(crate) fn prepare(self, node: &Node, options: &mut Options) -> Result<()> {
        match self {
            Self::None => {}
            Self::Recorder => {
                let recorder = json!({"directory": node.file("recordings")});
                options.config = Some(node.write_agent_config(&json!({"recorder": recorder}))?);
            }
            Self::Screens => options.more.extend(["--socket".to_owned(), socket(node)]),
        }
        Ok(())
    }

    /// Starts the observers of a running agent, and returns the processes of the screens.
    pub(crate) fn start(self, node: &Node, options: &Options) -> Result<Vec<Process>> {
        let screens = if self == Self::Screens { SCREENS } else { 0 };
        (0..screens).map(|_| start_screen(options, &socket(node))).collect()
    }
}

fn socket(node: &Node) -> String {
    node.file("agent.sock").display().to_string()
}

/// Starts a `top` with a terminal that is read.
fn start_screen(options: &Options, socket: &str) -> Result<Process> {
    let terminal = Terminal::new(160, 50).context("open a terminal")?;
    let process = Process::spawn(terminal.command(&options.binary)?.args(["top", "--socket", socket]))?;
    let Terminal { mut master, terminal: _ } = terminal;
    // The thread ends when `top` does.
    std::thread::spawn(move || std::io::copy(&mut master, &mut std::io::sink()));
    Ok(process)
}

/// Checks that all screens still run.
pub(crate) fn check_screens(screens: &mut [Process]) -> Result<()> {
    for screen in screens {
        ensure!(screen.is_running()?, "a screen ended before the agent");
    }
    Ok(())
}
