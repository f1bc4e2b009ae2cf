//! Notifications to systemd, sd_notify(3), for a unit with `Type=notify` and `WatchdogSec`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The socket of the service manager. Without one, notifications are dropped.
#[derive(Debug, Default)]
pub(crate) struct ServiceManager {
    socket: Option<UnixDatagram>,
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// Returns the manager of the environment: `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`. A socket
    /// that cannot be reached is logged: systemd would end the agent after `TimeoutStartSec`.
    pub(crate) fn from_env() -> Self {
        let Some(address) = std::env::var_os("NOTIFY_SOCKET") else { return Self::default() };
        let text = |name| std::env::var(name).ok();
        let watchdog = parse_watchdog(text("WATCHDOG_USEC"), text("WATCHDOG_PID"), std::process::id());
        Self::at(&address, watchdog).unwrap_or_else(|error| {
            tracing::warn!(%error, ?address, "NOTIFY_SOCKET: systemd is not notified");
            Self::default()
        })
    }

    /// Returns the manager at this address, which expects a notification within `watchdog`.
    pub(crate) fn at(address: &OsStr, watchdog: Option<Duration>) -> io::Result<Self> {
        Ok(Self { socket: Some(connect(address)?), watchdog })
    }

    /// Sends a notification. Does not wait for a socket that is full or closed.
    pub(crate) fn notify(&self, text: &str) {
        let Some(socket) = &self.socket else { return };
        if let Err(error) = socket.send(text.as_bytes()) {
            tracing::warn!(%error, text, "systemd was not notified");
        }
    }

    /// Returns how often systemd expects `WATCHDOG=1` at least: twice in the unit's `WatchdogSec`.
    pub(crate) fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog.map(|limit| limit / 2)
    }
}

/// Connects to a path, or with `@` to an abstract name.
fn connect(address: &OsStr) -> io::Result<UnixDatagram> {
    let address = match address.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(address)?,
        _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a path nor an abstract name")),
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Returns the unit's `WatchdogSec`, if it is meant for this process.
fn parse_watchdog(usec: Option<String>, pid: Option<String>, own: u32) -> Option<Duration> {
    let is_own = pid.is_none_or(|pid| pid.parse() == Ok(own));
    let usec: u64 = usec.filter(|_| is_own)?.parse().ok()?;
    (usec > 0).then(|| Duration::from_micros(usec))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        socket.set_nonblocking(true).unwrap();
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    fn manager(address: impl AsRef<OsStr>) -> ServiceManager {
        ServiceManager::at(address.as_ref(), None).unwrap()
    }

    #[test]
    fn notifications_arrive_at_a_path_and_at_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("eviction-agent-{}", std::process::id());
        let sockets = [
            (UnixDatagram::bind(&path).unwrap(), path.into_os_string()),
            (
                UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap(),
                format!("@{name}").into(),
            ),
        ];
        for (socket, address) in sockets {
            let manager = manager(address);
            for text in ["READY=1", "STOPPING=1"] {
                manager.notify(text);
                assert_eq!(received(&socket), text);
            }
        }
    }

    #[test]
    fn notify_does_not_wait_for_a_manager_that_is_busy_or_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let manager = manager(path);
        for _ in 0..10_000 {
            manager.notify("WATCHDOG=1");
        }
        assert_eq!(received(&socket), "WATCHDOG=1");
        drop(socket);
        manager.notify("STOPPING=1");
        ServiceManager::default().notify("READY=1");
    }

    #[test]
    fn an_address_that_is_no_socket_is_an_error() {
        for address in ["", "notify", "/nowhere/notify", "@"] {
            assert!(connect(OsStr::new(address)).is_err(), "{address:?}");
        }
    }

    #[test]
    fn the_watchdog_interval_applies_only_to_its_process() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(parse_watchdog(text("30000000"), None, 7), Some(Duration::from_secs(30)));
        assert_eq!(parse_watchdog(text("30000000"), text("7"), 7), Some(Duration::from_secs(30)));
        for (usec, pid) in
            [("30000000", text("8")), ("30000000", text("x")), ("0", None), ("-1", None), ("", None)]
        {
            assert_eq!(parse_watchdog(text(usec), pid, 7), None);
        }
        assert_eq!(parse_watchdog(None, None, 7), None);
    }
}
