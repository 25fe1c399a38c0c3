//! Target: extracts the flow key of any frame.

use flow::{Field, FlowKey, PortNo, STAGES, extract};
use packet::PacketBuf;
use wire::ParseError;

const IPV4: u128 = 0x0800;
const ARP: u128 = 0x0806;
const RARP: u128 = 0x8035;
const IPV6: u128 = 0x86dd;
/// The maximum length of the headers that extraction reads, except for chains of extension headers.
const MAX_HEAD: usize = 160;

/// Extracts the flow key. The key must not depend on bytes after the IP packet or on where the
/// payload is stored, and must not contain fields of absent headers.
pub fn frame(bytes: &[u8]) -> Option<FlowKey> {
    let whole = key(&PacketBuf::from_bytes(bytes));
    let mut packet = PacketBuf::from_bytes(bytes);
    for cut in 0..=bytes.len().min(MAX_HEAD) {
        packet.set_ranges(0..cut, std::iter::once(cut..bytes.len()));
        if let Ok(in_pieces) = key(&packet) {
            assert_eq!(Ok(in_pieces), whole, "cut at {cut}");
        }
    }
    let whole = whole.ok()?;
    assert_layers(&whole);
    assert_end(bytes, &whole);
    Some(whole)
}

fn key(packet: &PacketBuf) -> Result<FlowKey, ParseError> {
    extract(packet, PortNo(1), None)
}

fn assert_end(bytes: &[u8], key: &FlowKey) {
    let located = wire::transport_offset(bytes).expect("a frame with a key");
    if located.is_ip() {
        // An IEEE 802.3 length may include padding, which the frame must then contain.
        let end = if located.has_snap() {
            let length = [bytes[located.type_offset()], bytes[located.type_offset() + 1]];
            located.type_offset() + 2 + usize::from(u16::from_be_bytes(length))
        } else {
            located.l3_end
        };
        let padded = [&bytes[..end], &[0xa5; 64]].concat();
        for frame in [&bytes[..end], &padded] {
            assert_eq!(self::key(&PacketBuf::from_bytes(frame)).as_ref(), Ok(key));
        }
    }
}

fn assert_layers(key: &FlowKey) {
    let is_zero = |fields: &[Field]| fields.iter().all(|&field| key.get(field) == 0);
    let ethertype = key.get(Field::EthType);
    let (is_v4, is_v6) = (ethertype == IPV4, ethertype == IPV6);
    let protocol = key.get(Field::IpProto);
    assert!(key.words()[1..STAGES[0].end].iter().all(|&word| word == 0), "{key:?}");
    assert!(is_v4 || is_zero(&[Field::Ip4Src, Field::Ip4Dst]), "{key:?}");
    assert!(is_v6 || is_zero(&[Field::Ip6Src, Field::Ip6Dst, Field::Ip6Label]), "{key:?}");
    assert!(!is_v6 || protocol != 0, "{key:?}");
    if !is_v4 && !is_v6 {
        assert!(is_zero(&[Field::IpProto, Field::IpTtl, Field::IpFrag, Field::IpDscp]), "{key:?}");
    }
    if !matches!(ethertype, ARP | RARP) {
        let fields = [Field::ArpSpa, Field::ArpTpa, Field::ArpSha, Field::ArpOp, Field::ArpTha];
        assert!(is_zero(&fields), "{key:?}");
    }
    let later = key.get(Field::IpFrag) == 3;
    assert!(key.get(Field::IpFrag) != 2, "{key:?}");
    let is = |protocols: &[u128]| (is_v4 || is_v6) && !later && protocols.contains(&protocol);
    assert!(is(&[6, 17, 132]) || is_zero(&[Field::TpSrc, Field::TpDst]), "{key:?}");
    assert!(is(&[6]) || is_zero(&[Field::TcpFlags]), "{key:?}");
    let icmp = [Field::IcmpType, Field::IcmpCode];
    assert!(is_v4 && is(&[1]) || is_v6 && is(&[58]) || is_zero(&icmp), "{key:?}");
    let message = icmp.map(|field| key.get(field));
    let (asks, tells) = (message == [135, 0], message == [136, 0]);
    assert!(is(&[58]) && (asks || tells) || is_zero(&[Field::NdTarget]), "{key:?}");
    assert!(is(&[58]) && asks || is_zero(&[Field::NdSll]), "{key:?}");
    assert!(is(&[58]) && tells || is_zero(&[Field::NdTll]), "{key:?}");
}
