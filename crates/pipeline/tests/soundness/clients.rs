//! Random steps and learned state of load balancers with affinity, and of routers with several next
//! hops.

use flow::{DatapathKey, Field, Subfield};
use pipeline::{
    Affinity, AffinityKey, AffinityRule, AffinityVip, CtOriginal, LearnEvent, LearnedOp,
    LearnedTables, NextHopKey, Op,
};
use std::net::IpAddr;
use testkit::random::Random;
use wire::MacAddr;

/// Few datapaths, clients, virtual addresses and ports, so that packets often match an entry.
const DATAPATHS: usize = 3;
const ENTRIES: usize = 200;

pub fn op(random: &mut Random, flag: Subfield) -> Op {
    let op = match random.below(6) {
        5 => {
            let (part, to) = random.pick(&[
                (CtOriginal::Ip4Dst, Field::Reg1),
                (CtOriginal::Ip6Dst, Field::Xxreg0),
                (CtOriginal::PortDst, Field::Reg1),
                (CtOriginal::Protocol, Field::Reg1),
            ]);
            return Op::CtOriginal { to: to.into(), part };
        }
        0 | 1 => LearnedOp::CheckAffinity { to: flag },
        2 => LearnedOp::LearnAffinity(rule(random)),
        3 => LearnedOp::CheckNextHop { to: flag, forward: random.once_in(2) },
        _ if random.once_in(2) => LearnedOp::LearnNextHop,
        _ => LearnedOp::UseMacBinding,
    };
    op.into()
}

pub fn configure(random: &mut Random, learned: &mut LearnedTables) {
    for _ in 0..ENTRIES {
        let datapath = DatapathKey(1 + random.below(DATAPATHS) as u32);
        let AffinityRule { vip, affinity } = rule(random);
        let client = address(random, vip.ip.is_ipv6());
        learned.configure(LearnEvent::Affinity(AffinityKey { datapath, client, vip }, affinity));
        let is_v6 = random.once_in(2);
        let mut small = || random.pick(&[0, 0x10]) | random.below(4) as u16;
        let ports = (small(), small());
        let addresses = (address(random, is_v6), address(random, is_v6));
        let protocol = random.pick(&[6, 17]);
        let mac = MacAddr([2, 0, 0, 0, 0, random.below(4) as u8]);
        let key = NextHopKey { datapath, addresses, protocol, ports };
        learned.configure(LearnEvent::NextHop(key, mac));
    }
}

fn rule(random: &mut Random) -> AffinityRule {
    let is_v6 = random.once_in(4);
    let service = match random.once_in(2) {
        true => None,
        false => Some((random.pick(&[6, 17]), random.below(2) as u16)),
    };
    let ip = match is_v6 {
        false => IpAddr::from([0, 0, 0, random.below(2) as u8]),
        true => IpAddr::from(u128::from(random.once_in(2)).to_be_bytes()),
    };
    let backend = match is_v6 {
        false => IpAddr::from([0, 0, 0, 2]),
        true => IpAddr::from(2u128.to_be_bytes()),
    };
    let port = if service.is_some() { 0x10 } else { 0 };
    AffinityRule {
        vip: AffinityVip { ip, service },
        affinity: Affinity { backend, port, timeout_s: 60 },
    }
}

fn address(random: &mut Random, is_v6: bool) -> IpAddr {
    let last = random.pick(&[0, 0x10]) | random.below(4) as u8;
    match is_v6 {
        false => [0, 0, 0, last].into(),
        true => u128::from(last).to_be_bytes().into(),
    }
}
