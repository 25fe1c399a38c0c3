//! The TAP by which eBPF programs punt frames to the workers, and the header in front of such a
//! frame.

use super::punt_interface::{PUNT_ETHERTYPE, PUNT_ETHERTYPE_AT, PUNT_PORT_AT, PUNT_TIME_AT};
use flow::PortNo;
use netdev::tap::Tap;
use netdev::{Error, Ifindex, Netlink};
use packet::{Checksum, PacketBuf};
use wire::vlan::{TAG_LEN, Tag};
use wire::{EtherType, ethernet};

/// The EtherType of the punt header.
pub const ETHERTYPE: EtherType = EtherType(PUNT_ETHERTYPE);
/// Punted frames that may wait for each worker. Linux 6.1 refuses 32,768.
pub const QUEUE_LEN: u32 = 4096;
/// The longest MTU that the kernel allows for a TAP, in bytes.
const MTU: u32 = 65_521;
/// The headroom before a punted frame, so that its headroom is the usual one without the punt
/// header.
const READ_HEADROOM: usize = PacketBuf::HEADROOM - ethernet::HEADER_LEN - TAG_LEN;

/// Makes the TAP with one queue for each worker. The kernel selects the queue by the flow hash of
/// the frame, which it computes from the original headers: the punt header does not matter as long
/// as the program keeps `skb->protocol`. The kernel also uses that protocol to validate
/// super-packets from virtual machines.
pub(crate) fn open(name: &str, queues: usize) -> Result<(Vec<Tap>, Ifindex), Error> {
    let taps = Tap::open_queues(name, queues)?;
    let name = &taps.iter().take(1).map(Tap::name).collect::<Result<String, Error>>()?;
    let netlink = Netlink::open()?;
    let index = netlink.index_of(name)?;
    netdev::silence_host_stack(name)?;
    netlink.set_tx_queue_len(index, QUEUE_LEN)?;
    // The MTU does not limit super-packets, but it limits frames sent by a packet socket, as in
    // tests.
    netlink.set_mtu(index, MTU)?;
    netlink.set_up(index)?;
    Ok((taps, index))
}

/// Reads the next frame from a queue of the TAP, with its punt header.
pub(crate) fn recv(tap: &Tap, packet: &mut PacketBuf) -> netdev::io_error::IoResult<Option<()>> {
    tap.recv_with_headroom(READ_HEADROOM, packet)
}

/// The content of a punt header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PuntHeader {
    /// The ingress port.
    pub(crate) port: PortNo,
    /// When the frame was punted, in the programs' clock; `None` if the header does not say it.
    pub(crate) punted_ns: Option<u64>,
}

/// Removes the punt header and returns it; `None` if there is no valid one.
///
/// If the kernel had a VLAN tag in the metadata of the frame, it has inserted that tag behind the
/// addresses of the punt header; the tag is moved into the frame. A frame too long for the header
/// carries the port number in two outer tags instead (`bpf/intf.h` describes both forms).
pub(crate) fn decode(packet: &mut PacketBuf) -> Option<PuntHeader> {
    let head = packet.head();
    let port = u32::from_be_bytes(*head.get(PUNT_PORT_AT..)?.first_chunk()?);
    let time = u64::from_ne_bytes(*head.get(PUNT_TIME_AT..)?.first_chunk()?);
    let header = PuntHeader { port: PortNo(port), punted_ns: (time > 0).then_some(time) };
    let type_at = |at: usize| {
        let [a, b] = *head.get(at..)?.first_chunk()?;
        Some(EtherType(u16::from_be_bytes([a, b])))
    };
    let (tpid, tci) = (type_at(PUNT_ETHERTYPE_AT)?, type_at(PUNT_ETHERTYPE_AT + 2)?);
    let inner_type = || type_at(PUNT_ETHERTYPE_AT + TAG_LEN);
    let tag = match tpid {
        ETHERTYPE => None,
        EtherType::VLAN | EtherType::QINQ if inner_type()? == ETHERTYPE => {
            Some(Tag::from_tci(tpid, tci.0))
        }
        EtherType::QINQ if inner_type()? == EtherType::VLAN => return decode_tags(packet),
        _ => return None,
    };
    let len = ethernet::HEADER_LEN + if tag.is_some() { TAG_LEN } else { 0 };
    if let Checksum::Partial { start, .. } = packet.offload.checksum
        && usize::from(start) < len
    {
        return None;
    }
    packet.pull_front(len);
    match tag {
        Some(tag) => flow::push_vlan(packet, tag).ok().map(|()| header),
        None => Some(header),
    }
}

