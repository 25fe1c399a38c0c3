//! The counters of a server, in this process or on another host.

use std::net::{SocketAddr, TcpStream};

use netdev::cpu::{CpuTimes, ticks_per_second};

use super::placement::CONNECT_LIMIT;
use super::protocol::{self, Request};
use super::server::Server;
use crate::{Error, Result};

/// Where the server runs.
#[derive(Debug)]
pub enum Peer<'a> {
    /// In this process.
    Local(&'a Server),
    /// On another host.
    Remote(TcpStream),
}

/// The counters of a server.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct PeerCounters {
    /// Payload bytes received.
    pub received_bytes: u64,
    /// Datagrams received.
    pub received_messages: u64,
    /// Busy processor time of its host, in seconds.
    pub busy_seconds: f64,
    /// Total processor time of its host, in seconds.
    pub cpu_seconds: f64,
}

impl Peer<'_> {
    /// Connects to the server at `address`.
    ///
    /// # Errors
    /// It cannot be reached within 2 s, or does not use this protocol.
    pub fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_LIMIT)
            .map_err(Error::io(format!("connect to {address}")))?;
        protocol::ask(&stream, Request::Counters)?;
        Ok(Self::Remote(stream))
    }

    /// Reads the counters.
    ///
    /// # Errors
    /// It does not respond within 5 s.
    pub fn counters(&mut self) -> Result<PeerCounters> {
        match self {
            Self::Local(server) => {
                let (received_bytes, received_messages) = server.received();
                let cpu = CpuTimes::now()?;
                let seconds = |ticks: u64| ticks as f64 / ticks_per_second() as f64;
                let (busy_seconds, cpu_seconds) = (seconds(cpu.busy()), seconds(cpu.total()));
                Ok(PeerCounters { received_bytes, received_messages, busy_seconds, cpu_seconds })
            }
            Self::Remote(stream) => {
                protocol::send(stream, "?\n")?;
                let line = protocol::read_line(stream)?;
                parse(&line).ok_or_else(|| {
                    Error::Other(format!("cannot parse the server's counters {line:?}"))
                })
            }
        }
    }
}

fn parse(line: &str) -> Option<PeerCounters> {
    let mut words = line.split_ascii_whitespace();
    let received_bytes = words.next()?.parse().ok()?;
    let received_messages = words.next()?.parse().ok()?;
    let mut seconds = || words.next()?.parse().ok().filter(|s: &f64| s.is_finite());
    let (busy_seconds, cpu_seconds) = (seconds()?, seconds()?);
    Some(PeerCounters { received_bytes, received_messages, busy_seconds, cpu_seconds })
}
