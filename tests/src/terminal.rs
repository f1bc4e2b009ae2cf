//! A pseudo-terminal, for programs that draw on one.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// A terminal that nobody looks at.
#[derive(Debug)]
pub struct Terminal {
    /// Where what is drawn is read and keys are written. When it is closed, the terminal is gone.
    pub master: File,
    /// What a program has as its terminal.
    pub terminal: OwnedFd,
}

impl Terminal {
    /// A new one of that size.
    ///
    /// # Errors
    /// If there is none.
    pub fn new(columns: u16, rows: u16) -> io::Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname(&master, Vec::new())?;
        let terminal = open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
        resize(&terminal, columns, rows)?;
        Ok(Self { master: master.into(), terminal })
    }

    /// A command that runs a program on this terminal.
    ///
    /// # Errors
    /// If the terminal cannot be duplicated.
    pub fn command(&self, program: &Path) -> io::Result<Command> {
        let stdio = || self.terminal.try_clone().map(Stdio::from);
        // Of util-linux: makes it the controlling terminal, which sends signals when its size changes and at its end.
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(program).env("LC_ALL", "C.UTF-8").env("TERM", "xterm");
        command.stdin(stdio()?).stdout(stdio()?).stderr(stdio()?);
        Ok(command)
    }
}

/// Changes the size of a terminal.
///
/// # Errors
/// If it is none.
pub fn resize(terminal: &OwnedFd, columns: u16, rows: u16) -> io::Result<()> {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(terminal, size)?)
}
