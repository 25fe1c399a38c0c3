//! [`Entry`]: a connection in the table.

use flow::PortNo;

use crate::fusion::FusionState;
use crate::headers::{Content, Transport};
use crate::sctp::{self, Sctp};
use crate::tcp::{self, Context, Tcp};
use crate::{Config, Direction, Invalid, Timeout, Tuple};

/// The state machine of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Machine {
    Tcp(Tcp),
    /// Packets after this time belong to a stream.
    Udp {
        stream_after_ms: u64,
    },
    Icmp,
    Sctp(Sctp),
    Other,
}

/// Milliseconds of two-way traffic after which a UDP connection is a stream.
pub(crate) const UDP_STREAM_MS: u64 = 2000;

/// The result of a packet that belongs to a connection, or begins one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// `timeout` is `None` when the packet does not prolong the connection's life.
    Accept {
        timeout: Option<Timeout>,
        assure: bool,
    },
    Ignore,
    Abort,
    Reopen,
    Invalid(Invalid, Option<Timeout>),
}

impl Machine {
    /// The state machine of the connection that this packet begins, and its first timeout.
    pub fn begin(
        content: &Content,
        config: &Config,
        now_ms: u64,
    ) -> Result<(Self, Timeout), Invalid> {
        let mut machine = match &content.transport {
            Transport::Tcp(segment) => Self::Tcp(Tcp::new(segment, config.pick_up)?),
            Transport::Udp => Self::Udp { stream_after_ms: now_ms + UDP_STREAM_MS },
            Transport::Icmp => {
                let (kind, _, _) = content.tuple.icmp_fields().ok_or(Invalid::Untrackable)?;
                if !crate::tuple::is_icmp_request(content.tuple.is_v4(), kind) {
                    return Err(Invalid::NotFirst);
                }
                Self::Icmp
            }
            Transport::Error { .. } => return Err(Invalid::Quote),
            Transport::Sctp(packet) => Self::Sctp(Sctp::new(packet)?),
            Transport::Other => Self::Other,
        };
        let status = Status::default();
        let outcome = machine.track(Direction::Original, content, status, config, now_ms);
        match outcome {
            Outcome::Accept { timeout: Some(timeout), .. } => Ok((machine, timeout)),
            Outcome::Invalid(invalid, _) => Err(invalid),
            _ => Err(Invalid::NotFirst),
        }
    }

    /// Runs the state machine for a packet of the connection.
    pub fn track(
        &mut self,
        direction: Direction,
        content: &Content,
        status: Status,
        config: &Config,
        now_ms: u64,
    ) -> Outcome {
        let accept = |timeout| Outcome::Accept { timeout: Some(timeout), assure: false };
        match (self, &content.transport) {
            (Self::Tcp(tcp), Transport::Tcp(segment)) => {
                let context = Context {
                    seen_reply: status.has(Status::SEEN_REPLY),
                    assured: status.has(Status::ASSURED),
                    liberal: config.liberal_tcp,
                    timeouts: &config.timeouts,
                };
                match tcp.track(direction, segment, context) {
                    tcp::Outcome::Accept { timeout, assure } => Outcome::Accept { timeout, assure },
                    tcp::Outcome::Ignore => Outcome::Ignore,
                    tcp::Outcome::Abort => Outcome::Abort,
                    tcp::Outcome::Reopen => Outcome::Reopen,
                    tcp::Outcome::Invalid(invalid, timeout) => Outcome::Invalid(invalid, timeout),
                }
            }
            (Self::Udp { stream_after_ms }, Transport::Udp) => {
                let is_stream = status.has(Status::SEEN_REPLY) && now_ms > *stream_after_ms;
                let timeout = if is_stream { Timeout::UdpStream } else { Timeout::Udp };
                Outcome::Accept { timeout: Some(timeout), assure: is_stream }
            }
            (Self::Sctp(sctp), Transport::Sctp(packet)) => {
                match sctp.track(direction, packet, status.has(Status::COMMITTED)) {
                    sctp::Outcome::Accept { timeout, established } => {
                        Outcome::Accept { timeout, assure: established }
                    }
                    sctp::Outcome::Invalid(invalid) => Outcome::Invalid(invalid, None),
                }
            }
            (Self::Icmp, _) => accept(Timeout::Icmp),
            (Self::Other, _) => accept(Timeout::Generic),
            // The tuple contains the protocol, so this cannot happen.
            _ => Outcome::Invalid(Invalid::OutOfState, None),
        }
    }

