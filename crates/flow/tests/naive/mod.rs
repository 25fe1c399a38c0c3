//! Every decapsulator agrees with a naive reading of the same bytes ([`oracle`]), on random packets
//! with rare, damaged and truncated headers ([`packets`]). What one refuses the other refuses, for
//! the same reason.
//!
//! `cargo xtask decapsulation` is the long run. `WEFT_CASES` and `WEFT_SEED` set the number of
//! packets for each tunnel type, and the random seed.

mod oracle;
mod packets;

use flow::{
    DecapOptions, Decapped, DropReason, PortNo, TagLink, TagLinks, TunnelKey, TunnelType,
    decap_stt, strip_stt_segment,
};
use oracle::{Frame, Header, Segment};
use packet::{Checksum, GsoKind, PacketBuf};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use testkit::random::{Random, environment};
use wire::VlanId;

/// Numbers of packets by outcome.
#[derive(Default)]
struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    /// Counts an outcome, which both must agree on.
    fn add<T: PartialEq + Debug>(
        &mut self,
        found: &Result<T, DropReason>,
        expected: &Result<T, DropReason>,
        (seed, number, bytes): (u64, u64, &[u8]),
    ) {
        assert!(
            found == expected,
            "WEFT_SEED={seed}, packet {number}: {found:?}, expected {expected:?}\n{bytes:02x?}"
        );
        let outcome = found.as_ref().err().map_or(ACCEPTED, |reason| reason.name());
        *self.0.entry(outcome).or_default() += 1;
    }

    /// Prints the numbers as rows of a table. Each reason must have occurred, and no other.
    fn finish(&self, what: &str, reasons: &[DropReason]) {
        for (outcome, count) in &self.0 {
            println!("\n| {what} | {outcome} | {count} |");
        }
        let found: BTreeSet<_> = self.0.keys().copied().collect();
        let expected = reasons.iter().map(|reason| reason.name()).chain([ACCEPTED]).collect();
        assert_eq!(found, expected, "{what}");
        let all: u64 = self.0.values().sum();
        let share = self.0.get(ACCEPTED).copied().unwrap_or_default() as f64 / all as f64;
        assert!((0.1..0.9).contains(&share), "{what}: {share} of the packets are accepted");
    }
}

const ACCEPTED: &str = "accepted";

/// Calls `check` for each packet of a run, with the seed, the number of the packet, and random
/// numbers.
fn for_each(mut check: impl FnMut(u64, u64, &mut Random)) {
    let seed = environment("WEFT_SEED", 1);
    let mut random = Random::new(seed);
    for number in 0..environment("WEFT_CASES", 10_000) {
        check(seed, number, &mut random);
    }
}

fn header_of(decapped: Decapped) -> Header {
    let Decapped { key, inner } = decapped;
    Header { key: plain_key(key), inner }
}

/// Datapath, ingress port and egress port; a port is 0 if there is none.
fn plain_key(key: TunnelKey) -> (u32, u16, u16) {
    let ports = key.ports;
    let ingress = ports.and_then(|ports| ports.ingress).map_or(0, |port| port.value());
    (key.datapath.0, ingress, ports.map_or(0, |ports| ports.egress.value()))
}

/// Compares the decapsulator of a type that has a header with the oracle.
fn compare(
    tunnel: TunnelType,
    packet: impl Fn(&mut Random) -> Vec<u8>,
    oracle: impl Fn(&[u8], &DecapOptions) -> Result<Header, DropReason>,
    reasons: &[DropReason],
) {
    let mut tally = Tally::default();
    for_each(|seed, number, random| {
        let bytes = packet(random);
        let options = DecapOptions { key: !random.once_in(8), skip_checksum: random.once_in(8) };
        let found = tunnel.decap(&bytes, &options).map(header_of);
        tally.add(&found, &oracle(&bytes, &options), (seed, number, &bytes));
    });
    tally.finish(tunnel.name(), reasons);
}

#[test]
fn vxlan_decapsulator_agrees_with_a_naive_one() {
    use DropReason::{Malformed, MalformedTunnel, VxlanNoVni};
    let reasons = [Malformed, MalformedTunnel, VxlanNoVni];
    compare(TunnelType::Vxlan, packets::vxlan, |bytes, _| oracle::vxlan(bytes), &reasons);
}

#[test]
fn geneve_decapsulator_agrees_with_a_naive_one() {
    use DropReason::{
        GeneveControl, GeneveCriticalOption, Malformed, MalformedTunnel, TunnelProtocol,
        UnknownLogicalPort,
    };
    let reasons = [
        GeneveControl,
        GeneveCriticalOption,
        Malformed,
        MalformedTunnel,
        TunnelProtocol,
        UnknownLogicalPort,
    ];
    compare(TunnelType::Geneve, packets::geneve, |bytes, _| oracle::geneve(bytes), &reasons);
}

