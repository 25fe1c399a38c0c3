//! Private locator of the network and transport headers in an Ethernet frame.

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

/// Where the headers of an IP packet are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Location {
    /// The IP header, from the start of the frame.
    pub l3: usize,
    /// What follows the IP header and its options or extension headers, from the start of the frame.
    pub l4: usize,
    /// The end of the IP packet by its own length, from the start of the frame.
    pub end: usize,
    /// IP protocol of what is at `l4`.
    pub protocol: u8,
    pub is_v6: bool,
    pub is_fragment: bool,
    /// An IPv6 routing header is present.
    pub is_routed: bool,
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// `None` when `head` (the linear part of a frame of `frame_len` bytes) is not IP behind at most two tags, or
/// malformed.
pub(crate) fn locate(head: &[u8], frame_len: usize) -> Option<Location> {
    let mut l3 = 14;
    let mut ethertype = be16(head, 12)?;
    for _ in 0..2 {
        if matches!(ethertype, 0x8100 | 0x88a8 | 0x9100) {
            ethertype = be16(head, l3 + 2)?;
            l3 += 4;
        }
    }
    let ip = head.get(l3..)?;
    let (l4, len, protocol, is_v6, is_fragment, is_routed) = match ethertype {
        0x0800 => {
            let first = *ip.first()?;
            let ihl = usize::from(first & 0xf) * 4;
            let len = usize::from(be16(ip, 2)?);
            if first >> 4 != 4 || ihl < 20 || ip.len() < ihl || len < ihl {
                return None;
            }
            (ihl, len, ip[9], false, be16(ip, 6)? & 0x3fff != 0, false)
        }
        0x86dd => {
            let payload = usize::from(be16(ip, 4)?);
            if ip[0] >> 4 != 6 || ip.len() < 40 {
                return None;
            }
            let (mut next, mut at, mut fragment, mut routed) = (ip[6], 40, false, false);
            loop {
                routed |= next == 43;
                let ext = match next {
                    0 | 43 | 60 => (usize::from(*ip.get(at + 1)?) + 1) * 8,
                    51 => (usize::from(*ip.get(at + 1)?) + 2) * 4,
                    44 => {
                        fragment = true;
                        8
                    }
                    _ => break,
                };
                next = *ip.get(at)?;
                at += ext;
            }
            if payload + 40 < at {
                return None;
            }
            (at, payload + 40, next, true, fragment, routed)
        }
        _ => return None,
    };
    let end = l3 + len;
    (end <= frame_len && l3 + l4 <= head.len()).then_some(Location {
        l3,
        l4: l3 + l4,
        end,
        protocol,
        is_v6,
        is_fragment,
        is_routed,
    })
}
