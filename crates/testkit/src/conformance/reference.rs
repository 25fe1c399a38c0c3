//! Computes the expected results with a list of megaflows and the reference executor.

use super::lab::{Limits, PEER_MAC, UPLINK_MAC};
use super::order::{flow_of, path_of};
use super::tunnels::group_mac;
use super::{BASE, PORTS, UPLINK, endpoints, links};
use datapath::config::EndpointConfig;
use datapath::megaflow::{Megaflow, MegaflowId};
use datapath::solicit::Solicitations;
use flow::{
    Action, ActionOutput, Carrier, DropCounters, DropReason, Encapsulated, EndpointTable, Field,
    FlowKey, NextHop, PortNo, ReplyAddresses, TunnelInfo, TunnelType, execute, extract,
};
use packet::{
    Checksum, ChecksumStatus, Gso, Offload, PacketBuf, SegmentChecksum, Segmenter,
    complete_checksum, verify_checksum,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;
use wire::checksum::pseudo_v4;
use wire::tunnel::gre::{CHECKSUM_OFFSET, FIELD_LEN};
use wire::tunnel::{GrePacket, geneve};
use wire::vlan::{MAX_TAGS, TAG_LEN, Tag};
use wire::{EtherType, EthernetPacket, Ipv4Packet, MacAddr, ParseError, Protocol};

/// The offset of the IP header of an untagged frame.
pub(super) const L3: usize = 14;
/// The offset of VLAN tags.
const ADDRESSES: usize = 12;

/// The offset of the transport header of an outer packet, whose IP header has no options.
pub(super) fn outer_l4(packet: &[u8]) -> usize {
    L3 + if is_v4(packet) { 20 } else { 40 }
}

/// True for an outer IPv4 packet.
pub(super) fn is_v4(packet: &[u8]) -> bool {
    packet[L3] >> 4 == 4
}

/// The IP protocol of an outer packet that was sent on the uplink; `None` for a guest's frame.
fn outer_protocol(packet: &PacketBuf) -> Option<Protocol> {
    let ethernet = EthernetPacket::new_checked(packet.head()).ok()?;
    let at = match ethernet.ethertype() {
        _ if ethernet.src() != UPLINK_MAC => return None,
        EtherType::IPV4 => L3 + 9,
        EtherType::IPV6 => L3 + 6,
        // Another frame of the host, such as ARP.
        _ => return Some(Protocol(0)),
    };
    Some(packet.head().get(at).map_or(Protocol(0), |&byte| Protocol(byte)))
}

/// True for the host's own frames on the uplink: ARP, neighbour discovery, multicast membership.
pub(super) fn is_of_host(packet: &PacketBuf) -> bool {
    const IGMP: Protocol = Protocol(2);
    let tunnels = [Protocol::TCP, Protocol::UDP, Protocol::GRE];
    let is_v4 = packet.head().get(L3).is_some_and(|first| first >> 4 == 4);
    outer_protocol(packet).is_some_and(|protocol| match protocol {
        Protocol(0) | IGMP => true,
        _ => !is_v4 && !tunnels.contains(&protocol),
    })
}

/// The tunnel socket of an outer packet: IP version, protocol, destination port.
type Sender = (bool, Protocol, u16);

/// A frame in a form in which equal frames compare equal, by the rules of the suite (see the
/// documentation of the module `conformance`).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Frame {
    pub bytes: Vec<u8>,
    pub gso: Option<Gso>,
}

/// A received frame, with values that are not compared but must be equal within a flow.
#[derive(Clone, Debug)]
pub(super) struct ObservedFrame {
    pub frame: Frame,
    /// The source port of an outer packet, if it has one.
    pub source_port: Option<(Sender, u16)>,
    /// The GRE sequence number, if any.
    pub sequence: Option<u32>,
}

impl ObservedFrame {
    fn new(bytes: Vec<u8>, gso: Option<Gso>) -> Self {
        Self { frame: Frame { bytes, gso }, source_port: None, sequence: None }
    }

    /// A frame that is compared without segmentation.
    pub fn whole(packet: &PacketBuf) -> Self {
        let mut packet = packet.clone();
        let gso = packet.offload.gso;
        if gso.is_none() && packet.offload.checksum != Checksum::Unverified {
            // A checksum that cannot be completed stays partial on both sides.
            let _ = complete_checksum(&mut packet);
        }
        Self::new(packet.to_vec(), gso)
    }

