//! [`Client`]: drives a [`Session`] over a socket, in the thread of the caller.

use crate::session::{Action, Config, ConfigError, Event, Session};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

mod stream;
#[cfg(feature = "tls")]
mod tls;

use stream::Stream;
#[cfg(feature = "tls")]
pub use tls::{TlsError, TlsFiles};

/// The private key and certificates of TLS. Without the feature `tls` there are none.
#[cfg(not(feature = "tls"))]
#[derive(Clone, Copy, Debug)]
pub enum TlsFiles {}

/// Why a client cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The socket pair that wakes the client cannot be created.
    #[error("cannot create the socket pair that wakes the client: {0}")]
    Waker(#[source] io::Error),
}

/// A session and its socket.
#[derive(Debug)]
pub struct Client {
    session: Session,
    tls: Option<TlsFiles>,
    stream: Option<Stream>,
    is_connected: bool,
    /// The message that is being sent, and the number of its bytes that are sent.
    outgoing: (Vec<u8>, usize),
    buffer: Box<[u8]>,
    wake_receiver: UnixStream,
    waker: Waker,
}

/// Wakes a client that waits in [`Client::next_event`], from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<UnixStream>);

impl Waker {
    /// Makes a waiting client, or one that waits next, return.
    pub fn wake(&self) {
        // An error is harmless: a full buffer wakes the client too, or the client no longer exists.
        let _ = (&*self.0).write(&[0]);
    }
}

impl Client {
    /// A client that connects when it waits for events. `tls` is needed for `ssl:` remotes.
    ///
    /// # Errors
    /// [`ClientError`] if the configuration contradicts itself, or without file descriptors.
    pub fn new(config: Config, tls: Option<TlsFiles>) -> Result<Self, ClientError> {
        const BUFFER_BYTES: usize = 64 << 10;
        let session = Session::new(config, Instant::now())?;
        let (wake_receiver, sender) = UnixStream::pair().map_err(ClientError::Waker)?;
        for end in [&wake_receiver, &sender] {
            end.set_nonblocking(true).map_err(ClientError::Waker)?;
        }
        Ok(Self {
            session,
            tls,
            stream: None,
            is_connected: false,
            outgoing: (Vec::new(), 0),
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            wake_receiver,
            waker: Waker(Arc::new(sender)),
        })
    }

    /// The session: replica and state.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The session: transactions, conditions and remotes. The next call of
    /// [`next_event`](Self::next_event) sends its messages.
    pub fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    /// A handle that wakes this client.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Sends and receives until there is an event. `None` when the deadline has passed, or when
    /// the client was woken. With a deadline in the past, it sends and receives without waiting.
    pub fn next_event(&mut self, deadline: Option<Instant>) -> Option<Event> {
        loop {
            if let Some(event) = self.session.poll_event() {
                return Some(event);
            }
            let is_last = deadline.is_some_and(|deadline| deadline <= Instant::now());
            let is_woken = wait_any(&mut [self], deadline);
            if let Some(event) = self.session.poll_event() {
                return Some(event);
            }
            if is_last || is_woken {
                return None;
            }
        }
    }

    /// Connects, and sends what can be sent without waiting. True if there is an event.
    fn advance(&mut self) -> bool {
        let now = Instant::now();
        self.session.handle_timeout(now);
        self.act(now);
        self.send();
        self.session.has_event()
    }

    /// Connects and closes when the session requests it.
    fn act(&mut self, now: Instant) {
        while let Some(action) = self.session.poll_action(now) {
            self.stream = None;
            self.is_connected = false;
            self.outgoing = (Vec::new(), 0);
            let Action::Connect(remote) = action else { continue };
            match Stream::connect(&remote, self.tls.as_ref()) {
                Ok(stream) => self.stream = Some(stream),
                Err(error) => self.session.handle_disconnected(now, &error.to_string()),
            }
        }
    }

    fn fail(&mut self, error: &io::Error) {
        self.stream = None;
        self.is_connected = false;
        let reason = match error.kind() {
            ErrorKind::UnexpectedEof => "the server closed it".to_owned(),
            _ => error.to_string(),
        };
        self.session.handle_disconnected(Instant::now(), &reason);
    }

    /// Sends what can be sent without waiting.
    fn send(&mut self) {
        if !self.is_connected {
            return;
        }
        let Some(stream) = &mut self.stream else { return };
        loop {
            let (message, sent) = &mut self.outgoing;
            if *sent >= message.len() {
                match self.session.poll_transmit() {
                    Some(next) => self.outgoing = (next, 0),
                    None => break,
                }
                continue;
            }
            match stream.write(message.get(*sent..).unwrap_or_default()) {
                Ok(0) => break,
                Ok(length) => *sent += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.fail(&error),
            }
        }
        if let Err(error) = stream.flush() {
            self.fail(&error);
        }
    }

    /// Completes the connection, or receives the available bytes, at most one buffer.
    fn receive(&mut self) {
        let now = Instant::now();
        let Some(stream) = &mut self.stream else { return };
        if !self.is_connected {
            match stream.advance() {
                Ok(false) => return,
                Ok(true) => {
                    self.is_connected = true;
                    self.session.handle_connected(now);
                    return;
                }
                Err(error) => return self.fail(&error),
            }
        }
        match stream.read(&mut self.buffer) {
            Ok(0) => self.fail(&ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                self.session.handle_bytes(now, self.buffer.get(..length).unwrap_or_default());
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => self.fail(&error),
        }
    }
}

/// Sends and receives for all of these clients, once: returns when bytes were received, when the
/// deadline has passed, or when a client was woken; then it returns true. Afterwards, take the
/// events of each client with [`Client::next_event`] and a deadline that has passed.
pub fn wait_any(clients: &mut [&mut Client], deadline: Option<Instant>) -> bool {
    let mut has_event = false;
    for client in clients.iter_mut() {
        has_event |= client.advance();
    }
    if has_event {
        return false;
    }
    let sessions = clients.iter().filter_map(|client| client.session.next_deadline());
    let timeout = deadline.into_iter().chain(sessions).min().map(|deadline| {
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up, so that the deadline has passed when the wait ends.
        u32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
    });
    let timeout = timeout.map_or(PollTimeout::NONE, |milliseconds| {
        PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX)
    });
    let wakers = clients.iter().map(|client| client.wake_receiver.as_fd());
    let mut fds: Vec<_> = wakers.map(|waker| PollFd::new(waker, PollFlags::POLLIN)).collect();
    fds.extend(clients.iter().filter_map(|client| {
        let stream = client.stream.as_ref()?;
        let has_more = client.outgoing.1 < client.outgoing.0.len();
        Some(PollFd::new(stream.fd(), stream.interest(client.is_connected, has_more)))
    }));
    // An interrupted wait only ends early.
    let _ = poll(&mut fds, timeout);
    let is_readable =
        |fd: &PollFd<'_>| fd.revents().is_some_and(|events| events.contains(PollFlags::POLLIN));
    let woken: Vec<bool> = fds.iter().take(clients.len()).map(is_readable).collect();
    for (client, is_woken) in clients.iter_mut().zip(&woken) {
        if *is_woken {
            let mut bytes = [0; 64];
            while (&client.wake_receiver).read(&mut bytes).is_ok_and(|length| length == bytes.len())
            {
            }
        }
        client.receive();
    }
    woken.contains(&true)
}
