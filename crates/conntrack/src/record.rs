//! [`Record`]: a connection outside the table, so that it survives the process.
//!
//! A table writes a record of each connection that has seen a reply to its [`Store`], whenever the
//! connection changes, and clears it when the connection is removed. [`Table::restore`] turns a
//! record back into a connection. Its timeout then starts again, and its TCP windows begin with the
//! next packets, as after [`Table::end_fusion`].

use std::fmt;

use flow::PortNo;

use crate::entry::{Entry, Machine, Status, UDP_STREAM_MS};
use crate::sctp::Sctp;
use crate::tcp::Tcp;
use crate::{CtDrop, Table, Timeout, Tuple, Zone};

/// A connection encoded as words: both tuples, label, mark and opener, the state of its protocol,
/// and a checksum in the last word, which is never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record([u64; Self::WORDS]);

/// Where a table saves its connections.
pub trait Store: fmt::Debug + Send {
    /// Writes the record of the connection in slot `place` of the table.
    fn write(&mut self, place: u32, record: &Record);

    /// Removes the record of the connection in slot `place`.
    fn clear(&mut self, place: u32);
}

/// The reason why a connection was not restored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RestoreError {
    /// The record does not describe a connection.
    Invalid,
    /// The time without tracking was longer than the connection's timeout.
    Expired,
    /// A limit is reached, or another connection has one of its tuples.
    Refused(CtDrop),
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid => f.write_str("invalid record"),
            Self::Expired => f.write_str("expired"),
            Self::Refused(why) => why.fmt(f),
        }
    }
}

const TCP: u8 = 0;
const UDP: u8 = 1;
const ICMP: u8 = 2;
const SCTP: u8 = 3;
const OTHER: u8 = 4;

impl Record {
    /// The length in words.
    pub const WORDS: usize = 16;
    /// The version of the format; it must change whenever the format changes.
    pub const VERSION: u64 = 1;

    /// A record from its words. `None` if the checksum is wrong.
    pub fn from_words(words: [u64; Self::WORDS]) -> Option<Self> {
        (checksum(&words[..Self::WORDS - 1]) == words[Self::WORDS - 1]).then_some(Self(words))
    }

    /// The words.
    pub const fn words(&self) -> &[u64; Self::WORDS] {
        &self.0
    }

    /// The zone.
    pub const fn zone(&self) -> Zone {
        self.tuple(0).zone()
    }

    /// The port that opened the connection.
    pub const fn opener(&self) -> PortNo {
        PortNo(self.0[12] as u32)
    }

    const fn tuple(&self, index: usize) -> Tuple {
        let from = index * Tuple::WORDS;
        let [a, b, c] = [self.0[from], self.0[from + 1], self.0[from + 2]];
        Tuple::from_words([a, b, c, self.0[from + 3], self.0[from + 4]])
    }

    pub(crate) fn of(entry: &Entry) -> Self {
        let mut words = [0; Self::WORDS];
        for (index, key) in entry.keys.iter().enumerate() {
            let from = index * Tuple::WORDS;
            words[from..from + Tuple::WORDS].copy_from_slice(&key.words());
        }
        [words[10], words[11]] = entry.label;
        words[12] = u64::from(entry.mark) << 32 | u64::from(entry.opener.0);
        let initiated = match &entry.machine {
            Machine::Sctp(sctp) => sctp.initiated(),
            _ => 0,
        };
        let (kind, state, detail) = match &entry.machine {
            Machine::Tcp(tcp) => (TCP, tcp.state() as u8, tcp.save()),
            Machine::Udp { .. } => (UDP, 0, 0),
            Machine::Icmp => (ICMP, 0, 0),
            Machine::Sctp(sctp) => (SCTP, sctp.state() as u8, sctp.save()),
            Machine::Other => (OTHER, 0, 0),
        };
        words[13] = u64::from_le_bytes([entry.status.bits(), kind, state, initiated, 0, 0, 0, 0]);
        words[14] = detail;
        words[Self::WORDS - 1] = checksum(&words[..Self::WORDS - 1]);
        Self(words)
    }

