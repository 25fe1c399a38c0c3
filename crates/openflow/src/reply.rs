//! Replies to requests.

use crate::flows::{Selection, each_flow, each_group};
use crate::message::{Header, Refusal, Version, be16, error, kind, message};
use pipeline::Program;

/// The type of a bridge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BridgeKind {
    /// The integration bridge. It shows the flows of the program.
    Integration,
    /// A bridge that forwards as a learning switch.
    Provider,
}

mod multipart {
    pub const FLOW: u16 = 1;
    pub const GROUP_DESC: u16 = 7;
    pub const TABLE_V10: u16 = 3;
    pub const TABLE_FEATURES: u16 = 12;
    pub const PORT_DESC: u16 = 13;
    pub const EXTENSION: u16 = 0xffff;
    /// More parts follow.
    pub const MORE: u16 = 1;
}

/// Extensions of Open vSwitch for OpenFlow 1.0.
mod extension {
    /// The vendor number, and the type of statistics: flows.
    pub const FLOW: [u8; 8] = [0, 0, 0x23, 0x20, 0, 0, 0, 0];
    /// The vendor number, and the type of statistics: descriptions of groups.
    pub const GROUP_DESC: [u8; 8] = [0, 0, 0x23, 0x20, 0, 0, 0, 8];
    /// The vendor number, and a type: the client selects a match format.
    pub const FLOW_FORMAT: [u8; 8] = [0, 0, 0x23, 0x20, 0, 0, 0, 12];
    /// The vendor number, and a type: changes of flows name a table.
    pub const FLOW_MOD_TABLE: [u8; 8] = [0, 0, 0x23, 0x20, 0, 0, 0, 15];
}

/// The longest part of a reply, in bytes, before its last entry.
const PART_LEN: usize = 16 * 1024;

/// The first message of a connection. It offers OpenFlow 1.0 and 1.3.
pub fn hello() -> Vec<u8> {
    let versions = 1 << Version::V10.number() | 1 << Version::V13.number();
    message(Version::V13, kind::HELLO, 0, &[0, 1, 0, 8, 0, 0, 0, versions])
}

/// Calls `send` with the messages that answer a request. `program` is called for requests about
/// flows.
///
/// # Errors
/// The error of `send`.
pub fn reply<E>(
    request: &[u8],
    bridge: BridgeKind,
    program: impl FnOnce() -> Program,
    mut send: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let Some((header, body)) = Header::parse(request) else { return Ok(()) };
    let xid = header.xid;
    let Some(version) = header.version else {
        // The HELLO of a client carries its newest version.
        return match header.kind {
            kind::HELLO | kind::ERROR => Ok(()),
            _ => send(&error(Version::V13, xid, Refusal::BAD_VERSION, request)),
        };
    };
    let kinds = version.kinds();
    let refused = |refusal| error(version, xid, refusal, request);
    match header.kind {
        kind::HELLO | kind::ERROR | kind::ECHO_REPLY => Ok(()),
        kind::ECHO_REQUEST => send(&message(version, kind::ECHO_REPLY, xid, body)),
        kind if kind == kinds.barrier_request => {
            send(&message(version, kinds.barrier_reply, xid, &[]))
        }
        kind::FEATURES_REQUEST => send(&message(version, kind::FEATURES_REPLY, xid, &FEATURES)),
        kind::EXTENSION => {
            let known = [extension::FLOW_FORMAT, extension::FLOW_MOD_TABLE];
            match body.first_chunk().is_some_and(|start| known.contains(start)) {
                true => Ok(()),
                false => send(&refused(Refusal::BAD_TYPE)),
            }
        }
        kind::FLOW_MOD if bridge == BridgeKind::Provider && adds_normal(version, body) => Ok(()),
        kind::FLOW_MOD => send(&refused(Refusal::NOT_PERMITTED)),
        kind if kind == kinds.multipart_request => {
            let request = match StatisticsRequest::parse(version, body) {
                Ok(request) => request,
                Err(refusal) => return send(&refused(refusal)),
            };
            let program = match bridge {
                BridgeKind::Integration => program(),
                BridgeKind::Provider => Program::default(),
            };
            let start = request.reply_start(version);
            let mut parts = MultipartReply { version, xid, start, body: Vec::new(), send };
            match request {
                StatisticsRequest::Flows(selection) => {
                    if bridge == BridgeKind::Provider && selection.selects_first() {
                        parts.add(&normal_entry(version))?;
                    }
                    each_flow(&program, version, selection, |entry| parts.add(entry))?;
                }
                StatisticsRequest::Groups => {
                    each_group(&program, version, |entry| parts.add(entry))?
                }
                StatisticsRequest::Tables if version == Version::V13 => parts.add(&TABLE)?,
                StatisticsRequest::Tables | StatisticsRequest::Ports => {}
            }
            parts.finish()
        }
        _ => send(&refused(Refusal::BAD_TYPE)),
    }
}