#[test]
fn gre_decapsulator_agrees_with_a_naive_one() {
    use DropReason::{
        GreChecksum, GreNoKey, Malformed, MalformedTunnel, TunnelProtocol, UnknownDatapath,
    };
    let reasons =
        [GreChecksum, GreNoKey, Malformed, MalformedTunnel, TunnelProtocol, UnknownDatapath];
    compare(TunnelType::Gre, packets::gre, oracle::gre, &reasons);
}

#[test]
fn nvgre_decapsulator_agrees_with_a_naive_one() {
    use DropReason::{GreNoKey, Malformed, MalformedTunnel, TunnelProtocol};
    let reasons = [GreNoKey, Malformed, MalformedTunnel, TunnelProtocol];
    compare(TunnelType::Nvgre, packets::gre, |bytes, _| oracle::nvgre(bytes), &reasons);
}

/// The links of a host by their tags: TPID and VLAN of the outer tag, VLAN of the inner tag. VLAN
/// links have no inner tag.
const VLANS: [(u16, u16, Option<u16>); 2] = [(0x8100, 7, None), (0x8100, 4094, None)];
const PAIRS: [(u16, u16, Option<u16>); 4] =
    [(0x88a8, 7, Some(8)), (0x8100, 9, Some(1)), (0x9100, 1, Some(4094)), (0x8100, 4094, Some(7))];

/// Compares the removal of tags with the oracle, on a host with these links.
fn compare_tags(tunnel: TunnelType, links: &[(u16, u16, Option<u16>)]) {
    let vlan = |number| VlanId::new(number).expect("a VLAN");
    let known: TagLinks = (1..)
        .zip(links)
        .map(|(port, &(tpid, outer, inner))| {
            let link = match inner {
                None => TagLink::Vlan(vlan(outer)),
                Some(inner) => TagLink::QinQ {
                    service_tpid: wire::EtherType(tpid),
                    outer: vlan(outer),
                    inner: vlan(inner),
                },
            };
            (link, PortNo(port))
        })
        .collect();
    let mut tally = Tally::default();
    for_each(|seed, number, random| {
        let bytes = packets::tagged(random);
        let mut packet = PacketBuf::from_bytes(&bytes);
        let found = known.decap(&mut packet).map(|(_, port)| (port.0, packet.to_vec()));
        tally.add(&found, &oracle::tagged(&bytes, links), (seed, number, &bytes));
        if found.is_err() {
            assert_eq!(packet.to_vec(), bytes, "a refused frame is unchanged");
        }
    });
    tally.finish(tunnel.name(), &[DropReason::Malformed, DropReason::UnknownDatapath]);
}

#[test]
fn vlan_decapsulator_agrees_with_a_naive_one() {
    compare_tags(TunnelType::Vlan, &VLANS);
}

/// The host has VLAN links as well, one of which has the outer tag of a pair.
#[test]
fn qinq_decapsulator_agrees_with_a_naive_one() {
    compare_tags(TunnelType::QinQ, &[&PAIRS[..], &VLANS].concat());
}

/// Strips the outer headers of a segment.
fn segment_of(packet: &mut PacketBuf) -> Result<Segment, DropReason> {
    let segment = strip_stt_segment(packet)?;
    Ok(Segment {
        ports: (segment.key.src_port, segment.port),
        packet_id: segment.key.packet_id,
        total: segment.place.total,
        offset: segment.place.offset,
        traffic_class: segment.traffic_class,
        payload: packet.to_vec(),
    })
}

/// Decapsulates a frame.
fn frame_of(packet: &mut PacketBuf) -> Result<Frame, DropReason> {
    let key = decap_stt(packet)?;
    let partial = match packet.offload.checksum {
        Checksum::Partial { start, offset } => Some((start, offset)),
        _ => None,
    };
    let gso = packet.offload.gso.map(|gso| (gso.kind == GsoKind::TcpV4, gso.size));
    Ok(Frame { key: plain_key(key), bytes: packet.to_vec(), partial, gso })
}

#[test]
fn stt_decapsulator_agrees_with_a_naive_one() {
    let [mut segments, mut frames] = [Tally::default(), Tally::default()];
    for_each(|seed, number, random| {
        let case = packets::stt(random);
        let mut packet = PacketBuf::from_bytes(&case.bytes);
        if case.is_verified {
            packet.offload.checksum = Checksum::Verified;
        }
        let place = (seed, number, &case.bytes[..]);
        let found = segment_of(&mut packet);
        segments.add(&found, &oracle::stt_segment(&case), place);
        let Ok(segment) = found else { return };
        // Any payload is taken for a whole frame here.
        let found = frame_of(&mut packet);
        frames.add(&found, &oracle::stt_frame(&segment.payload, &case.inner), place);
    });
    use DropReason::{Malformed, MalformedTunnel, OuterChecksum, SttFrame, UnknownDatapath};
    segments.finish("stt, segments", &[Malformed, OuterChecksum, SttFrame]);
    frames.finish("stt, frames", &[Malformed, MalformedTunnel, UnknownDatapath]);
}