    /// The segments of a frame that is compared after segmentation.
    pub fn cut(packet: &PacketBuf) -> Vec<Self> {
        // The segmenter finds headers behind at most two tags.
        let mut bytes = packet.to_vec();
        let tags = bytes[ADDRESSES..].as_chunks::<TAG_LEN>().0;
        let is_tag =
            |tag: &&[u8; TAG_LEN]| EtherType(u16::from_be_bytes([tag[0], tag[1]])).is_vlan();
        let more = tags.iter().take_while(is_tag).count().saturating_sub(MAX_TAGS) * TAG_LEN;
        let front: Vec<u8> = bytes.drain(ADDRESSES..ADDRESSES + more).collect();
        let mut inner = PacketBuf::from_bytes(&bytes);
        inner.offload = packet.offload;
        if let Checksum::Partial { start, .. } = &mut inner.offload.checksum {
            *start -= more as u16;
        }
        let mut segmenter = Segmenter::new();
        let cut = segmenter
            .segment(&inner, 0, SegmentChecksum::Complete, |_| {})
            .unwrap_or_else(|error| panic!("{error}: {:02x?}", inner.head()));
        cut.map(|(header, payload)| {
            let mut bytes = [header, payload].concat();
            bytes.splice(ADDRESSES..ADDRESSES, front.iter().copied());
            Self::new(bytes, None)
        })
        .collect()
    }

    /// The frames to compare for a frame received on a link. With `bare`, a super-packet may lack
    /// its outer UDP checksum.
    pub fn of_wire(packet: &PacketBuf, uplink: bool, bare: bool) -> Vec<Self> {
        match outer_protocol(packet).filter(|_| uplink) {
            None => vec![Self::whole(packet)],
            Some(Protocol::TCP) => vec![Self::outer(Self::whole(packet))],
            Some(protocol) if is_super_in_tunnel(packet) => {
                cut_in_tunnel(packet, protocol, bare).into_iter().map(Self::outer).collect()
            }
            Some(_) => Self::cut(packet).into_iter().map(Self::outer).collect(),
        }
    }

    /// An outer packet, in which the fields that senders choose are set to 0.
    fn outer(mut self) -> Self {
        let bytes = &mut self.frame.bytes;
        if self.frame.gso.is_none() && !has_no_checksum(bytes) {
            let status = verify_checksum(&PacketBuf::from_bytes(bytes));
            assert_ne!(status, ChecksumStatus::Invalid, "a wrong outer checksum: {bytes:02x?}");
        }
        let (is_v4, l4) = (is_v4(bytes), outer_l4(bytes));
        let protocol = if is_v4 {
            let ip = Ipv4Packet::new_checked(&bytes[L3..]).expect("an outer IPv4 header");
            assert!(
                ip.verify_checksum(),
                "a wrong checksum of the outer IPv4 header: {bytes:02x?}"
            );
            let protocol = ip.protocol();
            bytes[L3 + 4..L3 + 6].fill(0);
            bytes[L3 + 10..L3 + 12].fill(0);
            protocol
        } else {
            // Clears the flow label.
            bytes[L3 + 1] &= 0xf0;
            bytes[L3 + 2..L3 + 4].fill(0);
            Protocol(bytes[L3 + 6])
        };
        let checksum = match protocol {
            Protocol::UDP => l4 + 6,
            Protocol::TCP => {
                bytes[l4 + 8..l4 + 12].fill(0);
                l4 + 16
            }
            Protocol::GRE => {
                self.sequence = take_sequence(&mut bytes[l4..]);
                if is_to_nvgre(bytes) {
                    let flow_id = std::mem::take(&mut bytes[l4 + NVGRE_FLOW_ID]);
                    self.source_port = Some(((is_v4, protocol, 0), flow_id.into()));
                }
                return self;
            }
            _ => return self,
        };
        let port = u16::from_be_bytes([bytes[l4 + 2], bytes[l4 + 3]]);
        // UDP checksums are compared only by their presence, and only if the tunnel requires one. A
        // TCP checksum may be 0.
        let is_required = protocol == Protocol::UDP && requires_checksum(is_v4, port);
        let has_checksum = is_required && bytes[checksum..checksum + 2] != [0, 0];
        bytes[checksum..checksum + 2].copy_from_slice(&[0, has_checksum.into()]);
        let source_port = u16::from_be_bytes([bytes[l4], bytes[l4 + 1]]);
        self.source_port = Some(((is_v4, protocol, port), source_port));
        bytes[l4..l4 + 2].fill(0);
        self
    }
}

