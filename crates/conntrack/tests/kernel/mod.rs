//! Compares this crate with the kernel's nf_conntrack: both process the same random packets. Each
//! packet must get the same class and the same translation, and each connection must have the same
//! state at the end.
//!
//! `WEFT_CT_SEQUENCES` sets the number of sequences, `WEFT_CT_SEED` the seed, and `WEFT_CT_FIRST`
//! the first sequence, to repeat one that failed.

mod flow;
mod sctp;
mod tcp;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Instant;

use conntrack::{
    Commit, Config, ConnId, CtDrop, Invalid, Nat, NatKind, NatSpec, ProtocolState, Seed, State,
    Table, Timeout, Tuple, Zone,
};
use flow::{Flow, Rule, SOURCE_PORT};
use testkit::netfilter::{KernelConnection, Router, Side};
use testkit::random::{Random, environment};
use testkit::{report, require_program, require_root};
use wire::Protocol;

use crate::support::{Ends, frame, headers, ip, ip_of, udp};

const ZONE: Zone = Zone(0);
/// Packet sequences that one router processes.
const BATCH: u64 = 4000;
/// The marker of the packet that ends a sequence.
const END: u16 = 0xffff;

const INSIDE: [&str; 4] = ["172.16.0.0/12", "203.0.113.0/24", "2001:db8:1::/48", "2001:db8:3::/48"];
const OUTSIDE: [&str; 3] = ["198.18.0.0/15", "2001:db8:2::/48", "2001:db8:4::/48"];

/// The router writes the class of a packet (its connection state) to its DSCP.
const RULES: &str = "
table inet test {
    chain classify {
        type filter hook forward priority 0; policy accept;
        ct state invalid ip dscp set 4
        ct state invalid ip6 dscp set 4
        ct state untracked ip dscp set 4
        ct state untracked ip6 dscp set 4
        ct state new ip dscp set 1
        ct state new ip6 dscp set 1
        ct state established ct direction original ip dscp set 2
        ct state established ct direction original ip6 dscp set 2
        ct state related ct direction original ip dscp set 3
        ct state related ct direction original ip6 dscp set 3
        ct state established ct direction reply ip dscp set 10
        ct state established ct direction reply ip6 dscp set 10
        ct state related ct direction reply ip dscp set 11
        ct state related ct direction reply ip6 dscp set 11
    }
    chain destinations {
        type nat hook prerouting priority dstnat; policy accept;
        ip daddr 198.19.0.1 dnat ip to 198.18.255.1
        ip6 daddr 2001:db8:4::1 dnat ip6 to 2001:db8:2:ffff::1
        ip daddr 198.19.0.2 meta l4proto { tcp, udp, sctp } th dport 80 dnat ip to 198.18.255.2:8080
        ip6 daddr 2001:db8:4::2 meta l4proto { tcp, udp, sctp } th dport 80 dnat ip6 to [2001:db8:2:ffff::2]:8080
        ip daddr 198.19.0.2 dnat ip to 198.18.255.2
        ip6 daddr 2001:db8:4::2 dnat ip6 to 2001:db8:2:ffff::2
    }
    chain sources {
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr 172.17.0.0/16 snat ip to 203.0.113.1
        ip6 saddr 2001:db8:1:1::/64 snat ip6 to 2001:db8:3::1
        ip saddr 172.18.0.0/16 meta l4proto { tcp, udp, sctp } snat ip to 203.0.113.2:2000
        ip6 saddr 2001:db8:1:2::/64 meta l4proto { tcp, udp, sctp } snat ip6 to [2001:db8:3::2]:2000
        ip saddr 172.18.0.0/16 snat ip to 203.0.113.2
        ip6 saddr 2001:db8:1:2::/64 snat ip6 to 2001:db8:3::2
    }
}";

