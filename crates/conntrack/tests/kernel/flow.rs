//! Random packets of one connection, seen from both ends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use testkit::random::Random;
use wire::Protocol;

use super::sctp::SctpPair;
use super::tcp::TcpPair;
use crate::support::{Ends, icmp, ip, udp};

/// The NAT rule of the router for the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    Keep,
    /// Source NAT, any port.
    Source,
    /// Source NAT to one port.
    SourcePort,
    /// Destination NAT of the address.
    Destination,
    /// Destination NAT of address and port.
    DestinationPort,
}

pub const SOURCE_PORT: u16 = 2000;
pub const SERVICE_PORT: u16 = 80;
pub const BACKEND_PORT: u16 = 8080;

/// The addresses that a rule translates.
pub struct Plan {
    pub client: IpAddr,
    /// The address to which the client sends.
    pub server: IpAddr,
    /// The source address that the server sees.
    pub seen_client: IpAddr,
    /// The server's own address.
    pub backend: IpAddr,
}

impl Rule {
    const ALL: [Self; 5] =
        [Self::Keep, Self::Source, Self::SourcePort, Self::Destination, Self::DestinationPort];

    pub fn random(random: &mut Random) -> Self {
        random.pick(&Self::ALL)
    }

    /// The addresses for packet sequence `number`.
    pub fn plan(self, v6: bool, number: u16) -> Plan {
        let [a, b] = number.to_be_bytes();
        let class = match self {
            Self::Source => 1,
            Self::SourcePort => 2,
            _ => 0,
        };
        let service = match self {
            Self::Destination => Some(1),
            Self::DestinationPort => Some(2),
            _ => None,
        };
        let (client, direct): (IpAddr, IpAddr) = if v6 {
            let client = [0x2001, 0xdb8, 1, class, 0, 0, 0, number];
            let server = [0x2001, 0xdb8, 2, 0, 0, 0, 0, number];
            (Ipv6Addr::from(client).into(), Ipv6Addr::from(server).into())
        } else {
            let client = Ipv4Addr::new(172, 16 + class as u8, a, b);
            (client.into(), Ipv4Addr::new(198, 18, a, b).into())
        };
        let v4_or_v6 = |v4: [u8; 4], words: [u16; 8]| -> IpAddr {
            if v6 { Ipv6Addr::from(words).into() } else { Ipv4Addr::from(v4).into() }
        };
        let seen_client = match class {
            0 => client,
            n => v4_or_v6([203, 0, 113, n as u8], [0x2001, 0xdb8, 3, 0, 0, 0, 0, n]),
        };
        let (server, backend) = match service {
            None => (direct, direct),
            Some(n) => (
                v4_or_v6([198, 19, 0, n as u8], [0x2001, 0xdb8, 4, 0, 0, 0, 0, n]),
                v4_or_v6([198, 18, 255, n as u8], [0x2001, 0xdb8, 2, 0xffff, 0, 0, 0, n]),
            ),
        };
        Plan { client, server, seen_client, backend }
    }
}

#[derive(Clone, Debug)]
enum Content {
    Tcp(TcpPair),
    Udp,
    Echo,
    Sctp(SctpPair),
    Other,
}

/// The addresses, and the ports or identifier, of a connection on one side of the router.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub ends: Ends,
    pub ports: [u16; 2],
}

/// A connection.
pub struct Flow {
    content: Content,
    /// The side of the client: packets of the original direction when they arrive at the router.
    pub client_view: View,
    /// The side of the server: the same packets when they leave the router.
    pub server_view: View,
    /// The last packet that each end has received.
    pub received: [Option<Vec<u8>>; 2],
}

impl Flow {
    pub fn new(random: &mut Random, rule: Rule, plan: &Plan) -> Self {
        let content = match random.below(16) {
            0..9 => Content::Tcp(TcpPair::new(random)),
            9..11 => Content::Udp,
            11..13 => Content::Echo,
            13..15 => Content::Sctp(SctpPair::new(random)),
            _ => Content::Other,
        };
        let port = random.pick(&[80, 80, 1024, 5000, 100, 700]) + random.below(3) as u16;
        let service = match rule {
            Rule::DestinationPort => SERVICE_PORT,
            _ => random.pick(&[22, 443]),
        };
        let client_view =
            View { ends: Ends { src: plan.client, dst: plan.server }, ports: [port, service] };
        let is_numbered = matches!(content, Content::Tcp(_) | Content::Udp | Content::Sctp(_));
        let seen_port = if rule == Rule::SourcePort && is_numbered { SOURCE_PORT } else { port };
        let seen_service = if rule == Rule::DestinationPort { BACKEND_PORT } else { service };
        let server_view = View {
            ends: Ends { src: plan.seen_client, dst: plan.backend },
            ports: [seen_port, seen_service],
        };
        Self { content, client_view, server_view, received: [None, None] }
    }

