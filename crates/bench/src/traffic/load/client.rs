//! The client: it establishes the connections of a load, and counts its traffic.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::histogram::Histogram;
use super::instance::{self, InstanceState, STACK_BYTES};
use super::pattern::{Load, Pattern};
use super::placement::Placement;
use super::protocol::{self, Request};

use crate::traffic::blast::{Blast, Pace};
use crate::{Error, Result, Stop};

/// How long all connections of a load may take to be established.
const OPEN_LIMIT: Duration = Duration::from_secs(30);

/// The connections of a running load. Dropping it ends them.
#[derive(Debug)]
pub struct Client {
    shared: Arc<InstanceState>,
    threads: Vec<JoinHandle<Histogram>>,
    blasts: Vec<Blast>,
    // Control connections, for patterns whose data uses another port. The server ends a load when
    // its control connection closes.
    controls: Vec<TcpStream>,
}

/// The counters of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Payload bytes received in streams.
    pub received_bytes: u64,
    /// Transactions completed.
    pub transactions: u64,
    /// Requests over UDP without a response within 200 ms.
    pub lost: u64,
    /// Datagrams that the kernel accepted for sending.
    pub sent_messages: u64,
}

/// Established connections, without traffic yet.
#[derive(Debug)]
pub struct Connected {
    client: Client,
    /// The control connections, on which the server will be told to begin.
    controls: Vec<TcpStream>,
    /// The sockets of [`Pattern::UdpStream`], which have no thread yet.
    senders: Vec<UdpSocket>,
    load: Load,
    placement: Placement,
}

impl Connected {
    /// Establishes all connections of `load` to `server`, in the network namespace of the calling
    /// thread. Traffic does not start before [`Connected::begin`], because it would delay later
    /// handshakes.
    ///
    /// # Errors
    /// A connection is refused or not established within 2 s, the server does not respond within 5
    /// s, all connections together take longer than 30 s, or [`Error::Interrupted`].
    pub fn open(
        load: &Load,
        server: SocketAddr,
        placement: Placement,
        stop: &Stop,
    ) -> Result<Self> {
        let request = Request::Traffic {
            pattern: load.pattern(),
            size_bytes: load.size_bytes(),
            rate_bps: load.rate_of_each_bps().unwrap_or(0.0),
        };
        let client = Client {
            shared: Arc::default(),
            threads: Vec::new(),
            blasts: Vec::new(),
            controls: Vec::new(),
        };
        let (controls, senders) = (Vec::with_capacity(load.connections()), Vec::new());
        let mut connected = Self { client, controls, senders, load: *load, placement };
        let begin = Instant::now();
        for number in 0..load.connections() {
            stop.check()?;
            if begin.elapsed() > OPEN_LIMIT {
                let (all, seconds) = (load.connections(), OPEN_LIMIT.as_secs());
                let text = format!("only {number} of {all} connections in {seconds} s");
                return Err(Error::Other(text));
            }
            let stream =
                placement.connect(server).map_err(Error::io(format!("connect to {server}")))?;
            let port = protocol::ask(&stream, request)?;
            connected.controls.push(share(&stream)?);
            connected.prepare(stream, SocketAddr::new(server.ip(), port))?;
        }
        Ok(connected)
    }

    /// Starts traffic on all connections.
    ///
    /// # Errors
    /// A thread cannot be started, or the server is gone.
    pub fn begin(self) -> Result<Client> {
        let Self { mut client, controls, senders, load, placement } = self;
        for control in &controls {
            protocol::send(control, protocol::GO)?;
        }
        client.shared.go();
        let size = load.size_bytes();
        let pace = load
            .rate_of_each_bps()
            .map_or(Pace::FlatOut, |bps| Pace::PerSecond(bps / 8.0 / size as f64));
        for socket in senders {
            let number = |number: u64, bytes: &mut [u8]| {
                if let Some(place) = bytes.first_chunk_mut() {
                    *place = number.to_be_bytes();
                }
            };
            let blast = Blast::start(socket, vec![0x5a; size], number, pace, placement.cpu)?;
            client.blasts.push(blast);
        }
        Ok(client)
    }

    /// The counters so far.
    #[cfg(test)]
    pub(super) fn counters(&self) -> Counters {
        self.client.counters()
    }

