//! What ought to happen: a list of megaflows and the reference executor.

use super::lab::{LOCAL, PEER_MAC, UPLINK_MAC};
use super::{BASE, PORTS, UPLINK, endpoints, links};
use datapath::megaflow::{Megaflow, MegaflowId};
use flow::{
    Action, DropCounters, DropReason, Encapsulated, EndpointTable, Field, FlowKey, FlowMask,
    NextHop, Output, PortNo, TunnelInfo, TunnelType, WayBack, execute, extract,
};
use packet::{
    Checksum, Gso, Offload, PacketBuf, SegmentChecksum, Segmenter, Verdict, complete_checksum,
    verify_checksum,
};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use wire::vlan::{MAX_TAGS, TAG_LEN, Tag};
use wire::{EtherType, EthernetPacket, Ipv4Packet, MacAddr, Protocol};

/// What is the same for all packets of a flow.
const FLOW: [Field; 13] = [
    Field::EthSrc,
    Field::EthDst,
    Field::EthType,
    Field::VlanTci,
    Field::VlanInnerTci,
    Field::Ip4Src,
    Field::Ip4Dst,
    Field::Ip6Src,
    Field::Ip6Dst,
    Field::IpProto,
    Field::TpSrc,
    Field::TpDst,
    Field::TunId,
];
/// Where the IP header of an untagged frame is, and what follows one of IPv4.
const L3: usize = 14;
const L4: usize = L3 + 20;
/// Where tags are.
const ADDRESSES: usize = 12;

/// A frame on a wire, so that equal ones are equal: see the suite's rules.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Frame {
    pub bytes: Vec<u8>,
    pub gso: Option<Gso>,
}

/// A frame on a wire, and what is not compared but has to be the same for one flow.
#[derive(Clone, Debug)]
pub(super) struct Sighting {
    pub frame: Frame,
    /// Of an outer packet.
    pub source_port: Option<u16>,
}

impl Sighting {
    /// A frame of a port.
    pub fn whole(packet: &PacketBuf) -> Self {
        let mut packet = packet.clone();
        let gso = packet.offload.gso;
        if gso.is_none() && packet.offload.checksum != Checksum::Unverified {
            // One that cannot be completed stays as it is on both sides.
            let _ = complete_checksum(&mut packet);
        }
        Self { frame: Frame { bytes: packet.to_vec(), gso }, source_port: None }
    }

    /// The segments of a frame, whole.
    pub fn cut(packet: &PacketBuf) -> Vec<Self> {
        // Who cuts looks behind two tags.
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
            Self { frame: Frame { bytes, gso: None }, source_port: None }
        })
        .collect()
    }

    /// What was found on a wire; none of it if the host itself spoke.
    pub fn of_wire(packet: &PacketBuf, uplink: bool) -> Vec<Self> {
        let Ok(ethernet) = EthernetPacket::new_checked(packet.head()) else {
            return vec![Self::whole(packet)];
        };
        if !uplink || ethernet.src() != UPLINK_MAC {
            return vec![Self::whole(packet)];
        }
        if ethernet.ethertype() != EtherType::IPV4 {
            return Vec::new();
        }
        if packet.head().get(L3 + 9) == Some(&Protocol::TCP.0) {
            return vec![Self::outer(Self::whole(packet))];
        }
        Self::cut(packet).into_iter().map(Self::outer).collect()
    }

    /// An outer packet, without what no two senders have in common.
    fn outer(mut self) -> Self {
        let bytes = &mut self.frame.bytes;
        let ip = Ipv4Packet::new_checked(&bytes[L3..]).expect("an outer IPv4 header");
        assert!(ip.verify_checksum(), "a wrong checksum of the outer IPv4 header: {bytes:02x?}");
        let protocol = ip.protocol();
        if self.frame.gso.is_none() {
            let verdict = verify_checksum(&PacketBuf::from_bytes(bytes));
            assert_ne!(verdict, Verdict::Invalid, "a wrong outer checksum: {bytes:02x?}");
        }
        bytes[L3 + 4..L3 + 6].fill(0);
        bytes[L3 + 10..L3 + 12].fill(0);
        let checksum = match protocol {
            Protocol::UDP => L4 + 6,
            Protocol::TCP => {
                bytes[L4 + 8..L4 + 12].fill(0);
                L4 + 16
            }
            _ => return self,
        };
        // That UDP has one is compared; one of TCP may be 0.
        let has_checksum = protocol == Protocol::UDP && bytes[checksum..checksum + 2] != [0, 0];
        bytes[checksum..checksum + 2].copy_from_slice(&[0, has_checksum.into()]);
        self.source_port = Some(u16::from_be_bytes([bytes[L4], bytes[L4 + 1]]));
        bytes[L4..L4 + 2].fill(0);
        self
    }
}