/// The body of the features reply: datapath ID 0, no buffers, 254 tables, flow statistics. The list
/// of ports, which follows in OpenFlow 1.0, is empty.
const FEATURES: [u8; 24] =
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 254, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];

/// The features of table 0, without a name. The reply must contain a table with eight properties,
/// which are empty.
const TABLE: [u8; 128] = {
    let mut table = [0; 128];
    table[1] = 128;
    let mut property = 0;
    while property < 8 {
        // Only even property types. The odd ones describe table-miss flows.
        table[64 + 8 * property + 1] = 2 * property as u8;
        table[64 + 8 * property + 3] = 4;
        property += 1;
    }
    table
};

/// The action that outputs to the port `NORMAL`. Its last field, a length for a controller, is not
/// used.
const NORMAL_V10: [u8; 8] = [0, 0, 0, 8, 0xff, 0xfa, 0, 0];
/// The instruction of OpenFlow 1.3 that outputs to the port `NORMAL`.
const NORMAL_V13: [u8; 24] =
    [0, 4, 0, 24, 0, 0, 0, 0, 0, 0, 0, 16, 0xff, 0xff, 0xff, 0xfa, 0, 0, 0, 0, 0, 0, 0, 0];
/// A match of any packet, in OpenFlow 1.3.
const ANY_V13: [u8; 8] = [0, 1, 0, 4, 0, 0, 0, 0];

/// The flow of a provider bridge: table 0, priority 0, any packet, `NORMAL`.
fn normal_entry(version: Version) -> Vec<u8> {
    let mut entry = vec![0; 48];
    match version {
        Version::V10 => entry.extend(NORMAL_V10),
        Version::V13 => {
            entry.extend(ANY_V13);
            entry.extend(NORMAL_V13);
        }
    }
    let len = be16(entry.len());
    entry[..2].copy_from_slice(&len);
    entry
}

/// True for a change of flows that adds `actions=NORMAL` for all packets.
fn adds_normal(version: Version, body: &[u8]) -> bool {
    let part = |from: usize, len: usize| body.get(from..from + len).unwrap_or_default();
    // Ignores the length for a controller.
    let is = |from: usize, expected: &[u8], ignored: usize| {
        body.len() == from + expected.len()
            && part(from, expected.len()).iter().zip(expected).enumerate().all(
                |(at, (byte, expected))| (ignored..ignored + 2).contains(&at) || byte == expected,
            )
    };
    match version {
        Version::V10 => {
            // A match has 40 bytes. The first four are the wildcards. An address is ignored if the
            // number of its wildcarded bits is 32 or more.
            let wildcards = part(0, 4).iter().fold(0_u32, |all, byte| all << 8 | u32::from(*byte));
            let is_any = wildcards & 0x30_00ff == 0x30_00ff
                && [8, 14].iter().all(|first| wildcards >> first & 0x20 != 0);
            is_any && part(48, 2) == [0, 0] && is(64, &NORMAL_V10, 6)
        }
        Version::V13 => {
            body.get(17) == Some(&0) && part(40, 8) == ANY_V13 && is(48, &NORMAL_V13, 16)
        }
    }
}

/// A request for statistics.
#[derive(Debug, PartialEq, Eq)]
enum StatisticsRequest {
    Flows(Selection),
    Groups,
    /// The names of tables. The tables have no names.
    Tables,
    /// The ports. The reply is an empty list.
    Ports,
}

