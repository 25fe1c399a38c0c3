//! [`MetricsSocket`]: serves metrics by HTTP, one request on each connection.
//!
//! Each client has a detached thread that ends with the process, so that a client cannot delay the
//! caller or other clients for long. Requests and responses have a deadline.

use super::exposition::{Format, render};
use super::families::all;
use super::http::{self, MAX_REQUEST_BYTES, Refusal};
use super::{MetricsAddress, Observation};
use crate::control::listen_at;
use anyhow::{Context, Result};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of clients served at the same time.
const MAX_CLIENTS: usize = 4;
/// How long a client may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a client may take to read the response. By default Prometheus waits 10 s for a
/// response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client that is refused may take to send its request, and to read the response. No
/// other client is accepted during this time.
const REFUSAL_TIMEOUT: Duration = Duration::from_millis(100);
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// The listening socket. The file of a Unix socket is removed on drop.
pub struct MetricsSocket {
    listener: Listener,
    /// The address. If port 0 was requested, it contains the port that the kernel chose.
    address: MetricsAddress,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The connection to a client.
trait Client: Read + Write + Send {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()>;
    /// Closes the sending direction of the connection.
    fn end(&self) -> io::Result<()>;
}

/// Implements [`Client`] for both stream types. Their methods have the same names, but no common
/// trait.
macro_rules! clients {
    ($($stream:ty),*) => {$(
        impl Client for $stream {
            fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
                self.set_read_timeout(Some(timeout))?;
                self.set_write_timeout(Some(timeout))
            }

            fn end(&self) -> io::Result<()> {
                self.shutdown(Shutdown::Write)
            }
        }
    )*};
}

clients!(TcpStream, UnixStream);

impl Listener {
    fn accept(&self) -> io::Result<Box<dyn Client>> {
        Ok(match self {
            Self::Tcp(listener) => Box::new(listener.accept()?.0),
            Self::Unix(listener) => Box::new(listener.accept()?.0),
        })
    }

    fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(listener) => Self::Tcp(listener.try_clone()?),
            Self::Unix(listener) => Self::Unix(listener.try_clone()?),
        })
    }
}

impl MetricsSocket {
    /// Listens at `address`. Replaces the stale socket of a killed daemon. The owner and the
    /// members of `group` may connect to a Unix socket.
    ///
    /// # Errors
    /// The address is in use, or is not an address of this host. For a Unix socket, as for
    /// [`listen_at`].
    pub fn listen(address: &MetricsAddress, group: Option<&str>) -> Result<Self> {
        let (listener, address) = match address {
            MetricsAddress::Tcp(socket_address) => {
                let failed =
                    || format!("cannot serve metrics at {socket_address}: choose another address");
                let listener = TcpListener::bind(socket_address).with_context(failed)?;
                let bound = listener.local_addr().with_context(failed)?;
                (Listener::Tcp(listener), MetricsAddress::Tcp(bound))
            }
            MetricsAddress::Unix(path) => {
                let listener = listen_at(path, "--metrics")?;
                (Listener::Unix(listener), address.clone())
            }
        };
        let socket = Self { listener, address };
        if let (Some(path), Some(group)) = (socket.path(), group) {
            netdev::unix::group(group)
                .and_then(|number| netdev::unix::open_to_group(path, number))
                .with_context(|| format!("cannot open {} to the group {group}", path.display()))?;
        }
        Ok(socket)
    }

    /// The address of the socket.
    pub fn address(&self) -> &MetricsAddress {
        &self.address
    }

    /// The path of a Unix socket.
    pub fn path(&self) -> Option<&Path> {
        match &self.address {
            MetricsAddress::Unix(path) => Some(path.as_path()),
            MetricsAddress::Tcp(_) => None,
        }
    }

    /// Serves the metrics of the observation that `observe` returns; it returns `None` if the
    /// datapath does not reply. Only one observation is taken at a time.
    ///
    /// # Errors
    /// The listening thread cannot be started.
    pub fn serve(
        &self,
        observe: impl Fn() -> Option<Observation> + Send + Sync + 'static,
    ) -> Result<()> {
        let listener = self.listener.try_clone().context("cannot duplicate the metrics socket")?;
        let taking = Mutex::new(());
        let answer = move |format| {
            let _taking = taking.lock().unwrap_or_else(PoisonError::into_inner);
            let observation = observe().ok_or(Refusal::Busy)?;
            Ok(http::metrics(format, &render(all(), &observation, format)))
        };
        std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || accept_clients(&listener, &Arc::new(answer)))
            .context("cannot start the thread that serves metrics")?;
        Ok(())
    }
}

