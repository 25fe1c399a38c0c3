//! What programs in front of the datapath hand over to it, and what they are told (docs/adr/0011).
//!
//! A program of the kernel datapath does the whole of what a packet's megaflow says, or it redirects the packet as it is to a TAP,
//! with an Ethernet header in front that names the port by which it came in. Here it is read, with the state of its offloads, and
//! goes on as if it had been read from that port's own device.
//!
//! In this mode the devices of ports and the sockets of the uplink only send, but for UDP and STT. A TAP that the datapath would
//! have made is a veth pair ([`super::pair`]): programs stand at its outer end.

use flow::PortNo;
use netdev::tap::Tap;
use netdev::{Error, Ifindex, Netlink};
use packet::{Checksum, PacketBuf};
use wire::vlan::{TAG_LEN, Tag};
use wire::{EtherType, ethernet};

/// The type of the header in front of a frame that is handed over: that for experiments (IEEE 802, clause 9.2.4).
pub const ETHERTYPE: EtherType = EtherType(0x88b5);
/// Frames of each worker that wait to be read.
const QUEUE_LEN: u32 = 4096;
/// The longest that the kernel allows.
const MTU: u32 = 65_521;
/// Where a frame is read to, so that it begins where others do when the header in front of it is off.
const READ_HEADROOM: usize = PacketBuf::HEADROOM - ethernet::HEADER_LEN - TAG_LEN;

/// Makes the TAP, with so many queues. The kernel keeps a flow in one of them by its hash, which it takes from the frame where the
/// program has found it: the header in front does not matter as long as the program leaves the protocol of the packet as it is. By
/// that protocol it also looks once more at super-packets that it did not make itself, those of virtual machines.
pub(crate) fn open(name: &str, queues: usize) -> Result<(Vec<Tap>, Ifindex), Error> {
    let taps = Tap::open_queues(name, queues)?;
    let name = &taps.iter().take(1).map(Tap::name).collect::<Result<String, Error>>()?;
    let netlink = Netlink::open()?;
    let index = netlink.index_of(name)?;
    netdev::silence_host_stack(name)?;
    netlink.set_tx_queue_len(index, QUEUE_LEN)?;
    // Super-packets have none, but whoever sends by a socket, as tests do, is held to it.
    netlink.set_mtu(index, MTU)?;
    netlink.set_up(index)?;
    Ok((taps, index))
}

/// Reads the next frame from a queue of the TAP; it still has the header in front.
pub(crate) fn recv(tap: &Tap, packet: &mut PacketBuf) -> netdev::io_error::IoResult<Option<()>> {
    tap.recv_with_headroom(READ_HEADROOM, packet)
}

/// Takes the header off a frame that was handed over, and says by which port it came in. A tag that the kernel had beside the bytes
/// of the frame, and has put behind the addresses of this header, goes where it belongs. A frame that was too long for the header has
/// two tags that say it instead: `WEFT_PUNT_ETHERTYPE` in `bpf/intf.h`. `None`: it has neither.
pub(crate) fn decode(packet: &mut PacketBuf) -> Option<PortNo> {
    let head = packet.head();
    let port = PortNo(u32::from_be_bytes(*head.first_chunk()?));
    let type_at = |at: usize| {
        let [a, b] = *head.get(at..)?.first_chunk()?;
        Some(EtherType(u16::from_be_bytes([a, b])))
    };
    let (tpid, tci) = (type_at(12)?, type_at(14)?);
    let tag = match tpid {
        ETHERTYPE => None,
        EtherType::VLAN | EtherType::QINQ if type_at(16)? == ETHERTYPE => {
            Some(Tag::from_tci(tpid, tci.0))
        }
        EtherType::QINQ if type_at(16)? == EtherType::VLAN => return decode_tags(packet),
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
        Some(tag) => flow::push_vlan(packet, tag).ok().map(|()| port),
        None => Some(port),
    }
}

/// The port that the two outermost tags of a frame say.
fn decode_tags(packet: &mut PacketBuf) -> Option<PortNo> {
    let high = flow::pop_vlan(packet)?.tci();
    let low = flow::pop_vlan(packet)?.tci();
    Some(PortNo(u32::from(high) << 16 | u32::from(low)))
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
    fn frame_and_its_offload_are_as_they_were_when_the_header_is_off() {
        let front = [0, 0, 0x12, 0x34, 9, 9, 9, 9, 9, 9, 9, 9, 0x88, 0xb5];
        let mut packet = punted(&front, &FRAME);
        packet.offload.checksum = Checksum::Partial { start: 14 + 34, offset: 16 };
        assert_eq!(decode(&mut packet), Some(PortNo(0x1234)));
        assert_eq!(packet.to_vec(), FRAME);
        assert_eq!(packet.offload.checksum, Checksum::Partial { start: 34, offset: 16 });
    }

    #[test]
    fn tag_is_put_back_into_the_frame_when_it_stands_in_front() {
        for tpid in [[0x81, 0], [0x88, 0xa8]] {
            let tag = [tpid[0], tpid[1], 0x60, 7];
            let front = [&[0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0], &tag[..], &[0x88, 0xb5]].concat();
            let mut packet = punted(&front, &FRAME);
            packet.offload.checksum = Checksum::Partial { start: 18 + 34, offset: 16 };
            assert_eq!(decode(&mut packet), Some(PortNo(5)));
            assert_eq!(packet.to_vec(), [&FRAME[..12], &tag, &FRAME[12..]].concat());
            assert_eq!(packet.offload.checksum, Checksum::Partial { start: 4 + 34, offset: 16 });
        }
    }

    #[test]
    fn port_is_in_two_tags_when_the_frame_is_too_long_for_a_header() {
        let tags = [0x88, 0xa8, 0xf2, 0x34, 0x81, 0, 0xff, 0xff];
        let own = [0x88, 0xa8, 0, 7];
        for own in [&[][..], &own] {
            let frame = [&FRAME[..12], own, &FRAME[12..]].concat();
            let mut packet = punted(&[&frame[..12], &tags].concat(), &frame[12..]);
            packet.offload.checksum = Checksum::Partial { start: 8 + 34, offset: 16 };
            assert_eq!(decode(&mut packet), Some(PortNo(0xf234_ffff)));
            assert_eq!(packet.to_vec(), frame);
            assert_eq!(packet.offload.checksum, Checksum::Partial { start: 34, offset: 16 });
        }
        let mut short = punted(&FRAME[..12], &tags[..6]);
        assert_eq!(decode(&mut short), None, "half a tag");
    }

    #[test]
    fn frame_is_refused_when_the_header_is_another() {
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
        assert_eq!(decode(&mut punted(&front, &[1; 13])), None, "no place for the tag");
        let mut packet = punted(&front[..12], &[&[0x88, 0xb5][..], &FRAME].concat());
        packet.offload.checksum = Checksum::Partial { start: 4, offset: 6 };
        assert_eq!(decode(&mut packet), None, "a checksum over the header");
    }
}
