//! Target: coalesces segments into super-packets. Segmenting the super-packets must give the
//! original segments again.

use packet::{Coalescer, PacketBuf, coalesce_ranges};

use crate::{lists, offload};

/// The flag "don't fragment" in the upper byte of the flags and fragment offset of IPv4.
const DONT_FRAGMENT: u8 = 0x40;

/// Coalesces the frames of a list with both implementations. Returns the number of packets that the
/// first one emits.
pub fn list(bytes: &[u8]) -> usize {
    let frames = lists::read(bytes);
    let one_by_one = push_all(&frames);
    assert_same(&frames, &one_by_one);
    assert_same(&frames, &join_train(&frames));
    one_by_one.len()
}

fn push_all(frames: &[&[u8]]) -> Vec<PacketBuf> {
    let mut out = Vec::new();
    let mut coalescer = Coalescer::new(4);
    for frame in frames {
        coalescer.push((), PacketBuf::from_bytes(frame), |(), packet| out.push(packet));
    }
    coalescer.flush(|(), packet| out.push(packet));
    assert!(coalescer.is_empty());
    out
}

fn join_train(frames: &[&[u8]]) -> Vec<PacketBuf> {
    let mut storage = PacketBuf::from_bytes(&frames.concat());
    let headroom = storage.headroom();
    let mut end = 0;
    let ranges: Vec<_> = frames
        .iter()
        .map(|frame| {
            end += frame.len();
            end - frame.len()..end
        })
        .collect();
    let mut out = Vec::new();
    let mut rest = &ranges[..];
    while !rest.is_empty() {
        storage.reset(headroom);
        let taken = coalesce_ranges(&mut storage, rest, false);
        assert!(taken > 0, "no progress");
        out.push(storage.clone());
        rest = &rest[taken..];
    }
    out
}

/// Checks that every frame occurs exactly once. Frames of different flows may change their order.
fn assert_same(frames: &[&[u8]], packets: &[PacketBuf]) {
    let cut = |packet: &PacketBuf| match packet.offload.gso {
        Some(_) => offload::segments(packet).expect("a coalesced packet can be segmented"),
        None => vec![packet.to_vec()],
    };
    let mut left: Vec<_> = packets.iter().flat_map(cut).map(|frame| normal(&frame)).collect();
    let mut right: Vec<_> = frames.iter().map(|frame| normal(frame)).collect();
    left.sort_unstable();
    right.sort_unstable();
    assert_eq!(left, right);
}

/// The frame in a comparable form: without padding, without checksums (0 and 0xffff are equal), and
/// without the IPv4 identification of packets with DF (RFC 6864: it has no meaning there).
fn normal(frame: &[u8]) -> Vec<u8> {
    let mut copy = frame.to_vec();
    let Ok(located) = wire::transport_offset(frame) else { return copy };
    if !located.is_ip() {
        return copy;
    }
    copy.truncate(located.l3_end);
    if located.ethertype == wire::EtherType::IPV4 {
        copy[located.l3 + 10..located.l3 + 12].fill(0);
        if copy[located.l3 + 6] & DONT_FRAGMENT != 0 {
            copy[located.l3 + 4..located.l3 + 6].fill(0);
        }
    }
    if let (Some(l4), wire::Protocol::TCP) = (located.l4, located.protocol)
        && let Some(checksum) = copy.get_mut(l4 + 16..l4 + 18)
    {
        checksum.fill(0);
    }
    copy
}