/// True for a super-packet inside a tunnel, whose partial checksum is the inner one. In a UDP batch
/// (several datagrams as one GSO packet), the outer checksum is partial.
fn is_super_in_tunnel(packet: &PacketBuf) -> bool {
    let Checksum::Partial { start, .. } = packet.offload.checksum else { return false };
    packet.offload.gso.is_some() && usize::from(start) > outer_l4(packet.head())
}

/// Segments a super-packet in a tunnel. The outer headers of the segments differ only in lengths
/// and checksums.
fn cut_in_tunnel(packet: &PacketBuf, protocol: Protocol, bare: bool) -> Vec<ObservedFrame> {
    let mut packet = packet.clone();
    packet.linearize();
    let head = packet.head();
    let (l4, is_udp) = (outer_l4(head), protocol == Protocol::UDP);
    let outer_len = if is_udp {
        let is_geneve = head[l4 + 2..l4 + 4] == geneve::PORT.to_be_bytes();
        let options = if is_geneve { usize::from(head[l4 + 8] & 0x3f) * 4 } else { 0 };
        l4 + 16 + options
    } else {
        l4 + GrePacket::new_checked(&head[l4..]).expect("a GRE header").header_len()
    };
    let mut segmenter = Segmenter::new();
    let cut = segmenter
        .segment(&packet, outer_len, SegmentChecksum::Complete, |segment| {
            set_lengths(segment.header, segment.payload, is_udp.then_some(bare));
        })
        .unwrap_or_else(|error| panic!("{error}: {:02x?}", packet.head()));
    cut.map(|(header, payload)| ObservedFrame::new([header, payload].concat(), None)).collect()
}

/// Sets the lengths and checksums of an outer header. `udp` is `Some` for UDP. An absent UDP
/// checksum is added only if `udp` is `Some(true)` and the tunnel requires one.
fn set_lengths(header: &mut [u8], payload: &[u8], udp: Option<bool>) {
    let (total, l4) = (header.len() + payload.len(), outer_l4(header));
    if is_v4(header) {
        header[L3 + 2..L3 + 4].copy_from_slice(&((total - L3) as u16).to_be_bytes());
        header[L3 + 10..L3 + 12].fill(0);
        let sum = wire::checksum::checksum(&header[L3..l4]);
        header[L3 + 10..L3 + 12].copy_from_slice(&sum.to_be_bytes());
    } else {
        header[L3 + 4..L3 + 6].copy_from_slice(&((total - l4) as u16).to_be_bytes());
    }
    let Some(bare) = udp else { return };
    header[l4 + 4..l4 + 6].copy_from_slice(&((total - l4) as u16).to_be_bytes());
    let port = u16::from_be_bytes([header[l4 + 2], header[l4 + 3]]);
    if bare && is_v4(header) && requires_checksum(true, port) {
        let ip = Ipv4Packet::new_unchecked(&header[L3..]);
        let pseudo = pseudo_v4(ip.src(), ip.dst(), Protocol::UDP, (total - l4) as u16);
        header[l4 + 6..l4 + 8].fill(0);
        let sum = pseudo.bytes(&header[l4..]).bytes(payload).udp_checksum();
        header[l4 + 6..l4 + 8].copy_from_slice(&sum.to_be_bytes());
    }
}

/// True for an outer UDP packet without checksum.
fn has_no_checksum(packet: &[u8]) -> bool {
    let l4 = outer_l4(packet);
    let protocol = packet[L3 + if is_v4(packet) { 9 } else { 6 }];
    Protocol(protocol) == Protocol::UDP && packet[l4 + 6..l4 + 8] == [0, 0]
}

/// True when the UDP tunnel with this address family and destination port sends checksums.
fn requires_checksum(is_v4: bool, port: u16) -> bool {
    let is = |end: &EndpointConfig| (end.local.is_ipv4(), end.spec.port) == (is_v4, port);
    endpoints().find(is).is_some_and(|end| end.spec.checksum)
}