/// The timeouts that can be configured in the kernel, with their sysctl names.
const TIMEOUTS: [(Timeout, &str); 22] = [
    (Timeout::TcpSynSent, "tcp_timeout_syn_sent"),
    (Timeout::TcpSynRecv, "tcp_timeout_syn_recv"),
    (Timeout::TcpEstablished, "tcp_timeout_established"),
    (Timeout::TcpFinWait, "tcp_timeout_fin_wait"),
    (Timeout::TcpCloseWait, "tcp_timeout_close_wait"),
    (Timeout::TcpLastAck, "tcp_timeout_last_ack"),
    (Timeout::TcpTimeWait, "tcp_timeout_time_wait"),
    (Timeout::TcpClose, "tcp_timeout_close"),
    (Timeout::TcpRetransmit, "tcp_timeout_max_retrans"),
    (Timeout::TcpUnacknowledged, "tcp_timeout_unacknowledged"),
    (Timeout::Udp, "udp_timeout"),
    (Timeout::UdpStream, "udp_timeout_stream"),
    (Timeout::Icmp, "icmp_timeout"),
    (Timeout::SctpClosed, "sctp_timeout_closed"),
    (Timeout::SctpCookieWait, "sctp_timeout_cookie_wait"),
    (Timeout::SctpCookieEchoed, "sctp_timeout_cookie_echoed"),
    (Timeout::SctpEstablished, "sctp_timeout_established"),
    (Timeout::SctpShutdownSent, "sctp_timeout_shutdown_sent"),
    (Timeout::SctpShutdownReceived, "sctp_timeout_shutdown_recd"),
    (Timeout::SctpShutdownAckSent, "sctp_timeout_shutdown_ack_sent"),
    (Timeout::SctpHeartbeatSent, "sctp_timeout_heartbeat_sent"),
    (Timeout::Generic, "generic_timeout"),
];

/// A timeout in seconds. No connection expires during the test, and no two states have timeouts
/// that could be confused. The timeouts of retransmitted and unacknowledged data are shorter than
/// the others.
fn timeout_s(timeout: Timeout) -> u32 {
    match timeout {
        Timeout::TcpRetransmit => 1500,
        Timeout::TcpUnacknowledged => 1000,
        // Linux has no option for this timeout.
        Timeout::TcpSynSent2 => timeout.default_s(),
        timeout => 2000 + 100 * timeout as u32,
    }
}

/// The result for a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Outcome {
    Dropped,
    Passed {
        class: u8,
        packet: Vec<u8>,
    },
    /// Translated to a port chosen at random.
    AnyPort {
        class: u8,
    },
}

struct Step {
    side: Side,
    packet: Vec<u8>,
    outcome: Outcome,
    note: String,
}

#[test]
fn packets_have_the_fate_that_the_kernel_gives_them_when_random() {
    require_root!();
    require_program!("nft", "nftables");
    let sequences = environment("WEFT_CT_SEQUENCES", 3000);
    let seed = environment("WEFT_CT_SEED", 1);
    let mut first = environment("WEFT_CT_FIRST", 0);
    let end = first + sequences;
    let (mut packets, mut states) = (0, 0);
    while first < end {
        let count = BATCH.min(end - first);
        let (sent, compared) =
            std::thread::spawn(move || run_batch(seed, first, count)).join().unwrap();
        packets += sent;
        states += compared;
        first += count;
    }
    assert!(packets > sequences * 5 && states > sequences / 4, "{packets} packets, {states}");
    let what = format!("{sequences} sequences, {packets} packets, {states} final states");
    report::peer("nf_conntrack", &what);
}

fn run_batch(seed: u64, first: u64, count: u64) -> (u64, u64) {
    Router::pin_thread();
    let router = Router::new(&INSIDE, &OUTSIDE, RULES);
    TIMEOUTS.iter().for_each(|&(timeout, name)| router.set_conntrack(name, timeout_s(timeout)));
    router.set_conntrack("icmpv6_timeout", timeout_s(Timeout::Icmp));
    let mut side_by_side = SideBySide::new();
    let mut packets = 0;
    for number in first..first + count {
        let mut random = Random::new(seed.wrapping_mul(0x1_0000_0000).wrapping_add(number));
        let steps = side_by_side.sequence(&mut random, number as u16);
        packets += steps.len() as u64;
        let outcomes = observe(&router, &steps);
        for (at, (step, outcome)) in steps.iter().zip(&outcomes).enumerate() {
            if !is_same(&step.outcome, outcome) {
                let story: Vec<_> = steps[..=at].iter().map(describe).collect();
                panic!(
                    "sequence {number}, packet {at}: the kernel has {}\n{}",
                    show(outcome),
                    story.join("\n")
                );
            }
        }
    }
    (packets, side_by_side.compare_states(&router.connections()))
}

