//! The uplink as a device: tagged frames in and out (VLAN, QinQ), and STT's super-segments out.

use super::config::Config;
use super::restore_tag;
use super::transmit::refused;
use crate::stats::{UplinkStats, drops};
use flow::{DropCounters, DropReason, Encapsulated, PortNo, Traffic, TunnelType};
use netdev::af_packet::{PacketOptions, PacketSocket, has_unknown_tag};
use netdev::filter::Filter;
use netdev::io_error::IoError;
use netdev::{Error, Ifindex, Link, Netlink};
use packet::{PacketBuf, SegmentChecksum, Segmenter};

/// What the kernel says about the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Up,
    Down,
    /// There is no such device any more.
    Gone,
}

/// The MTU that the uplink has to have, in bytes; 0 where nothing needs any.
#[derive(Clone, Copy, Debug)]
struct MtuNeeded {
    tunnels: u16,
    tags: u16,
}

impl MtuNeeded {
    fn of(config: &Config) -> Self {
        let tunnels = config.tunnels.iter().map(|(spec, _)| spec.path_mtu_bytes).max();
        Self { tunnels: tunnels.unwrap_or(0), tags: config.tagged_mtu_bytes }
    }

    /// What is wrong with this MTU, if anything is, and what would be right.
    fn unmet_by(self, mtu: u32) -> Option<String> {
        let Self { tunnels, tags } = self;
        let right = tunnels.max(tags);
        if mtu >= u32::from(right) {
            return None;
        }
        let instead = if mtu < u32::from(tunnels) {
            format!("or write underlay_mtu = {mtu} on all hosts")
        } else {
            let bytes = u32::from(tags) - mtu;
            format!("or give the logical switches linked by tags an MTU that is {bytes} bytes less")
        };
        Some(format!(
            "the uplink's MTU is {mtu} bytes, and the network file needs {right}: long packets will be lost; \
             set it to {right}, {instead}"
        ))
    }
}

#[derive(Debug)]
pub(super) struct Uplink {
    device: String,
    port: PortNo,
    ifindex: Ifindex,
    state: State,
    /// What the MTU has to be for the longest packets of tunnels and for the longest tagged frames.
    mtu_needed: MtuNeeded,
    /// The MTU that was found too low; said once, and again when the device was gone.
    mtu_too_low: Option<u32>,
    /// Receives tagged frames; only where a logical switch is linked by tags.
    tags: Option<PacketSocket>,
    /// Sends whole frames and receives nothing.
    sender: Option<PacketSocket>,
    segmenter: Segmenter,
    /// A segment on its way.
    segment: PacketBuf,
    rx: Traffic,
    tx: Traffic,
    pub(super) drops: DropCounters,
    overruns_seen: u64,
}

impl Uplink {
    /// Opens what is bound to the uplink, which passes for up until it is [observed](Self::observe).
    pub(super) fn open(config: &Config) -> Result<Self, Error> {
        let ifindex = Netlink::open()?.index_of(&config.uplink)?;
        let stt = config.tunnels.iter().any(|(spec, _)| spec.tunnel == TunnelType::Stt);
        let tags = config.tags.then(|| open_tags(ifindex)).transpose()?;
        let sender = (stt || config.tags).then(|| open_sender(ifindex)).transpose()?;
        Ok(Self {
            device: config.uplink.clone(),
            port: config.uplink_port,
            ifindex,
            state: State::Up,
            mtu_needed: MtuNeeded::of(config),
            mtu_too_low: None,
            tags,
            sender,
            segmenter: Segmenter::new(),
            segment: PacketBuf::with_capacity(PacketBuf::HEADROOM, 0),
            rx: Traffic::default(),
            tx: Traffic::default(),
            drops: DropCounters::default(),
            overruns_seen: 0,
        })
    }

    pub(super) fn ifindex(&self) -> Ifindex {
        self.ifindex
    }

    pub(super) fn port(&self) -> PortNo {
        self.port
    }