/// The offset of the FlowID in an NVGRE header. It contains a hash of the inner flow.
const NVGRE_FLOW_ID: usize = 7;

/// True for an outer packet to an NVGRE end point, whose header cannot be distinguished from GRE.
fn is_to_nvgre(packet: &[u8]) -> bool {
    let end = outer_l4(packet);
    let is_remote = |remote: IpAddr| match remote {
        IpAddr::V4(v4) => is_v4(packet) && packet[end - 4..end] == v4.octets(),
        IpAddr::V6(v6) => !is_v4(packet) && packet[end - 16..end] == v6.octets(),
    };
    super::single_endpoints()
        .any(|end| end.spec.tunnel == TunnelType::Nvgre && is_remote(end.remote))
}

/// Removes the GRE sequence number, after verifying the checksum that covers it.
fn take_sequence(bytes: &mut [u8]) -> Option<u32> {
    let gre = GrePacket::new_checked(&*bytes).expect("a GRE header");
    assert!(gre.verify_checksum(), "a wrong GRE checksum: {bytes:02x?}");
    let (sequence, has_checksum, end) =
        (gre.sequence()?, gre.checksum().is_some(), gre.header_len());
    bytes[end - FIELD_LEN..end].fill(0);
    if has_checksum {
        bytes[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 2].fill(0);
    }
    Some(sequence)
}

/// An expected frame.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    pub at: PortNo,
    pub frame: Frame,
    /// The packet's flow, or the flow from which the packet was derived.
    pub flow: u64,
    /// Identifies the megaflow and the actions that forwarded the frame. Frames of one flow with
    /// different actions may take different paths (an eBPF program or a thread), and overtake each
    /// other.
    pub path: u64,
    /// The hash of the inner flow, for an outer packet.
    pub entropy: Option<u32>,
}

/// An expected upcall.
#[derive(Clone, Debug)]
pub(super) struct ExpectedUpcall {
    pub port: PortNo,
    pub key: FlowKey,
    pub packet: PacketBuf,
}

/// The expected results.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub expected: Vec<Expected>,
    pub misses: Vec<ExpectedUpcall>,
    pub copies: Vec<ExpectedUpcall>,
    /// Drops by ingress port.
    pub drops: BTreeMap<PortNo, DropCounters>,
    /// The drops of looked-up packets, which drop watchers receive.
    pub drop_events: Vec<DropEvent>,
    /// The frames that arrived on each port.
    pub received: Vec<(PortNo, PacketBuf)>,
    /// The frames that were passed to each port for output, accepted or not, with their offload
    /// state.
    pub output: Vec<(PortNo, PacketBuf)>,
}

/// A dropped packet as it was at the drop.
#[derive(Clone, Debug)]
pub(super) struct DropEvent {
    pub port: PortNo,
    pub reason: DropReason,
    pub megaflow: Option<MegaflowId>,
    pub packet: PacketBuf,
}

/// A list of megaflows, which the reference executor applies.
pub(super) struct Reference {
    /// The megaflows with packet and byte counters.
    pub megaflows: Vec<(Megaflow, (u64, u64))>,
    pub ports: BTreeSet<PortNo>,
    /// Segment frames on ports before they are compared.
    pub cut: bool,
    /// Upcalls and cache hits are mixed, so that no order is guaranteed.
    pub unordered: bool,
    /// Rate limits of neighbour solicitations; none by default.
    pub solicitations: Solicitations,
    endpoints: EndpointTable,
}

impl Reference {
    pub fn new(endpoints: &[EndpointConfig]) -> Self {
        let mut table = EndpointTable::new(BASE, 64);
        for EndpointConfig { id, spec, local, remote } in endpoints {
            table.insert(*id, spec, *local, *remote).expect("an end point");
            let is_group = remote.is_multicast();
            let destination = if is_group { group_mac(*remote) } else { PEER_MAC };
            table.resolve(*id, Some(NextHop { source: UPLINK_MAC, destination }));
        }
        let (megaflows, ports) = (Vec::new(), PORTS.into());
        let solicitations = Solicitations::new(Limits::default().solicit);
        Self { megaflows, ports, cut: false, unordered: false, solicitations, endpoints: table }
    }

    /// True when a packet could match both this condition and an existing megaflow.
    pub fn overlaps(&self, condition: &flow::Match) -> bool {
        self.megaflows.iter().any(|(megaflow, _)| megaflow.condition.clone().and(condition))
    }