    /// True when later packets like this one, of an assured connection, change neither state nor
    /// timeout.
    pub fn is_steady(&self, content: &Content) -> bool {
        match (self, &content.transport) {
            (Self::Tcp(tcp), Transport::Tcp(segment)) => tcp.is_steady(segment),
            (Self::Udp { .. }, Transport::Udp) => true,
            _ => false,
        }
    }

    /// Accepts any window in the next packets, because packets were not tracked.
    pub fn forget_window(&mut self) {
        if let Self::Tcp(tcp) = self {
            tcp.forget_window();
        }
    }

    /// The timeout of an assured connection in use.
    pub const fn steady_timeout(&self) -> Timeout {
        match self {
            Self::Tcp(_) => Timeout::TcpEstablished,
            Self::Udp { .. } => Timeout::UdpStream,
            Self::Icmp => Timeout::Icmp,
            Self::Sctp(_) => Timeout::SctpEstablished,
            Self::Other => Timeout::Generic,
        }
    }
}

/// Facts about a connection that only ever become true.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Status(u8);

impl Status {
    pub const COMMITTED: u8 = 1;
    pub const SEEN_REPLY: u8 = 2;
    /// The handshake is complete, or packets flowed in both directions for a while.
    pub const ASSURED: u8 = 4;
    pub const SOURCE_NAT: u8 = 8;
    pub const DESTINATION_NAT: u8 = 16;

    pub const fn bits(self) -> u8 {
        self.0
    }

    /// `None` if there are unknown bits.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits < Self::DESTINATION_NAT << 1 { Some(Self(bits)) } else { None }
    }

    pub const fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }

    pub const fn set(&mut self, bit: u8) {
        self.0 |= bit;
    }
}

/// The value of a link between entries that points to no entry.
pub(crate) const NONE: u32 = u32::MAX;

/// A connection, or a free slot of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// The tuples of packets as they arrive, by direction, with the zone.
    pub keys: [Tuple; 2],
    /// Changes with every change that affects later packets of the connection. 0 in a free slot.
    pub generation: u64,
    /// The generation that the entry had at first.
    pub serial: u64,
    pub deadline_ms: u64,
    pub label: [u64; 2],
    pub mark: u32,
    pub opener: PortNo,
    /// The next entry of the hash chain, by direction; in a free slot, the next free slot.
    pub chain: [u32; 2],
    /// The neighbours in the timer bucket's list.
    pub previous: u32,
    pub next: u32,
    /// The tick of the timer bucket.
    pub tick: u32,
    pub status: Status,
    /// Whether a datapath forwards packets of the connection without consulting the table.
    pub fusion: FusionState,
    /// For each direction, how often and when its packets have proposed fusion; the format is
    /// described in [`crate::fusion`].
    pub proposals: [u8; 2],
    pub machine: Machine,
}

impl Entry {
    pub const FREE: Self = Self {
        keys: [Tuple::EMPTY; 2],
        generation: 0,
        serial: 0,
        deadline_ms: 0,
        label: [0; 2],
        mark: 0,
        opener: PortNo(0),
        chain: [NONE; 2],
        previous: NONE,
        next: NONE,
        tick: 0,
        status: Status(0),
        fusion: FusionState::None,
        proposals: [0; 2],
        machine: Machine::Other,
    };

    pub const fn is_free(&self) -> bool {
        self.generation == 0
    }

    pub const fn label(&self) -> u128 {
        (self.label[0] as u128) << 64 | self.label[1] as u128
    }

    pub const fn set_label(&mut self, label: u128) {
        self.label = [(label >> 64) as u64, label as u64];
    }

    /// True when both directions have the same tuple, which is then in the index only once.
    pub fn is_self_connected(&self) -> bool {
        self.keys[0] == self.keys[1]
    }
}
