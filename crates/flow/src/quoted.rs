//! Rewrites the packet that an ICMP or ICMPv6 error quotes, for NAT.

use packet::PacketBuf;
use wire::checksum::{update_bytes, update_udp};
use wire::{Fragment, Ipv4Packet, Ipv6Packet, Located, Protocol, icmp, ipv4, tcp, udp};

use crate::rewrite::{ChecksumCoverage, FieldPosition, icmp_kind, write};

/// A field of a quoted packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QuotedField {
    /// The IP source address.
    Src,
    /// The IP destination address.
    Dst,
    /// The source port of TCP, UDP or SCTP.
    SrcPort,
    /// The destination port of TCP, UDP or SCTP.
    DstPort,
    /// The identifier of an ICMP or ICMPv6 request or reply.
    IcmpIdent,
}

/// Rewrites a field of the packet that the ICMP or ICMPv6 error `packet` quotes. Updates the
/// checksums of the error and those checksums of the quoted packet that the quote contains. A frame
/// that quotes no such field is not changed.
///
/// The checksum of a quoted SCTP packet is not updated: it covers bytes that are not quoted.
pub fn set_quoted_field(packet: &mut PacketBuf, field: QuotedField, value: u128) {
    let Ok(at) = packet.located() else { return };
    let Some(quote) = Quote::locate(packet.head(), &at) else { return };
    let Some((position, len)) = quote.position(field) else { return };
    let old = bytes(packet.head(), position, len);
    let new = value.to_be_bytes();
    let (old, new) = (&old[16 - len..], &new[16 - len..]);
    if old == new {
        return;
    }
    set(packet, &at, position, len, value);
    let is_address = matches!(field, QuotedField::Src | QuotedField::Dst);
    if is_address && quote.is_v4 {
        update(packet, &at, quote.ip + ipv4::CHECKSUM_OFFSET, |sum| update_bytes(sum, old, new));
    }
    if let Some(offset) = quote.checksum_offset(is_address) {
        update(packet, &at, offset, |sum| match quote.protocol {
            Protocol::UDP => update_udp(sum, |sum| update_bytes(sum, old, new)),
            _ => update_bytes(sum, old, new),
        });
    }
}

/// The parts of a quoted packet, as byte positions in the frame.
struct Quote {
    is_v4: bool,
    protocol: Protocol,
    /// The quoted IP header.
    ip: usize,
    /// The quoted transport header; `None` in a later fragment.
    transport: Option<usize>,
    /// The end of the quote.
    end: usize,
}

impl Quote {
    fn locate(head: &[u8], at: &Located) -> Option<Self> {
        let (message, [kind, _]) = icmp_kind(head, at)?;
        let is_v4 = at.protocol == Protocol::ICMP;
        let is_error = if is_v4 { matches!(kind, 3 | 4 | 5 | 11 | 12) } else { kind < 128 };
        let ip = message + icmp::HEADER_LEN;
        let end = at.l3_end.min(head.len());
        let quote = head.get(ip..end).filter(|_| is_error)?;
        let (protocol, offset, fragment) = if is_v4 {
            let header = Ipv4Packet::new_header(quote).ok()?;
            (header.protocol(), header.header_len(), header.fragment())
        } else {
            let upper = Ipv6Packet::new_header(quote).ok()?.upper().ok()?;
            (upper.protocol, upper.offset, upper.fragmentation())
        };
        let transport = (fragment != Fragment::Later).then_some(ip + offset);
        Some(Self { is_v4, protocol, ip, transport, end })
    }

    /// Position and length of a field, in bytes.
    fn position(&self, field: QuotedField) -> Option<(usize, usize)> {
        let (src, dst, len) = if self.is_v4 { (12, 16, 4) } else { (8, 24, 16) };
        let has_ports = matches!(self.protocol, Protocol::TCP | Protocol::UDP | Protocol::SCTP);
        let in_transport = |applies: bool, offset| {
            let at = self.transport.filter(|_| applies)? + offset;
            (at + 2 <= self.end).then_some((at, 2))
        };
        match field {
            QuotedField::Src => Some((self.ip + src, len)),
            QuotedField::Dst => Some((self.ip + dst, len)),
            QuotedField::SrcPort => in_transport(has_ports, 0),
            QuotedField::DstPort => in_transport(has_ports, 2),
            QuotedField::IcmpIdent => in_transport(self.is_icmp(), 4),
        }
    }

    fn is_icmp(&self) -> bool {
        self.protocol == if self.is_v4 { Protocol::ICMP } else { Protocol::ICMPV6 }
    }