    /// Processes a received frame.
    pub fn receive(
        &mut self,
        port: PortNo,
        tunnel: Option<&TunnelInfo>,
        packet: &PacketBuf,
        outcome: &mut Outcome,
    ) {
        if port == UPLINK {
            return match links::arrived(port, packet) {
                Ok((port, info, inner)) => self.receive(port, info.as_ref(), &inner, outcome),
                Err(reason) => {
                    outcome.drops.entry(UPLINK).or_default().add(reason, 1);
                    let packet = packet.clone();
                    outcome.drop_events.push(DropEvent { port, reason, megaflow: None, packet });
                }
            };
        }
        let key = match extract(packet, port, tunnel) {
            Ok(key) => key,
            Err(error) => return self.malformed(port, error, packet, outcome),
        };
        let found =
            self.megaflows.iter_mut().find(|(megaflow, _)| megaflow.condition.matches(&key));
        match found {
            Some((megaflow, (packets, bytes))) => {
                *packets += 1;
                *bytes += packet.len() as u64;
                let (id, actions) = (megaflow.id, megaflow.actions.clone());
                let upcall = ExpectedUpcall { port, key, packet: packet.clone() };
                self.execute(&upcall, &actions, Some(id), outcome);
            }
            None => outcome.misses.push(ExpectedUpcall { port, key, packet: packet.clone() }),
        }
    }

    /// Processes a frame from which no valid key can be extracted.
    pub fn malformed(
        &self,
        port: PortNo,
        error: ParseError,
        packet: &PacketBuf,
        outcome: &mut Outcome,
    ) {
        let reason = DropReason::of_invalid_frame(error);
        outcome.drops.entry(self.origin(port)).or_default().add(reason, 1);
        outcome.drop_events.push(DropEvent {
            port,
            reason,
            megaflow: None,
            packet: packet.clone(),
        });
    }

    /// Executes actions on a packet; `megaflow` is the one that matched.
    pub fn execute(
        &mut self,
        upcall: &ExpectedUpcall,
        actions: &[Action],
        megaflow: Option<MegaflowId>,
        outcome: &mut Outcome,
    ) {
        let flow = if self.unordered { outcome.expected.len() as u64 } else { 0 };
        let mut sink = Sink {
            origin: upcall.port,
            solicitations: &mut self.solicitations,
            ports: &self.ports,
            cut: self.cut,
            flow: flow_of(upcall.port, &upcall.key, &upcall.packet).wrapping_add(flow),
            path: path_of(megaflow, actions),
            expected: Vec::new(),
            drops: Vec::new(),
            output: Vec::new(),
            copies: Vec::new(),
            too_big: Vec::new(),
        };
        execute(actions, &mut upcall.packet.clone(), &mut self.endpoints, &mut sink);
        sink.send_too_big(upcall);
        let Sink { expected, drops, output, copies, .. } = sink;
        outcome.expected.extend(expected);
        outcome.output.extend(output);
        let origin = self.origin(upcall.port);
        for (reason, packet) in drops {
            outcome.drops.entry(origin).or_default().add(reason, 1);
            outcome.drop_events.push(DropEvent { port: upcall.port, reason, megaflow, packet });
        }
        outcome
            .copies
            .extend(copies.into_iter().map(|packet| ExpectedUpcall { packet, ..upcall.clone() }));
    }

    /// The port for which drops of a packet are counted: the uplink for packets from the underlay.
    fn origin(&self, port: PortNo) -> PortNo {
        if self.ports.contains(&port) { port } else { UPLINK }
    }

    pub fn ids(&self) -> Vec<MegaflowId> {
        self.megaflows.iter().map(|(megaflow, _)| megaflow.id).collect()
    }
}

struct Sink<'a> {
    origin: PortNo,
    solicitations: &'a mut Solicitations,
    ports: &'a BTreeSet<PortNo>,
    cut: bool,
    flow: u64,
    path: u64,
    expected: Vec<Expected>,
    drops: Vec<(DropReason, PacketBuf)>,
    output: Vec<(PortNo, PacketBuf)>,
    copies: Vec<PacketBuf>,
    too_big: Vec<(PacketBuf, u16)>,
}