    pub(super) fn tags(&self) -> Option<&PacketSocket> {
        self.tags.as_ref()
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    /// Takes over what the link is like now; it is gone when there is `None`.
    pub(super) fn observe(&mut self, link: Option<&Link>) {
        let state = match link {
            Some(link) if link.up && link.running => State::Up,
            Some(_) => State::Down,
            None => State::Gone,
        };
        if state != self.state {
            self.state = state;
            let news = match state {
                State::Up => "up again",
                State::Down => "down",
                State::Gone => "gone, will look for it",
            };
            tracing::warn!(uplink = %self.device, "uplink is {news}");
        }
        let too_low = link.and_then(|link| Some((link.mtu, self.mtu_needed.unmet_by(link.mtu)?)));
        let mtu = too_low.as_ref().map(|(mtu, _)| *mtu);
        if let Some((_, text)) = too_low
            && mtu != self.mtu_too_low
        {
            tracing::warn!(uplink = %self.device, "{text}");
        }
        self.mtu_too_low = mtu;
    }

    /// Opens anew what was bound to the device that is gone, on the one that has its name now.
    ///
    /// # Errors
    /// There is none yet; nothing has changed then.
    pub(super) fn reopen(&mut self) -> Result<(), Error> {
        let ifindex = Netlink::open()?.index_of(&self.device)?;
        let tags = self.tags.is_some().then(|| open_tags(ifindex)).transpose()?;
        let sender = self.sender.is_some().then(|| open_sender(ifindex)).transpose()?;
        (self.ifindex, self.tags, self.sender) = (ifindex, tags, sender);
        self.overruns_seen = 0;
        Ok(())
    }

    /// Reads the next tagged frame, all tags in its bytes; false when there is none.
    pub(super) fn recv_tagged(&mut self, packet: &mut PacketBuf) -> bool {
        let Some(socket) = &self.tags else { return false };
        match socket.recv(packet) {
            Ok(Some(received)) => {
                if let Some(tag) = received.vlan {
                    restore_tag(packet, tag);
                }
                self.rx.add(packet.len());
                true
            }
            Ok(None) => false,
            Err(IoError::Malformed | IoError::Truncated | IoError::Offload(_)) => {
                self.drops.add(DropReason::Malformed, 1);
                packet.set_len(0);
                true
            }
            // The monitor tells when the link is back.
            Err(_) => false,
        }
    }

    /// Sends a frame with its tags.
    pub(super) fn send_tagged(&mut self, packet: &mut PacketBuf) -> Result<(), DropReason> {
        // The first two tags are looked at, because a guest may send tags of its own.
        if packet.offload.gso.is_some() && has_unknown_tag(packet.head()) {
            packet.linearize();
            self.send_segments(packet)?;
        } else {
            self.send(packet)?;
        }
        self.tx.add(packet.len());
        Ok(())
    }

    /// Sends the segments of a super-packet that the kernel cannot cut.
    fn send_segments(&mut self, packet: &PacketBuf) -> Result<(), DropReason> {
        let socket = self.sender.as_ref().ok_or(DropReason::NoSuchPort)?;
        let segments = self
            .segmenter
            .segment(packet, 0, SegmentChecksum::Partial, |_| {})
            .map_err(|_| DropReason::Segmentation)?;
        for (header, payload) in segments {
            self.segment.reset(PacketBuf::HEADROOM);
            self.segment.append(header);
            self.segment.append(payload);
            self.segment.offload = segments.offload();
            socket.send(&self.segment).map_err(refused)?;
        }
        Ok(())
    }

    /// Sends an STT frame as one TCP-shaped super-segment.
    pub(super) fn send_stt(
        &mut self,
        outer: &Encapsulated,
        packet: &mut PacketBuf,
    ) -> Result<(), DropReason> {
        if outer.resolved { self.send(packet) } else { Err(DropReason::EndpointUnresolved) }
    }

    fn send(&mut self, packet: &PacketBuf) -> Result<(), DropReason> {
        let socket = self.sender.as_ref().ok_or(DropReason::NoSuchPort)?;
        socket.send(packet).map_err(refused)
    }

    /// Takes over what the kernel dropped before it could be read.
    pub(super) fn tick(&mut self) {
        let Some(stats) = self.tags.as_ref().and_then(|socket| socket.stats().ok()) else { return };
        self.drops
            .add(DropReason::ReceiveOverrun, stats.dropped.saturating_sub(self.overruns_seen));
        self.overruns_seen = stats.dropped;
    }

    pub(super) fn stats(&self) -> UplinkStats {
        UplinkStats {
            device: self.device.clone(),
            state: match self.state {
                State::Up => "up",
                State::Down => "down",
                State::Gone => "gone",
            }
            .to_owned(),
            rx: self.rx.into(),
            tx: self.tx.into(),
            drops: drops(&self.drops),
        }
    }
}

/// What receives tagged frames. They are for guests, and carry the guests' MAC addresses.
fn open_tags(uplink: Ifindex) -> Result<PacketSocket, Error> {
    let promiscuous = PacketOptions { promiscuous: true, ..PacketOptions::default() };
    PacketSocket::open(uplink, &Filter::vlan_tagged(), promiscuous)
}

fn open_sender(uplink: Ifindex) -> Result<PacketSocket, Error> {
    PacketSocket::open(uplink, &Filter::nothing(), PacketOptions::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_is_found_too_low_when_tunnels_or_tags_need_more() {
        let needed = MtuNeeded { tunnels: 9000, tags: 1504 };
        assert_eq!(needed.unmet_by(9000), None);
        let text = needed.unmet_by(1500).unwrap();
        assert!(text.contains("set it to 9000, or write underlay_mtu = 1500"), "{text}");
        let text = MtuNeeded { tunnels: 0, tags: 1504 }.unmet_by(1500).unwrap();
        assert!(text.contains("set it to 1504") && text.contains("4 bytes less"), "{text}");
        assert_eq!(MtuNeeded { tunnels: 0, tags: 0 }.unmet_by(68), None);
    }
}
