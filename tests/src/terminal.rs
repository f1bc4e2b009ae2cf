//! A pseudo-terminal, for programs that draw on one.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// A pseudo-terminal without a user.
#[derive(Debug)]
pub struct Terminal {
    /// The side on which output is read and keys are written. Closing it removes the terminal.
    pub master: File,
    /// The side that a program has as its terminal.
    pub terminal: OwnedFd,
}

impl Terminal {
    /// Opens a terminal of that size.
    ///
    /// # Errors
    /// If none can be opened.
    pub fn new(columns: u16, rows: u16) -> io::Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname(&master, Vec::new())?;
        let terminal = open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
        resize(&terminal, columns, rows)?;
        Ok(Self { master: master.into(), terminal })
    }

    /// Returns a command that runs a program on this terminal.
    ///
    /// # Errors
    /// If the terminal cannot be duplicated.
    pub fn command(&self, program: &Path) -> io::Result<Command> {
        let stdio = || self.terminal.try_clone().map(Stdio::from);
        // `setsid` of util-linux makes it the controlling terminal, which sends signals when its size changes
        // and at its end.
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(program).env("LC_ALL", "C.UTF-8").env("TERM", "xterm");
        command.stdin(stdio()?).stdout(stdio()?).stderr(stdio()?);
        Ok(command)
    }
}

/// Changes the size of a terminal.
///
/// # Errors
/// If it is not a terminal.
pub fn resize(terminal: &OwnedFd, columns: u16, rows: u16) -> io::Result<()> {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(terminal, size)?)
}