impl Sink<'_> {
    /// Counts the ICMP "packet too big" message to the sender, if the sender is a local guest.
    fn send_too_big(&mut self, upcall: &ExpectedUpcall) {
        if !self.ports.contains(&upcall.port) {
            return;
        }
        let mac = |field| {
            let [_, _, octets @ ..] = (upcall.key.get(field) as u64).to_be_bytes();
            MacAddr(octets)
        };
        let tags: Vec<Tag> =
            [(Field::VlanTpid, Field::VlanTci), (Field::VlanInnerTpid, Field::VlanInnerTci)]
                .into_iter()
                .map(|(tpid, tci)| (upcall.key.get(tpid) as u16, upcall.key.get(tci) as u16))
                .filter(|&(tpid, _)| tpid != 0)
                .map(|(tpid, tci)| Tag::from_tci(EtherType(tpid), tci & 0xefff))
                .collect();
        let (eth_dst, eth_src) = (mac(Field::EthSrc), mac(Field::EthDst));
        for (packet, mtu) in std::mem::take(&mut self.too_big) {
            let back = ReplyAddresses { eth_dst, eth_src, tags: &tags };
            if let Ok(answer) = flow::too_big(&packet, mtu, &back) {
                self.output.push((upcall.port, answer.clone()));
                self.push(upcall.port, ObservedFrame::whole(&answer), None);
            }
        }
    }

    fn push(&mut self, at: PortNo, observed: ObservedFrame, entropy: Option<u32>) {
        let (flow, path) = (self.flow, self.path);
        self.expected.push(Expected { at, frame: observed.frame, flow, path, entropy });
    }
}

impl ActionOutput for Sink<'_> {
    fn port(&mut self, port: PortNo, packet: &mut PacketBuf) -> Result<(), DropReason> {
        if port != UPLINK {
            self.output.push((port, packet.clone()));
        }
        if port != UPLINK && !self.ports.contains(&port) {
            return Err(DropReason::NoSuchPort);
        }
        if self.cut {
            packet.linearize();
            // A datapath may send a super-packet segment by segment to all ports, or completely to
            // one port after the other. So order is checked separately for each output.
            self.flow = self.flow.rotate_left(1).wrapping_add(1);
            ObservedFrame::cut(packet)
                .into_iter()
                .for_each(|segment| self.push(port, segment, None));
        } else {
            self.push(port, ObservedFrame::whole(packet), None);
        }
        Ok(())
    }

    fn underlay(&mut self, outer: &Encapsulated, packet: &mut PacketBuf) -> Result<(), DropReason> {
        let entropy = Some(outer.entropy);
        if outer.carrier == Carrier::TcpLike {
            self.push(UPLINK, ObservedFrame::whole(packet).outer(), entropy);
            return Ok(());
        }
        for segment in outer_segments(outer, packet).ok_or(DropReason::Segmentation)? {
            self.push(UPLINK, ObservedFrame::new(segment, None).outer(), entropy);
        }
        Ok(())
    }

    fn too_big(&mut self, packet: &PacketBuf, mtu: u16) {
        self.too_big.push((packet.clone(), mtu));
    }

    fn dropped(&mut self, reason: DropReason, packet: &PacketBuf) {
        self.drops.push((reason, packet.clone()));
    }

    fn solicit(&mut self, solicitation: &PacketBuf, first: &Action) -> Result<(), DropReason> {
        self.solicitations.admit(self.origin, (solicitation.head(), first), Instant::now())
    }

    fn controller(&mut self, packet: &PacketBuf) {
        self.copies.push(packet.clone());
    }
}

/// The outer packets into which a frame is segmented in a tunnel other than STT.
pub(super) fn outer_segments(outer: &Encapsulated, packet: &PacketBuf) -> Option<Vec<Vec<u8>>> {
    let mut packet = packet.clone();
    packet.linearize();
    let mut segmenter = Segmenter::new();
    let cut = segmenter
        .segment(&packet, outer.outer_len, SegmentChecksum::Complete, |segment| {
            outer.finish_segment(segment.header, segment.payload, segment.index as u32);
        })
        .ok()?;
    Some(cut.map(|(header, payload)| [header, payload].concat()).collect())
}

/// A packet that was received without offload state.
pub(super) fn arrived(bytes: &[u8]) -> PacketBuf {
    let mut packet = PacketBuf::from_bytes(bytes);
    packet.offload = Offload::default();
    packet
}
