//! From where a frame entered and its MAC addresses to its actions, and the actions carried out.

use super::transmit::Transmit;
use super::uplink::Uplink;
use super::vif::Vif;
use flow::{
    Action, DropReason, Encapsulated, EndpointTable, Ingress, MacTable, Output, PortNo, TunnelType,
    execute,
};
use packet::PacketBuf;
use wire::MacAddr;
use wire::vlan::Tags;

/// Whom a frame that is not delivered is counted against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// The guest that sent it.
    Vif(usize),
    /// The underlay.
    Underlay,
}

/// All places that frames leave by.
#[derive(Debug)]
pub(super) struct Outputs {
    pub(super) vifs: Vec<Vif>,
    pub(super) uplink: Uplink,
    transmit: Transmit,
    origin: Origin,
}

/// The table, and everything its actions touch.
#[derive(Debug)]
pub(super) struct Forwarder {
    table: MacTable,
    pub(super) endpoints: EndpointTable,
    pub(super) out: Outputs,
    actions: Vec<Action>,
}

impl Forwarder {
    pub(super) fn new(
        table: MacTable,
        endpoints: EndpointTable,
        vifs: Vec<Vif>,
        uplink: Uplink,
        transmit: Transmit,
    ) -> Self {
        let out = Outputs { vifs, uplink, transmit, origin: Origin::Underlay };
        Self { table, endpoints, out, actions: Vec::new() }
    }

    /// A frame from the guest at `index`.
    pub(super) fn vif_frame(&mut self, index: usize, packet: &mut PacketBuf) {
        self.out.origin = Origin::Vif(index);
        self.forward(Ingress::Vif(PortNo(index as u32 + 1)), packet);
    }

    /// A frame out of a tunnel.
    pub(super) fn tunnel_frame(&mut self, ingress: Ingress, packet: &mut PacketBuf) {
        self.out.origin = Origin::Underlay;
        self.forward(ingress, packet);
    }

    /// A tagged frame from the uplink.
    pub(super) fn tagged_frame(&mut self, packet: &mut PacketBuf) {
        self.out.origin = Origin::Underlay;
        let tags = Tags::parse(packet.head()).ok();
        match tags.and_then(|tags| tags.outer()) {
            Some(outer) => {
                let inner = tags.and_then(|tags| tags.inner());
                self.forward(Ingress::Tags { outer, inner }, packet);
            }
            None => self.out.dropped(DropReason::UnknownDatapath, packet),
        }
    }

    /// Counts a packet from the underlay that is no frame of any logical switch.
    pub(super) fn dropped(&mut self, reason: DropReason) {
        self.out.uplink.drops.add(reason, 1);
    }

    fn forward(&mut self, ingress: Ingress, packet: &mut PacketBuf) {
        let Some((destination, source)) = addresses(packet.head()) else {
            return self.out.dropped(DropReason::Malformed, packet);
        };
        self.table.look_up(ingress, source, destination, &mut self.actions);
        execute(&self.actions, packet, &mut self.endpoints, &mut self.out);
    }
}

/// Destination and source of an Ethernet frame that has a whole header.
fn addresses(frame: &[u8]) -> Option<(MacAddr, MacAddr)> {
    frame.get(12..14)?;
    Some((MacAddr(*frame.first_chunk()?), MacAddr(*frame.get(6..)?.first_chunk()?)))
}

impl Output for Outputs {
    fn port(&mut self, port: PortNo, packet: &mut PacketBuf) -> Result<(), DropReason> {
        if port == self.uplink.port() {
            return self.uplink.send_tagged(packet);
        }
        let index = (port.0 as usize).checked_sub(1).ok_or(DropReason::NoSuchPort)?;
        self.vifs.get_mut(index).ok_or(DropReason::NoSuchPort)?.send(packet)
    }

    fn underlay(&mut self, outer: &Encapsulated, packet: &mut PacketBuf) -> Result<(), DropReason> {
        match outer.tunnel {
            TunnelType::Vxlan | TunnelType::Geneve => self.transmit.udp(outer, packet),
            TunnelType::Gre => self.transmit.gre(outer, packet),
            TunnelType::Stt => self.uplink.send_stt(outer, packet),
            TunnelType::Vlan | TunnelType::QinQ => Err(DropReason::NoSuchPort),
        }
    }

    fn dropped(&mut self, reason: DropReason, _packet: &PacketBuf) {
        match self.origin {
            Origin::Vif(index) => {
                if let Some(vif) = self.vifs.get_mut(index) {
                    vif.drops.add(reason, 1);
                }
            }
            Origin::Underlay => self.uplink.drops.add(reason, 1),
        }
    }
}