/// Sends all packets through the kernel.
fn observe(router: &Router, steps: &[Step]) -> Vec<Outcome> {
    let mut outcomes = vec![Outcome::Dropped; steps.len()];
    for step in steps {
        router.send(step.side, &step.packet);
    }
    let ends = Ends { src: IpAddr::from([172, 16, 255, 1]), dst: IpAddr::from([198, 18, 254, 1]) };
    router.send(Side::Inside, &ip(ends, Protocol::UDP, udp([9, 9], 0), END));
    router.send(Side::Outside, &ip(ends.reversed(), Protocol::UDP, udp([9, 9], 0), END));
    let mut ended = 0;
    router.receive(|_, packet| {
        let Some((marker, class)) = marks(packet) else { return false };
        if marker == END {
            ended += 1;
        } else if let Some(outcome) = outcomes.get_mut(usize::from(marker)) {
            *outcome = Outcome::Passed { class, packet: packet.to_vec() };
        }
        ended == 2
    });
    outcomes
}

/// Marker and DSCP of a test packet; `None` for other packets, which the IP stacks of the
/// namespaces send.
fn marks(packet: &[u8]) -> Option<(u16, u8)> {
    match *packet {
        [0x45, tos, _, _, a, b, 0x40, ..] if tos != 0 => {
            Some((u16::from_be_bytes([a, b]), tos >> 2))
        }
        [first, second, a, b, ..] if first >> 4 == 6 => {
            let class = (first << 4 | second >> 4) >> 2;
            (class != 0).then_some((u16::from_be_bytes([a, b]), class))
        }
        _ => None,
    }
}

/// True if the results are equal, except for the fields that the router changes in every packet.
fn is_same(ours: &Outcome, kernel: &Outcome) -> bool {
    match (ours, kernel) {
        (
            Outcome::Passed { class: a, packet: ours },
            Outcome::Passed { class: b, packet: kernel },
        ) => a == b && neutral(ours) == neutral(kernel),
        (Outcome::AnyPort { class: ours }, Outcome::Passed { class, .. }) => ours == class,
        (ours, kernel) => ours == kernel,
    }
}

fn neutral(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if packet[0] >> 4 == 4 {
        packet[1] = 0;
        packet[8] = 0;
        packet[10..12].fill(0);
    } else {
        packet[0] = 0x60;
        packet[1] &= 0x0f;
        packet[7] = 0;
    }
    forget_quoted_crc(&mut packet);
    packet
}

/// The kernel recomputes the checksum of a quoted SCTP packet from the quoted part, which gives a
/// wrong checksum. weft does not change it.
fn forget_quoted_crc(packet: &mut [u8]) {
    let v4 = packet[0] >> 4 == 4;
    let (len, protocol) = if v4 { (20, 9) } else { (40, 6) };
    let quote = len + 8;
    if matches!(packet[protocol], 1 | 58)
        && packet.get(quote + protocol).is_some_and(|protocol| *protocol == 132)
        && let Some(crc) = packet.get_mut(quote + len + 8..quote + len + 12)
    {
        crc.fill(0);
        packet[len + 2..len + 4].fill(0);
    }
}

fn show(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Dropped => "dropped".to_owned(),
        Outcome::AnyPort { class } => format!("class {class} with a random port"),
        Outcome::Passed { class, packet } => format!("class {class} {}", hex(&neutral(packet))),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().take(120).map(|byte| format!("{byte:02x}")).collect()
}

fn describe(step: &Step) -> String {
    let (outcome, packet) = (show(&step.outcome), hex(&step.packet));
    format!("{:?} {packet}\n    {} {outcome}", step.side, step.note)
}