    /// Status bits, state machine and timeout of the connection. `None` if they are not possible.
    fn decode(&self, now_ms: u64) -> Option<(Status, Machine, Timeout)> {
        let [status, kind, state, initiated, ..] = self.0[13].to_le_bytes();
        let status = Status::from_bits(status)?;
        let [original, reply] = [self.tuple(0), self.tuple(1)];
        let is_pair = original.zone() == reply.zone()
            && original.is_v4() == reply.is_v4()
            && original.protocol() == reply.protocol();
        if !is_pair || !original.has_version() || !reply.has_version() {
            return None;
        }
        let protocol = original.protocol();
        let (machine, timeout) = match kind {
            TCP if protocol == wire::Protocol::TCP => {
                let tcp = Tcp::restore(state, self.0[14])?;
                (Machine::Tcp(tcp), tcp.state().timeout())
            }
            UDP if protocol == wire::Protocol::UDP => {
                let is_stream = status.has(Status::ASSURED);
                let timeout = if is_stream { Timeout::UdpStream } else { Timeout::Udp };
                let stream_after_ms = if is_stream { 0 } else { now_ms + UDP_STREAM_MS };
                (Machine::Udp { stream_after_ms }, timeout)
            }
            ICMP if original.is_icmp() => (Machine::Icmp, Timeout::Icmp),
            SCTP if protocol == wire::Protocol::SCTP => {
                let sctp = Sctp::restore(state, self.0[14], initiated)?;
                (Machine::Sctp(sctp), sctp.state().timeout())
            }
            OTHER if !original.has_ports() && !original.is_icmp() => {
                (Machine::Other, Timeout::Generic)
            }
            _ => return None,
        };
        Some((status, machine, timeout))
    }
}

/// A checksum that detects partially written words. Never 0.
pub fn checksum(words: &[u64]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let sum = words.iter().fold(FACTOR, |sum, word| {
        let mixed = (sum ^ word).wrapping_mul(FACTOR);
        mixed ^ mixed >> 29
    });
    sum.max(1)
}

impl Table {
    /// Saves the table's connections in `store` from now on.
    pub fn save_in(&mut self, store: Box<dyn Store>) {
        self.store = Some(store);
    }

    /// Adds the connection of a record. `absent_ms` is the time for which no packet could be
    /// tracked, and `opener` the port that opened it.
    ///
    /// # Errors
    /// The reason why it cannot be added. Nothing has changed then.
    pub fn restore(
        &mut self,
        now_ms: u64,
        record: &Record,
        absent_ms: u64,
        opener: PortNo,
    ) -> Result<(), RestoreError> {
        let (status, machine, timeout) = record.decode(now_ms).ok_or(RestoreError::Invalid)?;
        let timeout_ms = self.config.timeouts.ms(timeout);
        if timeout_ms <= absent_ms {
            return Err(RestoreError::Expired);
        }
        let keys = [record.tuple(0), record.tuple(1)];
        self.check_limits(keys[0].zone(), opener).map_err(RestoreError::Refused)?;
        if keys.iter().any(|key| self.index.find(&self.slab, key).is_some()) {
            return Err(RestoreError::Refused(CtDrop::Clash));
        }
        let generation = self.next_generation();
        let slot = self.insert(Entry {
            keys,
            generation,
            serial: generation,
            deadline_ms: now_ms.saturating_add(timeout_ms),
            label: [record.0[10], record.0[11]],
            mark: (record.0[12] >> 32) as u32,
            opener,
            status,
            machine,
            ..Entry::FREE
        });
        self.write_record(slot);
        Ok(())
    }

    /// Writes the record of a connection that has changed.
    #[inline]
    pub(crate) fn write_record(&mut self, slot: u32) {
        if let Some(store) = &mut self.store
            && let Some(entry) = self.slab.get(slot)
            && entry.status.has(Status::SEEN_REPLY)
        {
            store.write(slot, &Record::of(entry));
        }
    }

    /// Clears the record of a connection that is removed.
    #[inline]
    pub(crate) fn clear_record(&mut self, slot: u32) {
        if let Some(store) = &mut self.store
            && let Some(entry) = self.slab.get(slot)
            && entry.status.has(Status::SEEN_REPLY)
        {
            store.clear(slot);
        }
    }
}