/// Removes the two outermost tags of a frame, which carry the ingress port.
fn decode_tags(packet: &mut PacketBuf) -> Option<PuntHeader> {
    let high = flow::pop_vlan(packet)?.tci();
    let low = flow::pop_vlan(packet)?.tci();
    Some(PuntHeader { port: PortNo(u32::from(high) << 16 | u32::from(low)), punted_ns: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: [u8; 60] = {
        let mut frame = [0xa5; 60];
        (frame[12], frame[13]) = (8, 0);
        frame
    };

    fn punted(front: &[u8], frame: &[u8]) -> PacketBuf {
        PacketBuf::from_bytes(&[front, frame].concat())
    }

    #[test]
    fn frame_and_offload_are_restored_when_the_header_is_removed() {
        let front = [0, 0, 0x12, 0x34, 9, 0, 0, 0, 0, 0, 0, 0, 0x88, 0xb5];
        let mut packet = punted(&front, &FRAME);
        packet.offload.checksum = Checksum::Partial { start: 14 + 34, offset: 16 };
        let punted_ns = Some(u64::from_ne_bytes([9, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(decode(&mut packet), Some(PuntHeader { port: PortNo(0x1234), punted_ns }));
        assert_eq!(packet.to_vec(), FRAME);
        assert_eq!(packet.offload.checksum, Checksum::Partial { start: 34, offset: 16 });
    }

    #[test]
    fn tag_is_moved_into_the_frame_when_it_is_in_the_punt_header() {
        for tpid in [[0x81, 0], [0x88, 0xa8]] {
            let tag = [tpid[0], tpid[1], 0x60, 7];
            let front = [&[0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0], &tag[..], &[0x88, 0xb5]].concat();
            let mut packet = punted(&front, &FRAME);
            packet.offload.checksum = Checksum::Partial { start: 18 + 34, offset: 16 };
            assert_eq!(decode(&mut packet), Some(PuntHeader { port: PortNo(5), punted_ns: None }));
            assert_eq!(packet.to_vec(), [&FRAME[..12], &tag, &FRAME[12..]].concat());
            assert_eq!(packet.offload.checksum, Checksum::Partial { start: 4 + 34, offset: 16 });
        }
    }

    #[test]
    fn port_is_read_from_two_tags_when_the_frame_is_too_long_for_a_header() {
        let tags = [0x88, 0xa8, 0xf2, 0x34, 0x81, 0, 0xff, 0xff];
        let own = [0x88, 0xa8, 0, 7];
        for own in [&[][..], &own] {
            let frame = [&FRAME[..12], own, &FRAME[12..]].concat();
            let mut packet = punted(&[&frame[..12], &tags].concat(), &frame[12..]);
            packet.offload.checksum = Checksum::Partial { start: 8 + 34, offset: 16 };
            let port = PortNo(0xf234_ffff);
            assert_eq!(decode(&mut packet), Some(PuntHeader { port, punted_ns: None }));
            assert_eq!(packet.to_vec(), frame);
            assert_eq!(packet.offload.checksum, Checksum::Partial { start: 34, offset: 16 });
        }
        let mut short = punted(&FRAME[..12], &tags[..6]);
        assert_eq!(decode(&mut short), None, "the second tag is truncated");
    }

    #[test]
    fn frame_is_rejected_when_it_has_no_punt_header() {
        let fronts: [&[u8]; 4] = [
            &[0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0],
            &[0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0x81, 0, 0, 1, 8, 0],
            &[0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0x91, 0, 0, 1, 0x88, 0xb5],
            &[0, 0, 0, 5],
        ];
        for front in fronts {
            assert_eq!(decode(&mut punted(front, &FRAME)), None, "{front:x?}");
        }
        let front = [0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0x81, 0, 0, 1, 0x88, 0xb5];
        for len in 0..front.len() {
            assert_eq!(decode(&mut punted(&front[..len], &[])), None, "{len}");
        }
        assert_eq!(decode(&mut punted(&front, &[1; 13])), None, "too short for the tag");
        let mut packet = punted(&front[..12], &[&[0x88, 0xb5][..], &FRAME].concat());
        packet.offload.checksum = Checksum::Partial { start: 4, offset: 6 };
        assert_eq!(decode(&mut packet), None, "the partial checksum covers the punt header");
    }
}