/// A frame that is to leave.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    pub at: PortNo,
    pub frame: Frame,
    /// Of which flow it is, or what was made from a packet of that flow.
    pub flow: u64,
    /// The hash of the inner flow, of an outer packet.
    pub entropy: Option<u32>,
}

/// A packet that is to come up.
#[derive(Clone, Debug)]
pub(super) struct Up {
    pub port: PortNo,
    pub key: FlowKey,
    pub packet: PacketBuf,
}

/// What is to happen.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub expected: Vec<Expected>,
    pub misses: Vec<Up>,
    pub copies: Vec<Up>,
    /// By the port that the frames came by.
    pub drops: BTreeMap<PortNo, DropCounters>,
}

/// See the module.
pub(super) struct Reference {
    /// With packets and bytes.
    pub megaflows: Vec<(Megaflow, (u64, u64))>,
    pub ports: BTreeSet<PortNo>,
    /// Frames that leave by ports are compared after they have been cut.
    pub cut: bool,
    endpoints: EndpointTable,
}

impl Reference {
    pub fn new() -> Self {
        let mut table = EndpointTable::new(BASE, 64);
        for (id, spec, remote) in endpoints() {
            table.insert(id, &spec, LOCAL.into(), remote).expect("an end point");
            let hop = NextHop { source: UPLINK_MAC, destination: PEER_MAC };
            table.resolve(id, Some(hop));
        }
        Self { megaflows: Vec::new(), ports: PORTS.into(), cut: false, endpoints: table }
    }

    /// True when some packet could meet both this condition and that of a megaflow that is there.
    pub fn overlaps(&self, condition: &flow::Match) -> bool {
        self.megaflows.iter().any(|(megaflow, _)| megaflow.condition.clone().and(condition))
    }

    /// A frame comes in.
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
                Err(reason) => outcome.drops.entry(UPLINK).or_default().add(reason, 1),
            };
        }
        let Ok(key) = extract(packet, port, tunnel) else {
            let origin = self.origin(port);
            outcome.drops.entry(origin).or_default().add(DropReason::Malformed, 1);
            return;
        };
        let found =
            self.megaflows.iter_mut().find(|(megaflow, _)| megaflow.condition.matches(&key));
        match found {
            Some((megaflow, (packets, bytes))) => {
                *packets += 1;
                *bytes += packet.len() as u64;
                let actions = megaflow.actions.clone();
                self.execute(&Up { port, key, packet: packet.clone() }, &actions, outcome);
            }
            None => outcome.misses.push(Up { port, key, packet: packet.clone() }),
        }
    }

    /// Actions are executed on a packet.
    pub fn execute(&mut self, up: &Up, actions: &[Action], outcome: &mut Outcome) {
        let mut sink = Sink {
            ports: &self.ports,
            cut: self.cut,
            flow: flow_of(up.port, &up.key),
            expected: Vec::new(),
            drops: DropCounters::default(),
            copies: Vec::new(),
            too_big: Vec::new(),
        };
        execute(actions, &mut up.packet.clone(), &mut self.endpoints, &mut sink);
        sink.tell_sender(up);
        let Sink { expected, drops, copies, .. } = sink;
        outcome.expected.extend(expected);
        let origin = self.origin(up.port);
        let total = outcome.drops.entry(origin).or_default();
        drops.nonzero().for_each(|(reason, count)| total.add(reason, count));
        outcome.copies.extend(copies.into_iter().map(|packet| Up { packet, ..up.clone() }));
    }

    /// Against which port a drop is counted: what came from the underlay, against the uplink.
    fn origin(&self, port: PortNo) -> PortNo {
        if self.ports.contains(&port) { port } else { UPLINK }
    }

    pub fn ids(&self) -> Vec<MegaflowId> {
        self.megaflows.iter().map(|(megaflow, _)| megaflow.id).collect()
    }
}

