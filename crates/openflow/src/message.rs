//! Message headers, and error messages.

/// The length of the header of a message, in bytes.
pub const HEADER_LEN: usize = 8;

/// A version of OpenFlow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Version {
    /// 1.0 with Open vSwitch's extended match, which ovs-ofctl uses by default.
    V10,
    /// 1.3.
    V13,
}

impl Version {
    /// The number in headers.
    pub const fn number(self) -> u8 {
        match self {
            Self::V10 => 1,
            Self::V13 => 4,
        }
    }
}

/// The types of messages that all versions share.
pub(crate) mod kind {
    pub const HELLO: u8 = 0;
    pub const ERROR: u8 = 1;
    pub const ECHO_REQUEST: u8 = 2;
    pub const ECHO_REPLY: u8 = 3;
    /// A message of an extension. Its body begins with the vendor number.
    pub const EXTENSION: u8 = 4;
    pub const FEATURES_REQUEST: u8 = 5;
    pub const FEATURES_REPLY: u8 = 6;
    pub const FLOW_MOD: u8 = 14;
}

/// The types of messages that versions number differently.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kinds {
    pub multipart_request: u8,
    pub multipart_reply: u8,
    pub barrier_request: u8,
    pub barrier_reply: u8,
}

impl Version {
    pub const fn kinds(self) -> Kinds {
        let first = match self {
            Self::V10 => 16,
            Self::V13 => 18,
        };
        Kinds {
            multipart_request: first,
            multipart_reply: first + 1,
            barrier_request: first + 2,
            barrier_reply: first + 3,
        }
    }
}

/// The reason why a request is refused: type and code of an error message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refusal(u16, u16);

impl Refusal {
    pub const BAD_VERSION: Self = Self(1, 0);
    pub const BAD_TYPE: Self = Self(1, 1);
    pub const BAD_MULTIPART: Self = Self(1, 2);
    pub const NOT_PERMITTED: Self = Self(1, 5);
    pub const BAD_LENGTH: Self = Self(1, 6);
    /// A request with a match that is not supported.
    pub const BAD_MATCH: Self = Self(1, 5);
}

/// The header of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    /// `None` for a version that is not supported.
    pub version: Option<Version>,
    pub kind: u8,
    /// The transaction number, which a reply repeats.
    pub xid: u32,
}

impl Header {
    /// Splits a message into header and body.
    pub fn parse(message: &[u8]) -> Option<(Self, &[u8])> {
        let (header, body) = message.split_first_chunk::<HEADER_LEN>()?;
        let [version, kind, _, _, xid @ ..] = *header;
        let mut versions = [Version::V10, Version::V13].into_iter();
        let version = versions.find(|known| known.number() == version);
        Some((Self { version, kind, xid: u32::from_be_bytes(xid) }, body))
    }
}

/// The length of the message with this header, in bytes. `None` if it is shorter than a header.
pub fn message_len(header: &[u8; HEADER_LEN]) -> Option<usize> {
    let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    (len >= HEADER_LEN).then_some(len)
}

/// A message. The body is at most 65,527 bytes long.
pub(crate) fn message(version: Version, kind: u8, xid: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![version.number(), kind];
    bytes.extend(be16(HEADER_LEN + body.len()));
    bytes.extend(xid.to_be_bytes());
    bytes.extend(body);
    bytes
}

/// An error message, which quotes the start of the request.
pub(crate) fn error(
    version: Version,
    xid: u32,
    Refusal(kind, code): Refusal,
    request: &[u8],
) -> Vec<u8> {
    /// The standard requires that an error quotes at least this many bytes of the request.
    const QUOTED: usize = 64;
    let mut body = [kind.to_be_bytes(), code.to_be_bytes()].concat();
    body.extend(request.iter().take(QUOTED));
    message(version, kind::ERROR, xid, &body)
}

/// A length in wire format. Callers keep it below 65,536.
pub(crate) fn be16(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()
}

/// Appends zeros up to a multiple of 8 bytes, counted from `start`.
pub(crate) fn pad(bytes: &mut Vec<u8>, start: usize) {
    while !(bytes.len() - start).is_multiple_of(8) {
        bytes.push(0);
    }
}
