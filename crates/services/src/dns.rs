//! A DNS server (RFC 1035) for a configured set of names.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------------------------------+-+-------+-+-+-+-+-----+-------+
//! |   ID: chosen by the client    |Q|opcode |A|T|R|R|  0  | rcode |
//! +-------------------------------+-+-------+-+-+-+-+-----+-------+
//! |   number of questions         |   number of answers           |
//! +-------------------------------+-------------------------------+
//! |   authorities                 |   additional records          |
//! +---------------------------------------------------------------+
//! |   question: name, type (16), class (16)                       |
//! |   answers: name, type (16), class (16), TTL (32), length, data|
//! +---------------------------------------------------------------+
//! ```

use crate::domain_name;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// The UDP port of servers.
pub const PORT: u16 = 53;
/// The longest message over UDP without EDNS (RFC 1035 section 2.3.4).
const MAX_MESSAGE_LEN: usize = 512;
/// The longest name, in encoded bytes, and the longest label.
const MAX_NAME_LEN: usize = 255;
const MAX_LABEL_LEN: u8 = 63;
/// How long a client may keep a record, in seconds.
const TTL_S: u32 = 3600;

const HEADER_LEN: usize = 12;
const CLASS_IN: u16 = 1;
const CLASS_ANY: u16 = 255;
/// The header bits QR (response) and AA (authoritative answer); RFC 1035 section 4.1.1.
const RESPONSE: u8 = 0x80;
const AUTHORITATIVE: u8 = 0x04;
/// The header bits of the opcode, and RD, by which a client requests recursion.
const OPCODE: u8 = 0x78;
const RECURSION_DESIRED: u8 = 0x01;
const REFUSED: u8 = 5;

/// Types of records.
mod kind {
    pub const A: u16 = 1;
    pub const PTR: u16 = 12;
    pub const AAAA: u16 = 28;
    pub const ANY: u16 = 255;
}

/// A set of names with their records.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Records {
    /// The records by name, in lower case and without the dot at the end.
    names: BTreeMap<Box<str>, Record>,
    /// This set is authoritative: a question about one of its names gets an answer even if no
    /// record has the requested type.
    is_owner: bool,
}

/// Hashes only the number of names: hashing all names for each megaflow would be slow. Comparisons
/// are exact.
impl Hash for Records {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.names.len().hash(state);
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Record {
    Addresses {
        v4: Box<[Ipv4Addr]>,
        v6: Box<[Ipv6Addr]>,
    },
    /// A pointer record: an encoded name.
    Pointer(Box<[u8]>),
}

impl Records {
    /// Creates an empty set. With `is_owner`, the server refuses a question for an IPv4 address of
    /// a name that has only IPv6 addresses, and vice versa, so that the client does not wait for a
    /// timeout.
    pub const fn new(is_owner: bool) -> Self {
        Self { names: BTreeMap::new(), is_owner }
    }

