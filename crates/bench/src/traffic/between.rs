//! Loads from guest to guest, all of which begin when the connections of all are there, each side on its guest's processor.

use std::net::{IpAddr, SocketAddr};

use super::load::{Client, Connected, Counters, Histogram, Load, Pattern, Placement, Server};
use crate::lab::{CONGESTION_CONTROL, Guest};
use crate::{Error, Result, Stop};

/// Bytes of one write of a stream: two super-packets.
const WRITE: usize = 128 << 10;

/// A load and where it goes.
#[derive(Clone, Copy, Debug)]
pub struct Flow<'a> {
    /// Has the client.
    pub from: &'a Guest,
    /// Has the server.
    pub to: &'a Guest,
    /// Where the server listens: an address of `to`.
    pub address: IpAddr,
    /// What there is between them.
    pub load: Load,
}

impl<'a> Flow<'a> {
    /// One TCP connection on which `from` writes as fast as it can.
    ///
    /// # Errors
    /// Never: the numbers are those of a load.
    pub fn stream(from: &'a Guest, to: &'a Guest, address: IpAddr) -> Result<Self> {
        Ok(Self { from, to, address, load: Load::new(Pattern::TcpStream, WRITE, 1)? })
    }
}

/// Running loads. Dropping them ends them.
#[derive(Debug)]
pub struct Traffic(Vec<Pair>);

/// The ends of one. The client is dropped first.
#[derive(Debug)]
struct Pair {
    client: Client,
    server: Server,
}

/// What both ends of a load have counted so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Payload bytes that were received, by either end.
    pub bytes: u64,
    /// Transactions completed.
    pub transactions: u64,
    /// Requests over UDP without an answer.
    pub lost: u64,
    /// Datagrams that the kernel took.
    pub sent_messages: u64,
    /// Datagrams that came.
    pub received_messages: u64,
}

impl Traffic {
    /// Opens the connections of all `flows`, and then begins on all of them: a load would keep a later connection from being
    /// established.
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

    /// From now on, times of transactions count.
    pub fn begin_measuring(&self) {
        self.0.iter().for_each(|pair| pair.client.begin_measuring());
    }

    /// What each flow has counted so far.
    pub fn counts(&self) -> Vec<Counts> {
        self.0.iter().map(Pair::counts).collect()
    }

    /// Payload bytes of each flow that were received so far.
    pub fn received(&self) -> Vec<u64> {
        self.0.iter().map(|pair| pair.counts().bytes).collect()
    }

    /// # Errors
    /// [`Error::Traffic`] once a connection has failed or ended.
    pub fn check(&self) -> Result<()> {
        self.0.iter().try_for_each(|pair| pair.client.check())
    }

    /// Ends all connections; returns the times of the transactions that were measured.
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

    /// Told before any is waited for: those that run on would keep it from ending.
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
            error => Error::Traffic(format!("{} to {}: {error}", self.from.name(), self.to.name())),
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