/// The flow that a packet belongs to, whose packets keep their order.
pub(super) fn flow_of(port: PortNo, key: &FlowKey) -> u64 {
    let mut mask = FlowMask::default();
    FLOW.into_iter().for_each(|field| mask.add(field));
    let mut hasher = DefaultHasher::new();
    (port, mask.apply(key)).hash(&mut hasher);
    hasher.finish()
}

struct Sink<'a> {
    ports: &'a BTreeSet<PortNo>,
    cut: bool,
    flow: u64,
    expected: Vec<Expected>,
    drops: DropCounters,
    copies: Vec<PacketBuf>,
    too_big: Vec<(PacketBuf, u16)>,
}

impl Sink<'_> {
    /// What the sender of packets that are too long is told, if it is a guest of this host.
    fn tell_sender(&mut self, up: &Up) {
        if !self.ports.contains(&up.port) {
            return;
        }
        let mac = |field| {
            let [_, _, octets @ ..] = (up.key.get(field) as u64).to_be_bytes();
            MacAddr(octets)
        };
        let tags: Vec<Tag> =
            [(Field::VlanTpid, Field::VlanTci), (Field::VlanInnerTpid, Field::VlanInnerTci)]
                .into_iter()
                .map(|(tpid, tci)| (up.key.get(tpid) as u16, up.key.get(tci) as u16))
                .filter(|&(tpid, _)| tpid != 0)
                .map(|(tpid, tci)| Tag::from_tci(EtherType(tpid), tci & 0xefff))
                .collect();
        let (eth_dst, eth_src) = (mac(Field::EthSrc), mac(Field::EthDst));
        for (packet, mtu) in std::mem::take(&mut self.too_big) {
            let back = WayBack { eth_dst, eth_src, tags: &tags };
            if let Ok(answer) = flow::too_big(&packet, mtu, &back) {
                self.push(up.port, Sighting::whole(&answer), None);
            }
        }
    }

    fn push(&mut self, at: PortNo, sighting: Sighting, entropy: Option<u32>) {
        let flow = self.flow;
        self.expected.push(Expected { at, frame: sighting.frame, flow, entropy });
    }
}

impl Output for Sink<'_> {
    fn port(&mut self, port: PortNo, packet: &mut PacketBuf) -> Result<(), DropReason> {
        if port != UPLINK && !self.ports.contains(&port) {
            return Err(DropReason::NoSuchPort);
        }
        if self.cut {
            packet.linearize();
            // One super-packet after the other leaves, or each segment to all its ports: order is that of one output.
            self.flow = self.flow.rotate_left(1).wrapping_add(1);
            Sighting::cut(packet).into_iter().for_each(|segment| self.push(port, segment, None));
        } else {
            self.push(port, Sighting::whole(packet), None);
        }
        Ok(())
    }

    fn underlay(&mut self, outer: &Encapsulated, packet: &mut PacketBuf) -> Result<(), DropReason> {
        let entropy = Some(outer.entropy);
        if outer.tunnel == TunnelType::Stt {
            self.push(UPLINK, Sighting::whole(packet).outer(), entropy);
            return Ok(());
        }
        for segment in outer_segments(outer, packet).ok_or(DropReason::Segmentation)? {
            let frame = Frame { bytes: segment, gso: None };
            self.push(UPLINK, Sighting { frame, source_port: None }.outer(), entropy);
        }
        Ok(())
    }

    fn too_big(&mut self, packet: &PacketBuf, mtu: u16) {
        self.too_big.push((packet.clone(), mtu));
    }

    fn dropped(&mut self, reason: DropReason, _: &PacketBuf) {
        self.drops.add(reason, 1);
    }

    fn controller(&mut self, packet: &PacketBuf) {
        self.copies.push(packet.clone());
    }
}

/// The packets that a frame becomes in a tunnel other than STT.
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

/// As a packet that arrives whole.
pub(super) fn arrived(bytes: &[u8]) -> PacketBuf {
    let mut packet = PacketBuf::from_bytes(bytes);
    packet.offload = Offload::default();
    packet
}