    /// Position of the transport checksum that covers the field, if the quote contains the whole
    /// transport header.
    fn checksum_offset(&self, is_address: bool) -> Option<usize> {
        let (offset, header_len) = match self.protocol {
            Protocol::TCP => (tcp::CHECKSUM_OFFSET, tcp::MIN_HEADER_LEN),
            Protocol::UDP => (udp::CHECKSUM_OFFSET, udp::HEADER_LEN),
            // ICMP for IPv4 has no pseudo header.
            _ if self.is_icmp() && !(self.is_v4 && is_address) => {
                (icmp::CHECKSUM_OFFSET, icmp::HEADER_LEN)
            }
            _ => return None,
        };
        let transport = self.transport?;
        (transport + header_len <= self.end).then_some(transport + offset)
    }
}

/// `len` bytes at `at`, right-aligned.
fn bytes(head: &[u8], at: usize, len: usize) -> [u8; 16] {
    let mut out = [0; 16];
    if let Some(from) = head.get(at..at + len) {
        out[16 - len..].copy_from_slice(from);
    }
    out
}

/// Writes `len` bytes in the ICMP error, and updates the error's checksum.
fn set(packet: &mut PacketBuf, at: &Located, position: usize, len: usize, value: u128) {
    let position = FieldPosition::new(position, len, 0, ChecksumCoverage::Transport);
    // Only SCTP rewrites can fail.
    let _ = write(packet, at, position, value, u128::MAX);
}

/// Changes a checksum in the quoted packet, and updates the checksum of the ICMP error.
fn update(packet: &mut PacketBuf, at: &Located, position: usize, change: impl FnOnce(u16) -> u16) {
    let [.., a, b] = bytes(packet.head(), position, 2);
    set(packet, at, position, 2, change(u16::from_be_bytes([a, b])).into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::checksum::{checksum, pseudo_v4};

    const SRC: [u8; 4] = [10, 0, 0, 1];
    const DST: [u8; 4] = [10, 0, 0, 2];

    fn ip(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let len = (20 + payload.len()) as u16;
        let mut header =
            [&[0x45, 0][..], &len.to_be_bytes(), &[0; 4], &[64, protocol, 0, 0]].concat();
        header.extend(SRC);
        header.extend(DST);
        let sum = checksum(&header).to_be_bytes();
        header[10..12].copy_from_slice(&sum);
        [&header, payload].concat()
    }

    /// An ICMP message of this type about a UDP packet, of which `len` bytes are quoted.
    fn message(kind: u8, len: usize) -> PacketBuf {
        let mut udp =
            [&5000_u16.to_be_bytes()[..], &53_u16.to_be_bytes(), &[0, 12, 0, 0], b"data"].concat();
        let sum = pseudo_v4(SRC.into(), DST.into(), Protocol::UDP, 12).bytes(&udp).udp_checksum();
        udp[6..8].copy_from_slice(&sum.to_be_bytes());
        let quote = ip(17, &udp);
        let mut icmp = [&[kind, 0, 0, 0, 0, 0, 0, 0], &quote[..len.min(quote.len())]].concat();
        let sum = checksum(&icmp).to_be_bytes();
        icmp[2..4].copy_from_slice(&sum);
        PacketBuf::from_bytes(&[&[2; 12][..], &[8, 0], &ip(1, &icmp)].concat())
    }

    #[test]
    fn checksums_stay_right_when_a_quoted_field_changes() {
        for len in [22, 24, 28, 32] {
            let mut packet = message(3, len);
            for (field, value) in [
                (QuotedField::Src, 0xc000_0209),
                (QuotedField::Dst, 0xc000_020a),
                (QuotedField::SrcPort, 1),
                (QuotedField::DstPort, 2),
                (QuotedField::IcmpIdent, 3),
            ] {
                set_quoted_field(&mut packet, field, value);
            }
            let message = &packet.head()[34..];
            assert_eq!(checksum(message), 0, "checksum of the error");
            let quote = &message[8..];
            assert_eq!(quote[12..20], [0xc0, 0, 2, 9, 0xc0, 0, 2, 10]);
            assert_eq!(checksum(&quote[..20]), 0, "checksum of the quoted header");
            let ports = if len < 24 { [0, 1, 0x13, 0x88] } else { [0, 1, 0, 2] };
            assert_eq!(quote[20..22], ports[..2]);
            if len == 32 {
                let pseudo =
                    pseudo_v4([192, 0, 2, 9].into(), [192, 0, 2, 10].into(), Protocol::UDP, 12);
                assert!(pseudo.bytes(&quote[20..]).is_valid(), "checksum of the quoted datagram");
            }
        }
    }

    #[test]
    fn frame_is_unchanged_when_it_quotes_nothing() {
        for mut packet in [message(8, 32), message(3, 10), message(3, 0)] {
            let before = packet.to_vec();
            for field in [QuotedField::Src, QuotedField::DstPort, QuotedField::IcmpIdent] {
                set_quoted_field(&mut packet, field, 77);
            }
            assert_eq!(packet.to_vec(), before);
        }
    }
}
