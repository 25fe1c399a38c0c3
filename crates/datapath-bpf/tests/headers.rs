//! Compares the two implementations that write outer headers: the codecs of `flow` and `wire`, and
//! the programs in C. Both must write the same bytes for every end point, its options and the key
//! of the frame.
//!
//! `cargo xtask round-trips` is the long run. `WEFT_CASES` and `WEFT_SEED` set the number of end
//! points and the random seed.

use crate::common::frames::{tcp4, tcp6, udp4};
use crate::common::reference::reference;
use crate::common::switch::{REDIRECTED, Switch};
use crate::common::tunnels;
use flow::{
    Action, Carrier, Dscp, KernelDatapath, OptionKind, Ttl, TunnelSpec, TunnelType, extract,
};
use packet::PacketBuf;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use testkit::random::{Random, environment};

/// Cases for which one loaded object is used. Each adds an end point and does not remove it.
const CASES: u64 = 1000;
/// Classes are overwritten in turn.
const CLASSES: u64 = 16;

/// A tunnel that programs can send in.
fn spec(random: &mut Random) -> TunnelSpec {
    let is_for_programs =
        |tunnel: &TunnelType| tunnel.descriptor().kernel_datapath == KernelDatapath::EndPoints;
    let types: Vec<TunnelType> = TunnelType::ALL.into_iter().filter(is_for_programs).collect();
    let tunnel = random.pick(&types);
    let ttl = Ttl::Fixed(1 + random.below(255) as u8);
    let dscp = Dscp::Fixed(random.below(64) as u8);
    let settings = tunnel.descriptor().default_settings();
    let spec = TunnelSpec::new(tunnel, &settings);
    TunnelSpec {
        port: if spec.port == 0 { 0 } else { 1 + random.below(65_535) as u16 },
        checksum: tunnel.carrier() == Carrier::Udp && random.once_in(2),
        ttl: if random.once_in(2) { Ttl::Inherit } else { ttl },
        dscp: if random.once_in(2) { Dscp::Inherit } else { dscp },
        key: tunnel.has_option(OptionKind::Key) && !random.once_in(3),
        path_mtu_bytes: tunnels::PATH_MTU,
        ..spec
    }
}

/// Two unicast addresses of one family; the second is that of no other case.
fn addresses(random: &mut Random, case: u64) -> (IpAddr, IpAddr) {
    if random.once_in(2) {
        let local =
            Ipv6Addr::new(0xfd01, random.word() as u16, 0, 0, 0, 0, 0, random.word() as u16);
        (
            local.into(),
            Ipv6Addr::new(0xfd02, 0, 0, random.word() as u16, 0, 0, 0, case as u16).into(),
        )
    } else {
        let local = Ipv4Addr::new(10, random.word() as u8, random.word() as u8, 1);
        (local.into(), Ipv4Addr::new(192, 0, (case >> 8) as u8, case as u8).into())
    }
}

#[test]
fn programs_write_the_headers_that_the_codecs_write_when_end_points_are_generated() {
    testkit::require_root!();
    let (cases, seed) = (environment("WEFT_CASES", CASES), environment("WEFT_SEED", 1));
    for (round, first) in (0..).zip((0..cases).step_by(CASES as usize)) {
        compare(seed + round, CASES.min(cases - first));
    }
}

/// Compares the headers that the programs and the codecs write, for `cases` end points.
fn compare(seed: u64, cases: u64) {
    let mut switch = Switch::load_for(CASES as u32);
    for case in 0..cases {
        let random = &mut Random::new(seed << 32 | case);
        let spec = spec(random);
        let (local, remote) = addresses(random, case);
        let class = (case % CLASSES) as u16;
        let tunnel = tunnels::add(&mut switch, &spec, class, local, remote);
        let payload = vec![case as u8; random.below(100)];
        let mut frame = match random.below(3) {
            0 => tcp4(),
            1 => tcp6(),
            _ => udp4(&payload),
        };
        if random.once_in(3) {
            // DSCP and ECN of the inner header, which the outer one may inherit.
            let tos = random.word() as u8;
            if frame[14] >> 4 == 6 {
                frame[14..16].copy_from_slice(&[0x60 | tos >> 4, tos << 4]);
            }
        }
        let actions = [Action::Encap { endpoint: tunnel.id, key: tunnel.key(random) }];
        let packet = PacketBuf::from_bytes(&frame);
        let key = extract(&packet, Switch::VIF, None).expect("it is whole");
        let flow = switch.put(&key, &actions, 0);
        let ran = switch.vif(&frame);
        let context = || format!("case {case} of seed {seed}: {tunnel:?} {actions:?}");
        assert_eq!(ran.verdict, REDIRECTED, "{}", context());
        let expected = reference(&actions, &packet, &mut switch.endpoints);
        let [(_, bytes)] = &expected.frames[..] else { panic!("one leaves: {}", context()) };
        assert_eq!(ran.bytes, bytes.to_vec(), "{}", context());
        switch.tables.delete(flow).expect("it is there");
    }
}
