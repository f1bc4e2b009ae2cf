//! One connection: TCP, TLS, HTTP/1.1.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustix::net::sockopt;
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tokio_rustls::rustls;

use super::access::Access;
use super::error::ConnectError;
use super::tls::{self, Tls};

/// A peer that is gone without a word is noticed within a minute.
const KEEP_ALIVE: (Duration, Duration, u32) = (Duration::from_secs(20), Duration::from_secs(10), 3);

/// What hyper may keep of an answer that nobody has taken yet, and at least of its head.
const BUFFER: usize = 64 << 10;

/// Half of a connection: what requests go into. The other half is a task that ends with it.
pub(super) type Sender = SendRequest<Full<Bytes>>;

/// Connects. `closed` is told when the connection ends, for whatever reason. Whoever gives up at `until` has had
/// each of the server's addresses tried before.
pub(super) async fn connect(
    access: &Access,
    tls: &Tls,
    closed: Arc<Notify>,
    until: Instant,
) -> Result<Sender, ConnectError> {
    let connector = tls.connector(access)?;
    let name = tls::server_name(access)?;
    let address = access.server.authority();
    let stream = open(access, &address, until).await?;
    let greeting =
        |source: Box<dyn Error + Send + Sync>| ConnectError::Greeting { address: address.clone(), source };
    let stream = connector.connect(name, stream).await.map_err(|error| match mistrust(&error) {
        Some(source) => ConnectError::Certificate { address: address.clone(), source },
        None => greeting(error.into()),
    })?;
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(BUFFER)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| greeting(error.into()))?;
    tokio::spawn(async move {
        // Whoever waits for an answer is told why it does not come.
        let _ended = connection.await;
        closed.notify_one();
    });
    Ok(sender)
}

async fn open(access: &Access, address: &str, until: Instant) -> Result<TcpStream, ConnectError> {
    let host = access.server.host.as_str();
    let resolve = |source| ConnectError::Resolve { host: host.to_owned(), source };
    let addresses: Vec<_> = lookup_host((host, access.server.port)).await.map_err(resolve)?.collect();
    let mut last = None;
    for (left, address) in (1..=addresses.len()).rev().zip(&addresses) {
        // One that says nothing leaves the others their share of the time (as net.Dialer of Go does).
        let share = until.saturating_duration_since(Instant::now()) / u32::try_from(left).unwrap_or(u32::MAX);
        let tried = timeout(share, TcpStream::connect(address)).await;
        let tried = tried.unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into()));
        match tried.and_then(|stream| prepare(&stream).map(|()| stream)) {
            Ok(stream) => return Ok(stream),
            Err(source) => last = Some(ConnectError::Tcp { address: address.to_string(), source }),
        }
    }
    Err(last.unwrap_or_else(|| ConnectError::Tcp {
        address: address.to_owned(),
        source: io::Error::new(io::ErrorKind::NotFound, "the name has no address"),
    }))
}

/// Small requests leave at once.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    let (idle, interval, count) = KEEP_ALIVE;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, idle)?;
    sockopt::set_tcp_keepintvl(stream, interval)?;
    sockopt::set_tcp_keepcnt(stream, count)?;
    Ok(())
}

/// The error, if one side does not trust the other: no accident of the network.
fn mistrust(error: &io::Error) -> Option<rustls::Error> {
    use rustls::AlertDescription as Alert;
    use rustls::Error as Tls;
    let error = error.get_ref()?.downcast_ref::<Tls>()?;
    let mistrust = match error {
        Tls::InvalidCertificate(_) | Tls::NoCertificatesPresented => true,
        Tls::AlertReceived(alert) => matches!(
            alert,
            Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied
                | Alert::CertificateRequired
        ),
        _ => false,
    };
    mistrust.then(|| error.clone())
}