impl Drop for MetricsSocket {
    fn drop(&mut self) {
        if let Some(path) = self.path() {
            // Fails only if the file is already gone.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn accept_clients<F>(listener: &Listener, answer: &Arc<F>)
where
    F: Fn(Format) -> Result<Vec<u8>, Refusal> + Send + Sync + 'static,
{
    // Each client thread holds a clone: the reference count is the number of clients.
    let slots = Arc::new(());
    loop {
        let mut client = match listener.accept() {
            Ok(client) => client,
            Err(error) => {
                // When the process is out of descriptors, accept fails again at once.
                messages::log!(METRICS_SOCKET_ERROR, "metrics socket: {error}");
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        if Arc::strong_count(&slots) > MAX_CLIENTS {
            turn_away(&mut *client);
            continue;
        }
        let (slot, answer) = (Arc::clone(&slots), Arc::clone(answer));
        let serve = move || {
            if let Err(error) = serve_client(&mut *client, &*answer) {
                messages::log!(METRICS_CLIENT_ERROR, "metrics connection: {error}");
            }
            drop(slot);
        };
        if let Err(error) = std::thread::Builder::new().name("scrape".to_owned()).spawn(serve) {
            messages::log!(
                METRICS_THREAD_FAILED,
                "cannot start a thread for a client of metrics: {error}"
            );
        }
    }
}

/// Refuses a client when there are too many.
fn turn_away(client: &mut dyn Client) {
    // Reads the request first. The kernel resets a connection that is closed with unread bytes, and
    // the client might not see the response.
    let mut request = [0; MAX_REQUEST_BYTES];
    let _ = client.set_timeout(REFUSAL_TIMEOUT).and_then(|()| client.read(&mut request));
    let _ = write_all(client, &Refusal::Busy.response(), REFUSAL_TIMEOUT);
}

fn serve_client(
    client: &mut dyn Client,
    answer: impl Fn(Format) -> Result<Vec<u8>, Refusal>,
) -> io::Result<()> {
    let request = read_head(client)?;
    match request.and_then(|head| http::parse(&head)).and_then(answer) {
        Ok(bytes) => write_all(client, &bytes, ANSWER_TIMEOUT),
        Err(refusal) => write_all(client, &refusal.response(), REFUSAL_TIMEOUT),
    }?;
    client.end()
}

/// Reads the head of a request. The outer error is an error of the connection, the inner one a
/// refusal.
fn read_head(client: &mut dyn Client) -> io::Result<Result<Vec<u8>, Refusal>> {
    let deadline = Instant::now() + REQUEST_TIMEOUT;
    let (mut bytes, mut buffer) = (Vec::new(), [0; 1024]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Err(Refusal::Timeout));
        }
        client.set_timeout(left)?;
        match client.read(&mut buffer) {
            Ok(0) => return Ok(Err(Refusal::Malformed)),
            Ok(len) => bytes.extend_from_slice(buffer.get(..len).unwrap_or_default()),
            Err(error) if is_timeout(&error) => return Ok(Err(Refusal::Timeout)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if let Some(len) = http::head_len(&bytes) {
            bytes.truncate(len);
            return Ok(Ok(bytes));
        }
        if bytes.len() >= MAX_REQUEST_BYTES {
            return Ok(Err(Refusal::TooLong));
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Writes everything within `limit`. The timeout of the socket is not enough: it restarts with
/// every byte that a slow client reads.
fn write_all(client: &mut dyn Client, bytes: &[u8], limit: Duration) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    let mut rest = bytes;
    while !rest.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        client.set_timeout(left)?;
        match client.write(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(len) => rest = rest.get(len..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A length above the capacity of the socket's buffers.
    const LARGE: usize = 16 << 20;

    #[test]
    fn answer_ends_at_its_deadline_when_the_client_reads_slowly_or_not_at_all() {
        for reads in [0, 100] {
            let (mut server, mut client) = UnixStream::pair().unwrap();
            let reader = std::thread::spawn(move || {
                // Each byte that is read restarts the timeout of the socket.
                for _ in 0..reads {
                    client.read_exact(&mut [0; 1]).unwrap();
                    std::thread::sleep(Duration::from_millis(5));
                }
                client
            });
            let written = write_all(&mut server, &vec![b'x'; LARGE], Duration::from_millis(200));
            let error = written.unwrap_err();
            assert!(is_timeout(&error), "{error}");
            drop(reader.join().unwrap());
        }
    }

    #[test]
    fn whole_answer_arrives_when_the_client_reads() {
        let (mut server, mut client) = UnixStream::pair().unwrap();
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            client.read_to_end(&mut bytes).unwrap();
            bytes.len()
        });
        write_all(&mut server, &vec![b'x'; LARGE], Duration::from_secs(60)).unwrap();
        drop(server);
        assert_eq!(reader.join().unwrap(), LARGE);
    }

    #[test]
    fn request_is_read_from_pieces_and_only_up_to_its_limit() {
        let exchange = |pieces: &[&[u8]]| {
            let (mut server, mut client) = UnixStream::pair().unwrap();
            pieces.iter().for_each(|piece| client.write_all(piece).unwrap());
            client.shutdown(Shutdown::Write).unwrap();
            read_head(&mut server).unwrap()
        };
        let whole = b"GET /metrics HTTP/1.1\r\n\r\n".to_vec();
        assert_eq!(exchange(&[&whole[..5], &whole[5..24], &whole[24..]]), Ok(whole.clone()));
        assert_eq!(exchange(&[&whole, b"more"]), Ok(whole));
        assert_eq!(exchange(&[b"GET /metrics"]), Err(Refusal::Malformed), "it ends too early");
        assert_eq!(exchange(&[]), Err(Refusal::Malformed));
        assert_eq!(exchange(&[&[b'x'; MAX_REQUEST_BYTES]]), Err(Refusal::TooLong));
    }
}
