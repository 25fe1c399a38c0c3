//! The naive readings: offsets and bits as the RFCs draw them, without code of the product.

use super::packets::{Inner, SttCase};
use flow::{DecapOptions, DropReason};

/// Bytes of an Ethernet header, the least that a frame has.
const ETHERNET: usize = 14;
const TEB: u16 = 0x6558;

/// What a tunnel header says: datapath, ingress and egress port (0 if there is none), and the
/// offset of the inner frame.
#[derive(PartialEq, Eq, Debug)]
pub struct Header {
    pub key: (u32, u16, u16),
    pub inner: usize,
}

/// What the outer headers of an STT segment say.
#[derive(PartialEq, Eq, Debug)]
pub struct Segment {
    pub ports: (u16, u16),
    pub packet_id: u32,
    pub total: u16,
    pub offset: u16,
    pub traffic_class: u8,
    pub payload: Vec<u8>,
}

/// What an STT frame holds.
#[derive(PartialEq, Eq, Debug)]
pub struct Frame {
    pub key: (u32, u16, u16),
    pub bytes: Vec<u8>,
    /// Start and offset of a partial checksum.
    pub partial: Option<(u16, u16)>,
    /// Whether a super-packet is IPv4, and its segment size.
    pub gso: Option<(bool, u16)>,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from(bytes[at]) << 8 | u16::from(bytes[at + 1])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) << 16 | u32::from(u16_at(bytes, at + 2))
}

fn require(condition: bool, otherwise: DropReason) -> Result<(), DropReason> {
    if condition { Ok(()) } else { Err(otherwise) }
}

/// The sum of RFC 1071, which is 0xffff over bytes with a right checksum.
pub fn sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u64;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// RFC 7348 section 5.
pub fn vxlan(bytes: &[u8]) -> Result<Header, DropReason> {
    require(bytes.len() >= 8, DropReason::MalformedTunnel)?;
    require(bytes[0] & 8 != 0, DropReason::VxlanNoVni)?;
    require(bytes.len() >= 8 + ETHERNET, DropReason::Malformed)?;
    Ok(Header { key: (u32_at(bytes, 4) >> 8, 0, 0), inner: 8 })
}

/// RFC 8926 sections 3.4 and 3.5.
pub fn geneve(bytes: &[u8]) -> Result<Header, DropReason> {
    let malformed = DropReason::MalformedTunnel;
    require(bytes.len() >= 8 && bytes[0] >> 6 == 0, malformed)?;
    let inner = 8 + usize::from(bytes[0] & 0x3f) * 4;
    require(bytes.len() >= inner, malformed)?;
    let mut options = Vec::new();
    let mut at = 8;
    while at < inner {
        let end = at + 4 + usize::from(bytes[at + 3] & 0x1f) * 4;
        require(end <= inner, malformed)?;
        let (class, kind) = (u16_at(bytes, at), bytes[at + 2]);
        let is_ports = (class, kind) == (0x0102, 0x80);
        require(!is_ports || end == at + 8, malformed)?;
        options.push((is_ports, kind >= 0x80, at));
        at = end;
    }
    let mut ports = None;
    for (is_ports, is_critical, at) in options {
        require(is_ports || !is_critical, DropReason::GeneveCriticalOption)?;
        if is_ports {
            require(ports.is_none(), malformed)?;
            ports = Some((u16_at(bytes, at + 4) & 0x7fff, u16_at(bytes, at + 6)));
        }
    }
    require(bytes[1] & 0x80 == 0, DropReason::GeneveControl)?;
    require(u16_at(bytes, 2) == TEB, DropReason::TunnelProtocol)?;
    require(ports.is_none_or(|(_, egress)| egress != 0), DropReason::UnknownLogicalPort)?;
    require(bytes.len() >= inner + ETHERNET, DropReason::Malformed)?;
    let (ingress, egress) = ports.unwrap_or_default();
    Ok(Header { key: (u32_at(bytes, 4) >> 8, ingress, egress), inner })
}

/// The fields of a GRE header: flags, key, and the offset of the payload.
fn gre_fields(bytes: &[u8]) -> Result<(u16, Option<u32>, usize), DropReason> {
    let malformed = DropReason::MalformedTunnel;
    require(bytes.len() >= 4, malformed)?;
    let flags = u16_at(bytes, 0);
    // Routing, strict source route, the first bit of what was recursion control, and the version.
    require(flags & 0x4c07 == 0, malformed)?;
    let (mut end, mut key_at) = (4, None);
    for flag in [0x8000, 0x2000, 0x1000] {
        if flags & flag != 0 {
            key_at = if flag == 0x2000 { Some(end) } else { key_at };
            end += 4;
        }
    }
    require(bytes.len() >= end, malformed)?;
    Ok((flags, key_at.map(|at| u32_at(bytes, at)), end))
}

/// RFC 2784 and RFC 2890.
pub fn gre(bytes: &[u8], options: &DecapOptions) -> Result<Header, DropReason> {
    let (flags, key, inner) = gre_fields(bytes)?;
    let is_right = flags & 0x8000 == 0 || options.skip_checksum || sum(&[bytes]) == 0xffff;
    require(is_right, DropReason::GreChecksum)?;
    require(u16_at(bytes, 2) == TEB, DropReason::TunnelProtocol)?;
    require(key.is_some() || !options.key, DropReason::GreNoKey)?;
    require(key.is_none() || options.key, DropReason::UnknownDatapath)?;
    require(bytes.len() >= inner + ETHERNET, DropReason::Malformed)?;
    Ok(Header { key: (key.unwrap_or_default(), 0, 0), inner })
}