    pub fn protocol(&self) -> Protocol {
        match self.content {
            Content::Tcp(_) => Protocol::TCP,
            Content::Udp => Protocol::UDP,
            Content::Echo if self.client_view.ends.src.is_ipv4() => Protocol::ICMP,
            Content::Echo => Protocol::ICMPV6,
            Content::Sctp(_) => Protocol::SCTP,
            Content::Other => Protocol(253),
        }
    }

    /// The next packet, and true if the server sends it.
    pub fn packet(&mut self, random: &mut Random, marker: u16) -> (bool, Vec<u8>) {
        let protocol = self.protocol();
        let (reply, l4) = self.transport(random);
        let view = if reply { self.server_view } else { self.client_view };
        let ends = if reply { view.ends.reversed() } else { view.ends };
        (reply, ip(ends, protocol, l4, marker))
    }

    fn transport(&mut self, random: &mut Random) -> (bool, Vec<u8>) {
        let views = [self.client_view.ports, self.server_view.ports];
        let ports = |reply: bool| match reply {
            false => views[0],
            true => [views[1][1], views[1][0]],
        };
        let is_v4 = self.client_view.ends.src.is_ipv4();
        match &mut self.content {
            Content::Tcp(pair) => {
                let (reply, mut segment) = pair.segment(random);
                segment.ports = ports(reply);
                (reply, segment.bytes())
            }
            Content::Udp => {
                let reply = random.once_in(2);
                let mut datagram = udp(ports(reply), random.pick(&[0, 1, 30, 1000]));
                if random.once_in(15) {
                    let wrong = random.pick(&[7, 9000_u16]);
                    datagram[4..6].copy_from_slice(&wrong.to_be_bytes());
                }
                (reply, datagram)
            }
            Content::Echo => {
                let reply = random.once_in(2);
                let kinds: [u8; 2] = if is_v4 { [8, 0] } else { [128, 129] };
                let kind = if random.once_in(8) {
                    let others: &[u8] = if is_v4 { &[13, 14, 19, 9, 42] } else { &[139, 200] };
                    random.pick(others)
                } else {
                    kinds[usize::from(reply)]
                };
                let [a, b] = views[usize::from(reply)][0].to_be_bytes();
                let code = u8::from(random.once_in(15));
                (reply, icmp(kind, code, [a, b, 0, 1], &[7; 40]))
            }
            Content::Sctp(pair) => {
                let (reply, mut packet) = pair.packet(random, [0, 0]);
                let bytes = ports(reply).map(u16::to_be_bytes).concat();
                packet[..4].copy_from_slice(&bytes);
                (reply, packet)
            }
            Content::Other => (random.once_in(2), vec![9; random.pick(&[0, 4, 100])]),
        }
    }

    /// An ICMP error about the last packet that one end has received. The end itself or a router
    /// near it sends the error.
    pub fn error(&self, random: &mut Random, marker: u16) -> Option<(bool, Vec<u8>)> {
        let by_client = random.once_in(2);
        let packet = self.received[usize::from(!by_client)].as_ref()?;
        let view = if by_client { self.client_view } else { self.server_view };
        let mut ends = if by_client { view.ends } else { view.ends.reversed() };
        if random.once_in(3) {
            ends.src = match (ends.src, by_client) {
                (IpAddr::V4(_), true) => Ipv4Addr::new(172, 16, 255, 254).into(),
                (IpAddr::V4(_), false) => Ipv4Addr::new(198, 18, 254, 254).into(),
                (_, true) => Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 9, 0, 0, 9).into(),
                (_, false) => Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 9, 0, 0, 9).into(),
            };
        }
        let is_v4 = ends.src.is_ipv4();
        let header = if is_v4 { 20 } else { 40 };
        let is_translated = self.client_view.ends != self.server_view.ends;
        // The kernel drops an error that it must translate if it quotes less than eight bytes. weft
        // translates the fields that the quote contains.
        let least = if is_translated { 8 } else { random.pick(&[3, 4, 8]) };
        let len = header + random.pick(&[least, 8, 12, 20, 40, 500]);
        let mut quote = packet[..len.min(packet.len())].to_vec();
        if random.once_in(10) {
            // The version field stays intact, because the kernel does not check it.
            let at = 1 + random.below(quote.len() - 1);
            quote[at] ^= 1 << random.below(8);
        }
        let (protocol, kinds): (_, &[u8]) = match (is_v4, is_translated) {
            (true, true) => (Protocol::ICMP, &[3, 4, 11, 12]),
            (true, false) => (Protocol::ICMP, &[3, 4, 5, 11, 12]),
            _ => (Protocol::ICMPV6, &[1, 2, 3, 4, 100]),
        };
        let message = icmp(random.pick(kinds), random.below(4) as u8, [0, 0, 5, 0], &quote);
        Some((!by_client, ip(ends, protocol, message, marker)))
    }
}
