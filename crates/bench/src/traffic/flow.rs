//! Loads between guests. They begin together, after all connections are established.

use std::net::{IpAddr, SocketAddr};

use super::load::{Client, Connected, Counters, Histogram, Load, Pattern, Placement, Server};
use crate::lab::{CONGESTION_CONTROL, Guest};
use crate::{Error, Result, Stop};

/// Bytes of one write of a stream: two super-packets.
const WRITE: usize = 128 << 10;

/// A load, and the two guests between which it runs.
#[derive(Clone, Copy, Debug)]
pub struct Flow<'a> {
    /// The client.
    pub from: &'a Guest,
    /// The server.
    pub to: &'a Guest,
    /// The address of `to` on which the server listens.
    pub address: IpAddr,
    /// The load between them.
    pub load: Load,
}

impl<'a> Flow<'a> {
    /// One TCP connection on which `from` writes as fast as it can.
    ///
    /// # Errors
    /// Never: the parameters are valid.
    pub fn stream(from: &'a Guest, to: &'a Guest, address: IpAddr) -> Result<Self> {
        Ok(Self { from, to, address, load: Load::new(Pattern::TcpStream, WRITE, 1)? })
    }
}

/// Running loads. Dropping them ends them.
#[derive(Debug)]
pub struct Traffic(Vec<Pair>);

/// Both ends of a flow. The client is dropped first.
#[derive(Debug)]
struct Pair {
    client: Client,
    server: Server,
}

/// The counters of both ends of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Payload bytes that either end received.
    pub bytes: u64,
    /// Transactions completed.
    pub transactions: u64,
    /// Requests over UDP without a response.
    pub lost: u64,
    /// Datagrams that the kernel accepted for sending.
    pub sent_messages: u64,
    /// Datagrams that arrived.
    pub received_messages: u64,
}

impl Traffic {
    /// Establishes the connections of all `flows`, and then starts traffic on all of them: a
    /// running load would delay a later handshake.
    ///
    /// # Errors
    /// As [`Connected::open`], with the names of the guests.
    pub fn start(flows: &[Flow<'_>], stop: &Stop) -> Result<Self> {
        let open = |flow: &Flow<'_>| flow.open(stop).map_err(|error| flow.explain(error));
        let opened = flows.iter().map(open).collect::<Result<Vec<_>>>()?;
        let begin =
            |(client, server): (Connected, Server)| Ok(Pair { client: client.begin()?, server });
        opened.into_iter().map(begin).collect::<Result<_>>().map(Self)
    }

    /// Starts recording the times of transactions.
    pub fn begin_measuring(&self) {
        self.0.iter().for_each(|pair| pair.client.begin_measuring());
    }

    /// The counters of each flow.
    pub fn counts(&self) -> Vec<Counts> {
        self.0.iter().map(Pair::counts).collect()
    }

    /// Received payload bytes of each flow.
    pub fn received(&self) -> Vec<u64> {
        self.0.iter().map(|pair| pair.counts().bytes).collect()
    }

    /// # Errors
    /// [`Error::Other`] once a connection has failed or ended.
    pub fn check(&self) -> Result<()> {
        self.0.iter().try_for_each(|pair| pair.client.check())
    }

    /// Ends all connections. Returns the recorded times of transactions.
    ///
    /// # Errors
    /// As [`Traffic::check`].
    pub fn finish(mut self) -> Result<Histogram> {
        let checked = self.check();
        self.end_soon();
        let mut times = Histogram::default();
        for Pair { client, server: _server } in self.0.drain(..) {
            times.merge(&client.finish()?);
        }
        checked.map(|()| times)
    }

    /// Tells all flows to end, so that none is waited for while others still load the machine.
    fn end_soon(&self) {
        for Pair { client, server } in &self.0 {
            client.end_soon();
            server.end_soon();
        }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.end_soon();
    }
}

impl Flow<'_> {
    fn open(&self, stop: &Stop) -> Result<(Connected, Server)> {
        let Self { from, to, address, load } = *self;
        let server = to.run(|| Server::start(SocketAddr::new(address, 0), placement(to)))??;
        let at = server.address();
        let client = from.run(|| Connected::open(&load, at, placement(from), stop))??;
        Ok((client, server))
    }

    fn explain(&self, error: Error) -> Error {
        match error {
            Error::Interrupted => Error::Interrupted,
            error => Error::Other(format!("{} to {}: {error}", self.from.name(), self.to.name())),
        }
    }
}

impl Pair {
    fn counts(&self) -> Counts {
        let Counters { received_bytes, transactions, lost, sent_messages } = self.client.counters();
        let (there, received_messages) = self.server.received();
        Counts {
            bytes: received_bytes + there,
            transactions,
            lost,
            sent_messages,
            received_messages,
        }
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.bytes += more.bytes;
        self.transactions += more.transactions;
        self.lost += more.lost;
        self.sent_messages += more.sent_messages;
        self.received_messages += more.received_messages;
    }
}

impl std::ops::Sub for Counts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(earlier.bytes),
            transactions: self.transactions.saturating_sub(earlier.transactions),
            lost: self.lost.saturating_sub(earlier.lost),
            sent_messages: self.sent_messages.saturating_sub(earlier.sent_messages),
            received_messages: self.received_messages.saturating_sub(earlier.received_messages),
        }
    }
}

fn placement(guest: &Guest) -> Placement {
    Placement { cpu: Some(guest.cpu()), congestion_control: Some(CONGESTION_CONTROL) }
}