impl StatisticsRequest {
    fn parse(version: Version, body: &[u8]) -> Result<Self, Refusal> {
        let (kind, rest) = body.split_first_chunk::<2>().ok_or(Refusal::BAD_LENGTH)?;
        match (version, u16::from_be_bytes(*kind)) {
            (Version::V10, multipart::EXTENSION) => {
                let rest = rest.get(2..).unwrap_or_default();
                if rest.starts_with(&extension::GROUP_DESC) {
                    return Ok(Self::Groups);
                }
                if !rest.starts_with(&extension::FLOW) {
                    return Err(Refusal::BAD_MULTIPART);
                }
                let fixed = rest.get(12..20).ok_or(Refusal::BAD_LENGTH)?;
                // Any port, and no match. Other selections are not supported.
                match *fixed {
                    [0xff, 0xff, 0, 0, table, ..] if rest.len() == 20 => {
                        let table = (table != 255).then_some(table);
                        Ok(Self::Flows(Selection { table, cookie: 0, cookie_mask: 0 }))
                    }
                    _ => Err(Refusal::BAD_MATCH),
                }
            }
            (Version::V13, multipart::FLOW) => {
                let rest = rest.get(6..).unwrap_or_default();
                let (fixed, condition) =
                    rest.split_first_chunk::<32>().ok_or(Refusal::BAD_LENGTH)?;
                // Any port, any group, any packet. Other selections are not supported.
                if fixed[4..12] != [0xff; 8] || condition != ANY_V13 {
                    return Err(Refusal::BAD_MATCH);
                }
                let number = |at: usize| {
                    let bytes = fixed[at..at + 8].iter();
                    bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
                };
                Ok(Self::Flows(Selection {
                    table: (fixed[0] != 255).then_some(fixed[0]),
                    cookie: number(16),
                    cookie_mask: number(24),
                }))
            }
            (Version::V13, multipart::GROUP_DESC) => Ok(Self::Groups),
            (Version::V13, multipart::PORT_DESC) => Ok(Self::Ports),
            (Version::V10, multipart::TABLE_V10) | (Version::V13, multipart::TABLE_FEATURES) => {
                Ok(Self::Tables)
            }
            _ => Err(Refusal::BAD_MULTIPART),
        }
    }

    /// The start of the body of a reply. Its third and fourth byte are flags.
    fn reply_start(&self, version: Version) -> Vec<u8> {
        let (kind, extension) = match (self, version) {
            (Self::Flows(_), Version::V10) => (multipart::EXTENSION, Some(extension::FLOW)),
            (Self::Groups, Version::V10) => (multipart::EXTENSION, Some(extension::GROUP_DESC)),
            (Self::Tables, Version::V10) => (multipart::TABLE_V10, None),
            (Self::Flows(_), Version::V13) => (multipart::FLOW, None),
            (Self::Groups, Version::V13) => (multipart::GROUP_DESC, None),
            (Self::Tables, Version::V13) => (multipart::TABLE_FEATURES, None),
            (Self::Ports, _) => (multipart::PORT_DESC, None),
        };
        let mut start = kind.to_be_bytes().to_vec();
        start.extend([0; 2]);
        if version == Version::V10 && extension.is_none() {
            return start;
        }
        start.extend(extension.into_iter().flatten());
        start.extend([0; 4]);
        start
    }
}

impl Selection {
    /// True if a flow of table 0 with cookie 0 is selected.
    fn selects_first(&self) -> bool {
        self.table.unwrap_or(0) == 0 && self.cookie & self.cookie_mask == 0
    }
}

/// A reply in parts.
struct MultipartReply<S> {
    version: Version,
    xid: u32,
    start: Vec<u8>,
    body: Vec<u8>,
    send: S,
}

impl<E, S: FnMut(&[u8]) -> Result<(), E>> MultipartReply<S> {
    fn add(&mut self, entry: &[u8]) -> Result<(), E> {
        if self.body.len() + entry.len() > PART_LEN && !self.body.is_empty() {
            self.flush(multipart::MORE)?;
        }
        self.body.extend(entry);
        Ok(())
    }

    fn flush(&mut self, flags: u16) -> Result<(), E> {
        let mut part = self.start.clone();
        part[2..4].copy_from_slice(&flags.to_be_bytes());
        part.append(&mut self.body);
        (self.send)(&message(self.version, self.version.kinds().multipart_reply, self.xid, &part))
    }

    fn finish(mut self) -> Result<(), E> {
        self.flush(0)
    }
}