    /// Adds the records of a name: IP addresses separated by spaces, or for reverse lookup the name
    /// of an address. An address may have a prefix length, which is ignored. Returns false if a
    /// part of `value` is invalid; the addresses before it are added, as OVN does.
    pub fn add(&mut self, name: &str, value: &str) -> bool {
        let (record, is_valid) = match addresses(value) {
            (list, _) if list.is_empty() => {
                let (value, mut encoded) = (value.trim(), Vec::new());
                let has_space = value.contains(char::is_whitespace);
                if has_space || domain_name::encode(value, &mut encoded).is_err() {
                    return false;
                }
                (Record::Pointer(encoded.into()), true)
            }
            (list, is_valid) => (Record::addresses(&list), is_valid),
        };
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        self.names.insert(name.into(), record);
        is_valid
    }
}

/// The addresses at the beginning of a text, and true if the text contains nothing else.
fn addresses(text: &str) -> (Vec<IpAddr>, bool) {
    let parse = |word: &str| word.split('/').next()?.parse().ok();
    let list: Vec<IpAddr> = text.split_whitespace().map_while(parse).collect();
    let is_whole = list.len() == text.split_whitespace().count();
    (list, is_whole)
}

impl Record {
    fn addresses(list: &[IpAddr]) -> Self {
        let v4 = list.iter().filter_map(|address| match address {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        });
        let v6 = list.iter().filter_map(|address| match address {
            IpAddr::V6(address) => Some(*address),
            IpAddr::V4(_) => None,
        });
        Self::Addresses { v4: v4.collect(), v6: v6.collect() }
    }
}

/// The sets of names that a switch answers for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Resolver(pub Box<[Arc<Records>]>);

impl Resolver {
    /// The UDP payload that answers a question. `None` for a name or type without a record, and for
    /// a message without exactly one question.
    pub fn answer(&self, payload: &[u8]) -> Option<Vec<u8>> {
        let question = Question::parse(payload)?;
        let mut sets = self.0.iter();
        let (record, is_owner) = sets.find_map(|records| {
            records.names.get(&*question.name).map(|record| (record, records.is_owner))
        })?;
        let mut out = Vec::with_capacity(MAX_MESSAGE_LEN);
        let [id_high, id_low, flags, ..] = *question.header;
        let kept = flags & (OPCODE | RECURSION_DESIRED);
        out.extend([id_high, id_low, RESPONSE | AUTHORITATIVE | kept, 0]);
        out.extend([0, 1, 0, 0, 0, 0, 0, 0]);
        out.extend(question.bytes);
        let turn = usize::from(u16::from_be_bytes([id_high, id_low]));
        let answers = append(&mut out, record, question.kind, turn);
        if answers == 0 {
            let is_refused = is_owner
                && matches!(record, Record::Addresses { .. })
                && matches!(question.kind, kind::A | kind::AAAA);
            if !is_refused {
                return None;
            }
            out[3] = REFUSED;
        }
        out[6..8].copy_from_slice(&answers.to_be_bytes());
        Some(out)
    }
}

/// Appends as many records as fit, and returns their number. `turn` rotates the addresses, so that
/// clients spread over them.
fn append(out: &mut Vec<u8>, record: &Record, question_type: u16, turn: usize) -> u16 {
    let mut answers = 0;
    let mut put = |kind: u16, data: &[u8]| {
        // A name, type, class, TTL and length.
        if out.len() + 12 + data.len() > MAX_MESSAGE_LEN {
            return;
        }
        // A pointer to the name of the question (RFC 1035 section 4.1.4).
        out.extend([0xc0, HEADER_LEN as u8]);
        out.extend([kind, CLASS_IN].map(u16::to_be_bytes).as_flattened());
        out.extend(TTL_S.to_be_bytes());
        // The cast is lossless: data fits the message.
        out.extend((data.len() as u16).to_be_bytes());
        out.extend(data);
        answers += 1;
    };
    match record {
        Record::Addresses { v4, v6 } => {
            if matches!(question_type, kind::A | kind::ANY) {
                rotated(v4, turn).for_each(|address| put(kind::A, &address.octets()));
            }
            if matches!(question_type, kind::AAAA | kind::ANY) {
                rotated(v6, turn).for_each(|address| put(kind::AAAA, &address.octets()));
            }
        }
        Record::Pointer(name) if question_type == kind::PTR => put(kind::PTR, name),
        Record::Pointer(_) => {}
    }
    answers
}

fn rotated<T>(list: &[T], turn: usize) -> impl Iterator<Item = &T> {
    let (before, after) = list.split_at(turn.checked_rem(list.len()).unwrap_or(0));
    after.iter().chain(before)
}

/// A message with one question.
struct Question<'a> {
    header: &'a [u8; HEADER_LEN],
    /// The name, in lower case and without the dot at the end.
    name: String,
    kind: u16,
    /// Name, type and class as received.
    bytes: &'a [u8],
}

impl<'a> Question<'a> {
    fn parse(payload: &'a [u8]) -> Option<Self> {
        let (header, rest) = payload.split_first_chunk::<HEADER_LEN>()?;
        let is_query = header[2] & (RESPONSE | OPCODE) == 0;
        if !is_query || header[4..6] != [0, 1] {
            return None;
        }
        let mut name = String::new();
        let mut after = rest;
        loop {
            let (&len, tail) = after.split_first()?;
            if len == 0 {
                after = tail;
                break;
            }
            // A larger length byte is a compression pointer, and the question has nothing to point
            // to.
            if len > MAX_LABEL_LEN || rest.len() - tail.len() + usize::from(len) >= MAX_NAME_LEN {
                return None;
            }
            let (label, tail) = tail.split_at_checked(len.into())?;
            // A label that contains a dot would be ambiguous in the text form, so it is rejected.
            let label = str::from_utf8(label).ok().filter(|label| !label.contains('.'))?;
            if !name.is_empty() {
                name.push('.');
            }
            name.push_str(label);
            after = tail;
        }
        let (&[a, b, c, d], tail) = after.split_first_chunk::<4>()?;
        if !matches!(u16::from_be_bytes([c, d]), CLASS_IN | CLASS_ANY) {
            return None;
        }
        name.make_ascii_lowercase();
        let bytes = rest.get(..rest.len() - tail.len())?;
        Some(Self { header, name, kind: u16::from_be_bytes([a, b]), bytes })
    }
}

#[cfg(test)]
mod tests;
