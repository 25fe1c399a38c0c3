//! Random packets, as flow keys and in the notation of ovn-trace.

use super::networks::Network;
use flow::{Field, FlowKey, PortNo};
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use wire::MacAddr;

/// A port by which packets can enter.
pub struct Inport {
    /// The logical port.
    pub name: String,
    /// The name of its logical switch.
    pub datapath: String,
    /// The datapath port.
    pub number: PortNo,
    /// The addresses of the guest: strings `MAC IP...` and possibly other words.
    pub addresses: Vec<String>,
    /// True if the port has port security.
    pub is_secured: bool,
}

/// A packet.
pub struct Packet {
    /// The notation of ovn-trace.
    pub text: String,
    /// The flow key.
    pub key: FlowKey,
}

/// SplitMix64 with a fixed seed: the same packets in every run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    pub fn pick<'t, T>(&mut self, choices: &'t [T]) -> &'t T {
        &choices[(self.next() % choices.len() as u64) as usize]
    }

    fn address(&mut self, choices: &[&'static str]) -> &'static str {
        self.pick::<&str>(choices)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

/// The source addresses of a packet.
struct Sender {
    mac: String,
    ipv4: String,
    ipv6: String,
}

impl Sender {
    fn random(random: &mut Random, network: &Network, inport: &Inport) -> Self {
        let mut this = Self {
            mac: random.address(&network.macs).to_owned(),
            ipv4: random.address(&network.ipv4).to_owned(),
            ipv6: random.address(&network.ipv6).to_owned(),
        };
        if !inport.addresses.is_empty() && random.chance(70) {
            for word in random.pick(&inport.addresses).split_whitespace() {
                if word.parse::<MacAddr>().is_ok() {
                    this.mac = word.to_owned();
                } else if word.parse::<Ipv4Addr>().is_ok() {
                    this.ipv4 = word.to_owned();
                } else if word.parse::<Ipv6Addr>().is_ok() {
                    this.ipv6 = word.to_owned();
                }
            }
        }
        this
    }
}

impl Packet {
    fn number(&mut self, symbol: &str, field: Field, value: u128) {
        self.key.set(field, value);
        write!(self.text, " && {symbol} == {value}").unwrap();
    }

    fn mac(&mut self, symbol: &str, field: Field, mac: &str) {
        let MacAddr(bytes) = mac.parse().unwrap();
        self.key.set(field, bytes.iter().fold(0, |bits, byte| bits << 8 | u128::from(*byte)));
        write!(self.text, " && {symbol} == {mac}").unwrap();
    }

    fn ipv4(&mut self, symbol: &str, field: Field, address: &str) {
        self.key.set(field, address.parse::<Ipv4Addr>().unwrap().to_bits().into());
        write!(self.text, " && {symbol} == {address}").unwrap();
    }

    fn ipv6(&mut self, symbol: &str, field: Field, address: &str) {
        self.key.set(field, address.parse::<Ipv6Addr>().unwrap().to_bits());
        write!(self.text, " && {symbol} == {address}").unwrap();
    }

    /// A random packet into `inport`, usually from the guest's own addresses to known ones.
    pub fn random(random: &mut Random, network: &Network, inport: &Inport) -> Self {
        let mut packet =
            Self { text: format!("inport == \"{}\"", inport.name), key: FlowKey::default() };
        packet.key.set(Field::InPort, inport.number.0.into());
        let from = Sender::random(random, network, inport);
        packet.mac("eth.src", Field::EthSrc, &from.mac);
        let routers: Vec<&'static str> =
            network.macs.iter().copied().filter(|mac| mac.starts_with("00:")).collect();
        let to = match random.next() % 10 {
            0..5 if !routers.is_empty() => random.address(&routers),
            0..7 => random.address(&network.macs),
            _ => "ff:ff:ff:ff:ff:ff",
        };
        packet.mac("eth.dst", Field::EthDst, to);
        match random.next() % 20 {
            0..4 => packet.arp(random, network, &from),
            4..12 => packet.over_ipv4(random, network, &from),
            12..19 => packet.over_ipv6(random, network, &from),
            _ => {
                let ethertype = *random.pick(&[0x88cc, 0x8035, 0x9000]);
                packet.number("eth.type", Field::EthType, ethertype);
            }
        }
        packet
    }

    fn arp(&mut self, random: &mut Random, network: &Network, from: &Sender) {
        self.number("eth.type", Field::EthType, 0x806);
        self.number("arp.op", Field::ArpOp, *random.pick(&[1, 1, 1, 2]));
        let sender = if random.chance(80) { &from.mac } else { random.address(&network.macs) };
        self.mac("arp.sha", Field::ArpSha, sender);
        self.ipv4("arp.spa", Field::ArpSpa, &from.ipv4);
        let target = random.address(&["00:00:00:00:00:00", network.macs[0]]);
        self.mac("arp.tha", Field::ArpTha, target);
        self.ipv4("arp.tpa", Field::ArpTpa, random.address(&network.ipv4));
    }

    fn over_ipv4(&mut self, random: &mut Random, network: &Network, from: &Sender) {
        self.number("eth.type", Field::EthType, 0x800);
        self.ipv4("ip4.src", Field::Ip4Src, &from.ipv4);
        self.ipv4("ip4.dst", Field::Ip4Dst, random.address(&network.ipv4));
        self.ttl(random);
        match random.next() % 10 {
            0..3 => {
                self.number("ip.proto", Field::IpProto, 1);
                self.number("icmp4.type", Field::IcmpType, *random.pick(&[8, 8, 0, 3]));
                self.number("icmp4.code", Field::IcmpCode, *random.pick(&[0, 0, 1]));
            }
            3..9 => self.ports(random),
            _ => self.number("ip.proto", Field::IpProto, *random.pick(&[2, 47])),
        }
    }

    fn over_ipv6(&mut self, random: &mut Random, network: &Network, from: &Sender) {
        self.number("eth.type", Field::EthType, 0x86dd);
        self.ipv6("ip6.src", Field::Ip6Src, &from.ipv6);
        self.ipv6("ip6.dst", Field::Ip6Dst, random.address(&network.ipv6));
        match random.next() % 10 {
            0..3 => {
                self.ttl(random);
                self.number("ip.proto", Field::IpProto, 58);
                self.number("icmp6.type", Field::IcmpType, *random.pick(&[128, 129, 1, 131, 143]));
                self.number("icmp6.code", Field::IcmpCode, 0);
            }
            3..6 => self.neighbour_discovery(random, network, from),
            6..9 => {
                self.ttl(random);
                self.ports(random);
            }
            _ => {
                self.ttl(random);
                self.number("ip.proto", Field::IpProto, *random.pick(&[0, 47]));
            }
        }
    }

    fn neighbour_discovery(&mut self, random: &mut Random, network: &Network, from: &Sender) {
        let kind = *random.pick(&[135, 135, 136, 133]);
        self.number("ip.ttl", Field::IpTtl, 255);
        self.number("ip.proto", Field::IpProto, 58);
        self.number("icmp6.type", Field::IcmpType, kind);
        self.number("icmp6.code", Field::IcmpCode, 0);
        if kind == 133 {
            return;
        }
        self.ipv6("nd.target", Field::NdTarget, random.address(&network.ipv6));
        let link = if random.chance(80) { &from.mac } else { random.address(&network.macs) };
        if kind == 135 {
            self.mac("nd.sll", Field::NdSll, link);
        } else {
            self.mac("nd.tll", Field::NdTll, link);
        }
    }

    fn ttl(&mut self, random: &mut Random) {
        self.number("ip.ttl", Field::IpTtl, *random.pick(&[64, 64, 64, 64, 64, 255, 7, 2, 1, 0]));
    }

    fn ports(&mut self, random: &mut Random) {
        let (protocol, name) =
            *random.pick(&[(6, "tcp"), (6, "tcp"), (17, "udp"), (17, "udp"), (132, "sctp")]);
        let source = *random.pick(&[1024u128, 68, 40000, 546, 53]);
        let target = *random.pick(&[80u128, 443, 53, 67, 547, 1500, 2048, 3784, 22]);
        self.number("ip.proto", Field::IpProto, protocol);
        self.number(&format!("{name}.src"), Field::TpSrc, source);
        self.number(&format!("{name}.dst"), Field::TpDst, target);
        if protocol == 6 {
            self.number("tcp.flags", Field::TcpFlags, *random.pick(&[2, 16, 4, 18]));
        }
    }
}
