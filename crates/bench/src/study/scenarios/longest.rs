//! Finds the longest packet of a guest that crosses the underlay unfragmented.

use std::net::UdpSocket;
use std::time::Duration;

use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::filter::SocketFilter;
use packet::PacketBuf;

use crate::lab::{Attachment, Lab, UPLINK};
use crate::study::model::Figures;
use crate::traffic::frames::{self, Frame};
use crate::{Error, Result};

/// The tested lengths: from `BELOW` bytes below the underlay's MTU to `ABOVE` bytes above it. Every
/// tunnel adds fewer bytes than `BELOW`.
const BELOW: u16 = 120;
const ABOVE: u16 = 8;
/// The length of a first packet. It makes weft resolve addresses and install megaflows.
const FIRST: u16 = 200;
/// How far the MTU of the guests' devices is above that of the underlay, in bytes.
const ROOM: u16 = 200;
const ETHERNET: usize = 14;
/// Headers of IPv4 and UDP, in bytes.
const HEADERS: u16 = 28;
/// The marker in each packet. The packet's length follows, in the last two bytes.
const MARK: [u8; 4] = *b"weft";
/// How long to wait for packets.
const SETTLE: Duration = Duration::from_millis(200);
/// The pause between packets.
const PAUSE: Duration = Duration::from_millis(2);

/// Sends packets of every length around the underlay's MTU with DF set, from a guest whose own MTU
/// is larger. Finds the longest one that arrives and is one frame on the other host's uplink. In
/// the figures, `longest_packet` is the length of that IP packet and `overhead` the number of bytes
/// that the tunnel adds.
///
/// # Errors
/// A socket or an MTU is refused, or no packet arrives unfragmented.
pub(super) fn longest(lab: &Lab<'_>, attachment: &Attachment) -> Result<Figures> {
    let (from, to) = (lab.guest(0, 0), lab.guest(1, 0));
    let far = lab.hosts().last().ok_or_else(|| Error::Other("a lab has hosts".into()))?;
    let failed = |e| Error::io("send packets of every length")(e);
    let mtu = lab.uplink_mtu();
    lab.raise_guest_mtu(mtu + ROOM)?;
    let target = to.run(|| UdpSocket::bind((to.ip4(), 0)))?.map_err(failed)?;
    target.set_nonblocking(true).map_err(failed)?;
    let port = target.local_addr().map_err(failed)?.port();
    let socket = frames::socket(from)?;
    let options = PacketOptions { promiscuous: true, ..PacketOptions::default() };
    let open = || PacketSocket::open_name(UPLINK, &SocketFilter::everything(), options);
    let uplink = far.netns().run_in(open)??;
    let template = Frame::udp_template((from.mac(), from.ip4()), (to.mac(), to.ip4()));
    let send = |length: u16| {
        let mut bytes = template.clone();
        Frame::of(&mut bytes).set_ports(port, port);
        Frame::set_length(&mut bytes, length);
        if let Some(tail) = bytes.last_chunk_mut::<6>() {
            tail[..4].copy_from_slice(&MARK);
            tail[4..].copy_from_slice(&length.to_be_bytes());
        }
        // The device may refuse a packet as too long. Such a packet counts as not arrived.
        let _ = nix::unistd::write(&socket, &bytes);
    };
    send(FIRST);
    lab.stop().sleep(SETTLE)?;
    let (mut arrived, mut crossed) = (Vec::new(), Vec::new());
    let mut payload = vec![0; 1 << 16];
    let mut frame = PacketBuf::with_capacity(0, PacketBuf::MAX_FRAME);
    for length in mtu - BELOW..=mtu + ABOVE {
        send(length);
        // Packets are sent one at a time: socket buffers hold few packets of this size.
        lab.stop().sleep(if length < mtu + ABOVE { PAUSE } else { SETTLE })?;
        while let Ok(bytes) = target.recv(&mut payload) {
            arrived.push(u16::try_from(bytes).unwrap_or(0) + HEADERS);
        }
        while let Ok(Some(_)) = uplink.recv(&mut frame) {
            crossed.extend(whole(frame.head()));
        }
    }
    let longest = crossed.into_iter().filter(|(length, _)| arrived.contains(length)).max();
    let (longest, overhead) =
        longest.ok_or_else(|| Error::Other("no packet arrived in one piece".into()))?;
    let more = [("longest_packet", longest), ("overhead", overhead)];
    Ok(Figures {
        guest_mtu: attachment.guest_mtu(),
        more: more.into_iter().map(|(name, bytes)| (name.to_owned(), f64::from(bytes))).collect(),
        ..Figures::default()
    })
}

/// The length of the marked packet if `frame` contains all of it, and the bytes of outer headers
/// between the Ethernet header and the packet.
fn whole(frame: &[u8]) -> Option<(u16, u16)> {
    let tail: &[u8; 6] = frame.last_chunk()?;
    let (mark, length) = tail.split_at(4);
    let length = u16::from_be_bytes(length.try_into().ok()?);
    let behind = u16::try_from(frame.len().checked_sub(ETHERNET)?).ok()?;
    (mark == MARK).then(|| Some((length, behind.checked_sub(length)?))).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_is_unfragmented_when_its_frame_has_room_for_it() {
        let frame = |len: usize, packet: u16| {
            let mut bytes = vec![0; len];
            bytes[len - 6..len - 2].copy_from_slice(&MARK);
            bytes[len - 2..].copy_from_slice(&packet.to_be_bytes());
            bytes
        };
        assert_eq!(whole(&frame(14 + 1500, 1450)), Some((1450, 50)));
        assert_eq!(whole(&frame(14 + 1500, 1500)), Some((1500, 0)));
        // This frame has the second of two fragments.
        assert_eq!(whole(&frame(14 + 60, 1451)), None);
        assert_eq!(whole(&[0; 100]), None);
        assert_eq!(whole(&MARK), None);
    }
}