/// This crate as a router with the same rules as the kernel.
struct SideBySide {
    table: Table,
    start: Instant,
    /// Connections for which a random port was chosen.
    random_ports: HashSet<[String; 6]>,
}

impl SideBySide {
    fn new() -> Self {
        let mut config = Config::default();
        Timeout::ALL.iter().for_each(|&t| config.timeouts.set(t, timeout_s(t)));
        let table = Table::new(config, Seed::random(), 0);
        Self { table, start: Instant::now(), random_ports: HashSet::new() }
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Up to three connections between one client and one server.
    fn sequence(&mut self, random: &mut Random, number: u16) -> Vec<Step> {
        let rule = Rule::random(random);
        let plan = rule.plan(random.once_in(3), number);
        let mut flows: Vec<_> =
            (0..random.pick(&[1, 1, 2, 3])).map(|_| Flow::new(random, rule, &plan)).collect();
        let len = 4 + random.below(18);
        let mut steps = Vec::new();
        for marker in 0..len as u16 {
            let which = random.below(flows.len());
            let flow = &mut flows[which];
            let error = if random.once_in(8) { flow.error(random, marker) } else { None };
            let (by_server, packet) = error.unwrap_or_else(|| flow.packet(random, marker));
            let side = if by_server { Side::Outside } else { Side::Inside };
            let (outcome, note) = self.forward(&packet);
            if let Outcome::Passed { packet, .. } = &outcome {
                flow.received[usize::from(!by_server)] = Some(packet.clone());
            }
            // Later packets depend on the port, and the kernel chooses a different one.
            let is_random = matches!(outcome, Outcome::AnyPort { .. });
            steps.push(Step { side, packet, outcome, note });
            if is_random {
                break;
            }
        }
        steps
    }

    fn forward(&mut self, packet: &[u8]) -> (Outcome, String) {
        let (mut frame, headers) = (frame(packet), headers(packet));
        let now_ms = self.now_ms();
        let mut tracked = self.table.track(now_ms, ZONE, &headers, Nat::Apply);
        if tracked.state.contains(State::NEW) {
            let nat = Some(headers.tuple().map_or_else(keep, |tuple| nat_of(&tuple)));
            let commit = Commit { nat, ..Commit::default() };
            match self.table.commit(now_ms, &tracked, &headers, ::flow::PortNo(1), &commit) {
                Ok(committed) => tracked = committed,
                Err(CtDrop::Clash | CtDrop::NatExhausted) => {
                    return (Outcome::Dropped, "refused".to_owned());
                }
                Err(refused) => panic!("{refused}"),
            }
        }
        if let Some(translation) = tracked.translation {
            translation.apply(&mut frame).unwrap();
        }
        let class = if tracked.state.contains(State::INV) {
            4
        } else {
            let reply = if tracked.state.contains(State::RPL) { 8 } else { 0 };
            let states = [(State::NEW, 1), (State::EST, 2), (State::REL, 3)];
            let found = states.iter().find(|(state, _)| tracked.state.contains(*state));
            reply + found.map_or(0, |&(_, class)| class)
        };
        let note = format!("{} {:?}", tracked.state, tracked.invalid.map(Invalid::name));
        if let (Some(tuple), Some(connection)) = (headers.tuple(), tracked.connection)
            && class == 1
            && self.has_random_port(&tuple, connection.id)
        {
            self.random_ports.insert(words(&tuple));
            return (Outcome::AnyPort { class }, note);
        }
        (Outcome::Passed { class, packet: ip_of(&frame).to_vec() }, note)
    }

    /// True when a collision has changed the port or identifier of the connection.
    fn has_random_port(&self, original: &Tuple, id: ConnId) -> bool {
        let Some(connection) = self.table.connection(id) else { return false };
        let Some(translated) = connection.reply.reversed() else { return false };
        let is_changed = match (original.icmp_fields(), translated.icmp_fields()) {
            (Some((_, _, old)), Some((_, _, new))) => old != new,
            _ => original.ports().0 != translated.ports().0,
        };
        is_changed && nat_of(original).ports.is_none_or(|_| translated.ports().0 != SOURCE_PORT)
    }

    /// Compares protocol states, timeouts and reply tuples. Returns how many were compared.
    fn compare_states(&self, kernel: &[KernelConnection]) -> u64 {
        /// The kernel processes packets later than this crate, and much later under load.
        const TOLERANCE_S: u64 = 45;
        let now_ms = self.now_ms();
        let ours: HashMap<_, _> =
            self.table.iter().map(|connection| (words(&connection.original), connection)).collect();
        let mut compared = 0;
        for theirs in kernel {
            let original = kernel_words(theirs.protocol, &theirs.tuples[0]);
            if self.random_ports.contains(&original) || original[1] == "172.16.255.1" {
                continue;
            }
            let Some(ours) = ours.get(&original) else {
                panic!("only the kernel has {theirs:?}");
            };
            let state = match ours.state {
                ProtocolState::Tcp(state) => Some(state.name().to_owned()),
                ProtocolState::Sctp(state) => Some(state.name().to_owned()),
                _ => None,
            };
            assert_eq!(state, theirs.state, "{theirs:?}");
            let left_s = ours.deadline_ms.saturating_sub(now_ms) / 1000;
            let difference_s = left_s.abs_diff(theirs.timeout_s);
            assert!(difference_s <= TOLERANCE_S, "{left_s} s are left, but {theirs:?}");
            assert_eq!(
                words(&ours.reply),
                kernel_words(theirs.protocol, &theirs.tuples[1]),
                "{theirs:?}"
            );
            compared += 1;
        }
        compared
    }
}

/// Addresses, and ports or ICMP fields, as text.
fn words(tuple: &Tuple) -> [String; 6] {
    let (a, b, c) = match tuple.icmp_fields() {
        Some((kind, code, ident)) => (kind.to_string(), code.to_string(), ident.to_string()),
        None if tuple.has_ports() => {
            let (src, dst) = tuple.ports();
            (src.to_string(), dst.to_string(), String::new())
        }
        None => Default::default(),
    };
    let ends = [tuple.src(), tuple.dst()].map(|address| address.to_string());
    let [src, dst] = ends;
    [tuple.protocol().to_string(), src, dst, a, b, c]
}

fn kernel_words(protocol: u8, tuple: &HashMap<String, String>) -> [String; 6] {
    let word = |name: &str| tuple.get(name).cloned().unwrap_or_default();
    let address = |name: &str| {
        word(name).parse::<IpAddr>().map_or_else(|_| String::new(), |address| address.to_string())
    };
    let (a, b) = if tuple.contains_key("type") { ("type", "code") } else { ("sport", "dport") };
    [protocol.to_string(), address("src"), address("dst"), word(a), word(b), word("id")]
}

fn keep() -> NatSpec {
    NatSpec::new(NatKind::Source, None, None)
}

/// The NAT that [`RULES`] gives to a new connection.
fn nat_of(tuple: &Tuple) -> NatSpec {
    let v6 = !tuple.is_v4();
    let (src, dst) = (tuple.src(), tuple.dst());
    let address_of = |rule: Rule| rule.plan(v6, 0);
    for rule in [Rule::Destination, Rule::DestinationPort] {
        let plan = address_of(rule);
        if dst == plan.server {
            let is_service = rule == Rule::DestinationPort
                && tuple.has_ports()
                && tuple.ports().1 == flow::SERVICE_PORT;
            let port = is_service.then_some(flow::BACKEND_PORT);
            return NatSpec::destination(plan.backend, port);
        }
    }
    let class = match src {
        IpAddr::V4(src) if src.octets()[0] == 172 => u16::from(src.octets()[1]) - 16,
        IpAddr::V6(src) if src.segments()[2] == 1 => src.segments()[3],
        _ => 0,
    };
    match class {
        1 => NatSpec::source(address_of(Rule::Source).seen_client),
        2 => {
            let mut spec = NatSpec::source(address_of(Rule::SourcePort).seen_client);
            spec.ports = tuple.has_ports().then_some(SOURCE_PORT..=SOURCE_PORT);
            spec
        }
        _ => keep(),
    }
}
