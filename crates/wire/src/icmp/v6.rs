//! ICMPv6 (RFC 4443); neighbour discovery is in [`super::nd`].

use super::nd::{self, NdRepr};
use super::{CHECKSUM_OFFSET, HEADER_LEN, echo_fields, echo_rest, icmp_accessors};
use crate::checksum::Sum;
use crate::view::{array, put, put_u16, require, u16_at, view};
use crate::{Layer, ParseError, ParseErrorKind};

const UNREACHABLE: u8 = 1;
pub(super) const PACKET_TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;
const PARAMETER_PROBLEM: u8 = 4;
const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;

/// Port unreachable, a code of destination unreachable.
pub const CODE_PORT_UNREACHABLE: u8 = 4;

view! {
    /// A view of the upper layer of an IPv6 packet with protocol 58, cut to the IP length.
    Icmpv6Packet
}
icmp_accessors!(Icmpv6Packet, Layer::Icmpv6);

impl<T: AsRef<[u8]>> Icmpv6Packet<T> {
    /// True when the checksum over the pseudo header and the whole buffer is correct. The buffer
    /// must be exactly the message.
    pub fn verify_checksum(&self, pseudo: Sum) -> bool {
        pseudo.bytes(self.bytes()).is_valid()
    }
}

/// An ICMPv6 message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Icmpv6Repr<'a> {
    /// Destination unreachable (type 1).
    Unreachable {
        /// Code.
        code: u8,
        /// The beginning of the packet that caused the error.
        quoted: &'a [u8],
    },
    /// Packet too big (type 2).
    PacketTooBig {
        /// MTU of the next hop, in bytes of IP packet.
        mtu: u32,
        /// The beginning of the packet that caused the error.
        quoted: &'a [u8],
    },
    /// Time exceeded (type 3).
    TimeExceeded {
        /// Code: 0 for hop limit, 1 for reassembly.
        code: u8,
        /// The beginning of the packet that caused the error.
        quoted: &'a [u8],
    },
    /// Parameter problem (type 4).
    ParameterProblem {
        /// Code: 0 for an erroneous field, 1 for an unknown next header, 2 for an unknown option.
        code: u8,
        /// Offset of the error in the quoted packet, in bytes.
        pointer: u32,
        /// The beginning of the packet that caused the error.
        quoted: &'a [u8],
    },
    /// Echo request (type 128).
    EchoRequest {
        /// Identifier.
        ident: u16,
        /// Sequence number.
        seq: u16,
        /// Data, which the reply returns.
        data: &'a [u8],
    },
    /// Echo reply (type 129).
    EchoReply {
        /// Identifier.
        ident: u16,
        /// Sequence number.
        seq: u16,
        /// Data of the request.
        data: &'a [u8],
    },
    /// Neighbour discovery (types 133 to 137).
    Nd(NdRepr<'a>),
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

impl<'a> Icmpv6Repr<'a> {
    /// Reads a checked view of exactly one message.
    ///
    /// `pseudo` is the sum of its pseudo header, `hop_limit` that of the IPv6 header. Neighbour
    /// discovery uses the hop limit to reject messages that a router has forwarded.
    ///
    /// # Errors
    /// `BadChecksum` for a wrong checksum; `BadField` for an echo with a code other than 0; any
    /// error of [`NdRepr::parse`].
    pub fn parse<T: AsRef<[u8]> + ?Sized>(
        packet: &Icmpv6Packet<&'a T>,
        pseudo: Sum,
        hop_limit: u8,
    ) -> Result<Self, ParseError> {
        if !packet.verify_checksum(pseudo) {
            return Err(ParseError { layer: Layer::Icmpv6, kind: ParseErrorKind::BadChecksum });
        }
        let (kind, code, rest, data) = (packet.kind(), packet.code(), packet.rest(), packet.data());
        let (ident, seq) = echo_fields(rest);
        let word = u32::from_be_bytes(rest);
        Ok(match (kind, code) {
            (UNREACHABLE, code) => Self::Unreachable { code, quoted: data },
            // Receivers ignore the code of "packet too big" (RFC 4443 section 3.2).
            (PACKET_TOO_BIG, _) => Self::PacketTooBig { mtu: word, quoted: data },
            (TIME_EXCEEDED, code) => Self::TimeExceeded { code, quoted: data },
            (PARAMETER_PROBLEM, code) => {
                Self::ParameterProblem { code, pointer: word, quoted: data }
            }
            (ECHO_REQUEST, 0) => Self::EchoRequest { ident, seq, data },
            (ECHO_REPLY, 0) => Self::EchoReply { ident, seq, data },
            (ECHO_REQUEST | ECHO_REPLY, _) => {
                return Err(ParseError::field(Layer::Icmpv6, "code of an echo"));
            }
            (nd::FIRST_KIND..=nd::LAST_KIND, _) => Self::Nd(NdRepr::parse(packet, hop_limit)?),
            (kind, code) => Self::Other { kind, code, rest, data },
        })
    }

    /// Bytes that [`Icmpv6Repr::emit`] writes: the header and the bytes after it.
    pub const fn message_len(&self) -> usize {
        match self {
            Self::Nd(nd) => nd.message_len(),
            Self::Unreachable { quoted: data, .. }
            | Self::PacketTooBig { quoted: data, .. }
            | Self::TimeExceeded { quoted: data, .. }
            | Self::ParameterProblem { quoted: data, .. }
            | Self::EchoRequest { data, .. }
            | Self::EchoReply { data, .. }
            | Self::Other { data, .. } => HEADER_LEN + data.len(),
        }
    }

    /// Writes the message with its checksum; `pseudo` is the sum of the pseudo header for
    /// [`Icmpv6Repr::message_len`] bytes.
    ///
    /// # Panics
    /// When the buffer is shorter than [`Icmpv6Repr::message_len`].
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Icmpv6Packet<T>, pseudo: Sum) {
        let message = &mut packet.buffer.as_mut()[..self.message_len()];
        match *self {
            Self::Nd(nd) => nd.emit(message),
            Self::Unreachable { code, quoted } => {
                put_all(message, UNREACHABLE, code, [0; 4], quoted)
            }
            Self::PacketTooBig { mtu, quoted } => {
                put_all(message, PACKET_TOO_BIG, 0, mtu.to_be_bytes(), quoted);
            }
            Self::TimeExceeded { code, quoted } => {
                put_all(message, TIME_EXCEEDED, code, [0; 4], quoted);
            }
            Self::ParameterProblem { code, pointer, quoted } => {
                put_all(message, PARAMETER_PROBLEM, code, pointer.to_be_bytes(), quoted);
            }
            Self::EchoRequest { ident, seq, data } => {
                put_all(message, ECHO_REQUEST, 0, echo_rest(ident, seq), data);
            }
            Self::EchoReply { ident, seq, data } => {
                put_all(message, ECHO_REPLY, 0, echo_rest(ident, seq), data);
            }
            Self::Other { kind, code, rest, data } => put_all(message, kind, code, rest, data),
        }
        put_u16(message, CHECKSUM_OFFSET, 0);
        let checksum = pseudo.bytes(message).checksum();
        put_u16(message, CHECKSUM_OFFSET, checksum);
    }
}

fn put_all(message: &mut [u8], kind: u8, code: u8, rest: [u8; 4], data: &[u8]) {
    put(message, 0, [kind, code]);
    put(message, 4, rest);
    message[HEADER_LEN..].copy_from_slice(data);
}
