//! ICMP (RFC 792), with the next-hop MTU of RFC 1191.

use super::{CHECKSUM_OFFSET, HEADER_LEN, echo_fields, echo_rest, icmp_accessors};
use crate::checksum::{Sum, checksum};
use crate::view::{array, put, put_u16, require, u16_at, view};
use crate::{Layer, ParseError, ParseErrorKind};

const ECHO_REPLY: u8 = 0;
const UNREACHABLE: u8 = 3;
const ECHO_REQUEST: u8 = 8;
const TIME_EXCEEDED: u8 = 11;

/// Port unreachable, a code of destination unreachable.
pub const CODE_PORT_UNREACHABLE: u8 = 3;
/// Fragmentation needed and DF set, a code of destination unreachable that
/// [`Icmpv4Repr::FragmentationNeeded`] represents.
pub const CODE_FRAGMENTATION_NEEDED: u8 = 4;

view! {
    /// A view of the payload of an IPv4 packet with protocol 1, cut to the IP length.
    Icmpv4Packet
}
icmp_accessors!(Icmpv4Packet, Layer::Icmpv4);

impl<T: AsRef<[u8]>> Icmpv4Packet<T> {
    /// True when the checksum over the whole buffer, which must be exactly the message, is correct.
    pub fn verify_checksum(&self) -> bool {
        Sum::of(self.bytes()).is_valid()
    }
}

/// An ICMP message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Icmpv4Repr<'a> {
    /// Echo request (type 8).
    EchoRequest {
        /// Identifier.
        ident: u16,
        /// Sequence number.
        seq: u16,
        /// Data, which the reply returns.
        data: &'a [u8],
    },
    /// Echo reply (type 0).
    EchoReply {
        /// Identifier.
        ident: u16,
        /// Sequence number.
        seq: u16,
        /// Data of the request.
        data: &'a [u8],
    },
    /// Fragmentation needed and DF set (type 3 code 4).
    FragmentationNeeded {
        /// MTU of the next hop, in bytes of IP packet; 0 from routers older than RFC 1191.
        mtu: u16,
        /// The beginning of the packet that caused the error.
        quoted: &'a [u8],
    },
    /// Destination unreachable for any other reason (type 3).
    Unreachable {
        /// Code; not 4.
        code: u8,
        /// The beginning of the packet that caused the error.
        quoted: &'a [u8],
    },
    /// Time exceeded (type 11).
    TimeExceeded {
        /// Code: 0 for time to live, 1 for reassembly.
        code: u8,
        /// The beginning of the packet that caused the error.
        quoted: &'a [u8],
    },
    /// Any other message, unchanged.
    Other {
        /// Type; none of those above.
        kind: u8,
        /// Code.
        code: u8,
        /// The four bytes that depend on the type.
        rest: [u8; 4],
        /// The bytes after the header.
        data: &'a [u8],
    },
}

impl<'a> Icmpv4Repr<'a> {
    /// Reads a checked view of exactly one message.
    ///
    /// # Errors
    /// `BadChecksum` for a wrong checksum; `BadField` for an echo with a code other than 0.
    pub fn parse<T: AsRef<[u8]> + ?Sized>(
        packet: &Icmpv4Packet<&'a T>,
    ) -> Result<Self, ParseError> {
        if !packet.verify_checksum() {
            return Err(ParseError { layer: Layer::Icmpv4, kind: ParseErrorKind::BadChecksum });
        }
        let (kind, code, rest, data) = (packet.kind(), packet.code(), packet.rest(), packet.data());
        let (ident, seq) = echo_fields(rest);
        Ok(match (kind, code) {
            (ECHO_REQUEST, 0) => Self::EchoRequest { ident, seq, data },
            (ECHO_REPLY, 0) => Self::EchoReply { ident, seq, data },
            (ECHO_REQUEST | ECHO_REPLY, _) => {
                return Err(ParseError::field(Layer::Icmpv4, "code of an echo"));
            }
            // The MTU has the position of an echo's sequence number.
            (UNREACHABLE, CODE_FRAGMENTATION_NEEDED) => {
                Self::FragmentationNeeded { mtu: seq, quoted: data }
            }
            (UNREACHABLE, code) => Self::Unreachable { code, quoted: data },
            (TIME_EXCEEDED, code) => Self::TimeExceeded { code, quoted: data },
            (kind, code) => Self::Other { kind, code, rest, data },
        })
    }

    /// Type, code, the last four bytes of the header, and the bytes after it.
    const fn parts(&self) -> (u8, u8, [u8; 4], &'a [u8]) {
        match *self {
            Self::EchoRequest { ident, seq, data } => {
                (ECHO_REQUEST, 0, echo_rest(ident, seq), data)
            }
            Self::EchoReply { ident, seq, data } => (ECHO_REPLY, 0, echo_rest(ident, seq), data),
            Self::FragmentationNeeded { mtu, quoted } => {
                (UNREACHABLE, CODE_FRAGMENTATION_NEEDED, echo_rest(0, mtu), quoted)
            }
            Self::Unreachable { code, quoted } => (UNREACHABLE, code, [0; 4], quoted),
            Self::TimeExceeded { code, quoted } => (TIME_EXCEEDED, code, [0; 4], quoted),
            Self::Other { kind, code, rest, data } => (kind, code, rest, data),
        }
    }

    /// Bytes that [`Icmpv4Repr::emit`] writes: the header and the bytes after it.
    pub const fn message_len(&self) -> usize {
        HEADER_LEN + self.parts().3.len()
    }

    /// Writes the message with its checksum.
    ///
    /// # Panics
    /// When the buffer is shorter than [`Icmpv4Repr::message_len`].
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Icmpv4Packet<T>) {
        let (kind, code, rest, data) = self.parts();
        let message = &mut packet.buffer.as_mut()[..self.message_len()];
        put(message, 0, [kind, code, 0, 0]);
        put(message, 4, rest);
        message[HEADER_LEN..].copy_from_slice(data);
        let sum = checksum(message);
        put_u16(message, CHECKSUM_OFFSET, sum);
    }
}