/// RFC 7637 section 3.2.
pub fn nvgre(bytes: &[u8]) -> Result<Header, DropReason> {
    let (flags, key, _) = gre_fields(bytes)?;
    require(u16_at(bytes, 2) == TEB, DropReason::TunnelProtocol)?;
    let key = key.ok_or(DropReason::GreNoKey)?;
    require(flags & 0x9000 == 0, DropReason::MalformedTunnel)?;
    require(bytes.len() >= 8 + ETHERNET, DropReason::Malformed)?;
    Ok(Header { key: (key >> 8, 0, 0), inner: 8 })
}

/// The number of the link of a tagged frame, from 1 on, and the frame without the tags of the link.
pub fn tagged(
    frame: &[u8],
    links: &[(u16, u16, Option<u16>)],
) -> Result<(u32, Vec<u8>), DropReason> {
    let malformed = DropReason::Malformed;
    require(frame.len() >= ETHERNET, malformed)?;
    let is_tpid = |at: usize| matches!(u16_at(frame, at), 0x8100 | 0x88a8 | 0x9100);
    let mut tags = Vec::new();
    while tags.len() < 2 && is_tpid(12 + 4 * tags.len()) {
        let at = 12 + 4 * tags.len();
        require(frame.len() >= at + 6, malformed)?;
        tags.push((u16_at(frame, at), u16_at(frame, at + 2) & 0xfff));
    }
    let position = |wanted| links.iter().position(|link| *link == wanted);
    let pair = match tags[..] {
        [(tpid, outer), (0x8100, inner)] => position((tpid, outer, Some(inner))),
        _ => None,
    };
    let single = match tags[..] {
        [(0x8100, vlan), ..] => position((0x8100, vlan, None)),
        _ => None,
    };
    let len = if pair.is_some() { 8 } else { 4 };
    let link = pair.or(single).ok_or(DropReason::UnknownDatapath)?;
    Ok((link as u32 + 1, [&frame[..12], &frame[12 + len..]].concat()))
}

/// The TCP-like header of a segment; the outer IP header is as it was built.
pub fn stt_segment(case: &SttCase) -> Result<Segment, DropReason> {
    let segment = &case.bytes[case.l4..];
    require(segment.len() >= 20 && segment[12] >> 4 == 5, DropReason::Malformed)?;
    let (total, offset) = (u16_at(segment, 4), u16_at(segment, 6));
    let payload = segment[20..].to_vec();
    let is_part = !payload.is_empty()
        && total >= 18
        && usize::from(offset) + payload.len() <= usize::from(total);
    // SYN, RST and FIN.
    require(segment[13] & 7 == 0 && is_part, DropReason::SttFrame)?;
    let len = (segment.len() as u32).to_be_bytes();
    let is_right = sum(&[&case.addresses, &len, &[0, 0, 0, 6], segment]) == 0xffff;
    require(case.is_verified || is_right, DropReason::OuterChecksum)?;
    Ok(Segment {
        ports: (u16_at(segment, 0), u16_at(segment, 2)),
        packet_id: u32_at(segment, 8),
        total,
        offset,
        traffic_class: case.traffic_class,
        payload,
    })
}

/// The STT header of a frame, whose inner frame is as it was built, or the beginning of it.
pub fn stt_frame(bytes: &[u8], inner: &Inner) -> Result<Frame, DropReason> {
    let malformed = DropReason::MalformedTunnel;
    require(bytes.len() >= 18 + ETHERNET && bytes[0] == 0, malformed)?;
    let frame = &bytes[18..];
    let (flags, l4) = (bytes[1], usize::from(bytes[2]));
    let (is_partial, is_v4, is_tcp) = (flags & 2 != 0, flags & 4 != 0, flags & 8 != 0);
    if is_partial {
        let headers = ETHERNET + if is_v4 { 20 } else { 40 };
        let transport = if is_tcp { 20 } else { 8 };
        require(l4 >= headers && l4 + transport <= frame.len(), malformed)?;
    }
    let context = u64::from(u32_at(bytes, 8)) << 32 | u64::from(u32_at(bytes, 12));
    require(context >> 55 == 0, DropReason::UnknownDatapath)?;
    let size = u16_at(bytes, 4);
    if is_partial {
        // The IP header says that the frame is longer.
        require(inner.ip.is_none() || frame.len() >= inner.bytes.len(), DropReason::Malformed)?;
        let told = (is_v4, if is_tcp { 6 } else { 17 }, l4);
        require(inner.ip == Some(told) && (is_tcp || size == 0), malformed)?;
    }
    let egress = (context >> 24) as u16;
    let ingress = if egress == 0 { 0 } else { (context >> 40) as u16 & 0x7fff };
    let tci = u16_at(bytes, 6);
    let tag = [0x81, 0, (tci >> 8) as u8 & 0xef, tci as u8];
    let tag = if tci & 0x1000 != 0 { &tag[..] } else { &[] };
    Ok(Frame {
        key: (context as u32 & 0xff_ffff, ingress, egress),
        bytes: [&frame[..12], tag, &frame[12..]].concat(),
        partial: is_partial.then_some(((l4 + tag.len()) as u16, if is_tcp { 16 } else { 6 })),
        gso: (is_partial && size != 0).then_some((is_v4, size)),
    })
}