    /// Starts a thread for the connection, which waits for [`InstanceState::go`].
    fn prepare(&mut self, stream: TcpStream, there: SocketAddr) -> Result<()> {
        let (size, rate) = (self.load.size_bytes(), self.load.rate_of_each_bps());
        let (client, placement) = (&mut self.client, self.placement);
        match self.load.pattern() {
            Pattern::TcpStream => client.spawn(placement, move |shared, _| {
                instance::write_stream(&stream, size, rate, shared, || {
                    shared.wait_for_go();
                    Ok(())
                })
            }),
            Pattern::TcpReverse => client.spawn(placement, move |shared, _| {
                instance::read_stream(&stream, shared, || Ok(()))
            }),
            Pattern::TcpBidirectional => {
                let writer = share(&stream)?;
                client.spawn(placement, move |shared, _| {
                    instance::write_stream(&writer, size, rate, shared, || {
                        shared.wait_for_go();
                        Ok(())
                    })
                })?;
                client.spawn(placement, move |shared, _| {
                    instance::read_stream(&stream, shared, || Ok(()))
                })
            }
            Pattern::TcpRr => client
                .spawn(placement, move |shared, times| instance::ask(&stream, size, shared, times)),
            Pattern::TcpCrr => {
                client.controls.push(stream);
                client.spawn(placement, move |shared, times| {
                    instance::ask_connecting(there, placement, size, shared, times)
                })
            }
            Pattern::UdpRr => {
                client.controls.push(stream);
                let socket = datagram_socket(there)?;
                client.spawn(placement, move |shared, times| {
                    instance::ask_datagrams(&socket, size, shared, times)
                })
            }
            Pattern::UdpStream => {
                client.controls.push(stream);
                self.senders.push(datagram_socket(there)?);
                Ok(())
            }
        }
    }
}

fn share(stream: &TcpStream) -> Result<TcpStream> {
    stream.try_clone().map_err(Error::io("share a connection"))
}

impl Client {
    /// Establishes all connections of `load` and starts the traffic.
    ///
    /// # Errors
    /// As [`Connected::open`] and [`Connected::begin`].
    pub fn start(
        load: &Load,
        server: SocketAddr,
        placement: Placement,
        stop: &Stop,
    ) -> Result<Self> {
        Connected::open(load, server, placement, stop)?.begin()
    }

    fn spawn(
        &mut self,
        placement: Placement,
        work: impl FnOnce(&InstanceState, &mut Histogram) -> std::io::Result<()> + Send + 'static,
    ) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("load".into()).stack_size(STACK_BYTES);
        let thread = thread.spawn(move || {
            let mut times = Histogram::default();
            let pinned = placement.pin().map_err(std::io::Error::other);
            if let Err(error) = pinned.and_then(|()| work(&shared, &mut times)) {
                shared.fail("a connection failed", &error);
            }
            times
        });
        self.threads.push(thread.map_err(Error::io("start a traffic thread"))?);
        Ok(())
    }

    /// Starts recording the times of transactions.
    pub fn begin_measuring(&self) {
        self.shared.measuring.store(true, Ordering::Relaxed);
    }

    /// The counters so far.
    pub fn counters(&self) -> Counters {
        let shared = &self.shared;
        Counters {
            received_bytes: shared.received_bytes.load(Ordering::Relaxed),
            transactions: shared.transactions.load(Ordering::Relaxed),
            lost: shared.lost.load(Ordering::Relaxed),
            sent_messages: self.blasts.iter().map(Blast::sent).sum(),
        }
    }

    /// # Errors
    /// [`Error::Other`] once a connection has failed or ended.
    pub fn check(&self) -> Result<()> {
        self.shared.failure().map_or(Ok(()), |text| Err(Error::Other(text)))
    }

    /// Ends all connections. Returns the recorded times of transactions.
    ///
    /// # Errors
    /// As [`Client::check`].
    pub fn finish(mut self) -> Result<Histogram> {
        self.shared.measuring.store(false, Ordering::Relaxed);
        let times = self.end();
        self.check()?;
        Ok(times)
    }

    /// Signals all connections to end, without waiting for their end.
    pub fn end_soon(&self) {
        self.shared.done.store(true, Ordering::Relaxed);
        // Wakes the threads that have not started their traffic.
        self.shared.go();
    }

    fn end(&mut self) -> Histogram {
        self.end_soon();
        self.blasts.clear();
        let mut all = Histogram::default();
        for thread in self.threads.drain(..) {
            // A panic of the thread has been printed already.
            if let Ok(times) = thread.join() {
                all.merge(&times);
            }
        }
        self.controls.clear();
        all
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.end();
    }
}

fn datagram_socket(there: SocketAddr) -> Result<UdpSocket> {
    let any: SocketAddr = match there {
        SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    UdpSocket::bind(any)
        .and_then(|socket| socket.connect(there).map(|()| socket))
        .map_err(Error::io(format!("send UDP to {there}")))
}
