//! Rules of nft and iptables on a host of its own: what the doctor says of a tunnel's packets, beside what becomes of them.

use doctor::facts::Ruleset;
use doctor::judge::firewall::{Direction, Fate, Packet, fate};
use doctor::judge::reach::{Received, firewall};
use doctor::{Level, Mend};
use flow::TunnelType;
use std::net::{IpAddr, UdpSocket};
use std::process::Stdio;
use std::time::Duration;
use testkit::host::{TestHost, WireEnd, pair};
use testkit::{require_program, require_root};

/// Two hosts on one wire; the second one gets the rules.
struct Lab {
    far: TestHost,
    far_end: WireEnd,
    host: TestHost,
    end: WireEnd,
}

impl Lab {
    fn new() -> Self {
        let (far, host) = (TestHost::new("far"), TestHost::new("host"));
        let (far_end, end) = pair(&far, &host);
        Self { far, far_end, host, end }
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let mut command = self.host.program(program);
        let output = command.args(arguments).stdin(Stdio::null()).output().expect(program);
        assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    }

    /// Sets the rules, in place of those that were there.
    fn nft(&self, rules: &str) {
        self.run("nft", &["flush ruleset"]);
        // What ends a block ends a line.
        let lines = rules.replace("} }", "}\n}\n").replace("} chain", "}\nchain");
        self.run("nft", &[&lines]);
    }

    fn rules(&self) -> Ruleset {
        self.host.run(Ruleset::read).expect("rules can be read")
    }

    /// True when a datagram from the far host arrives at this port.
    fn receives(&self, v6: bool, port: u16) -> bool {
        let (far, here) = if v6 {
            (IpAddr::from(self.far_end.ip6), IpAddr::from(self.end.ip6))
        } else {
            (IpAddr::from(self.far_end.ip4), IpAddr::from(self.end.ip4))
        };
        let receiver = self.host.run(|| UdpSocket::bind((here, port))).unwrap();
        receiver.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let sender = self.far.run(|| UdpSocket::bind((far, 0))).unwrap();
        // The first one may wait for the neighbour; a rejection fails the next.
        let _ = sender.send_to(b"tunnel", (here, port));
        receiver.recv_from(&mut [0; 16]).is_ok()
    }

    fn packet(&self, v6: bool, port: u16) -> Packet {
        let ends = if v6 {
            (IpAddr::from(self.far_end.ip6), IpAddr::from(self.end.ip6))
        } else {
            (IpAddr::from(self.far_end.ip4), IpAddr::from(self.end.ip4))
        };
        Packet {
            v6,
            protocol: 17,
            port: Some(port),
            source: Some(ends.0),
            destination: Some(ends.1),
            device: self.end.name.clone(),
        }
    }
}

/// Rules, and whether datagrams over IPv4 to the ports 4789 and 6081, and over IPv6 to 4789, pass.
const RULES: &[(&str, [bool; 3])] = &[
    (
        "table inet f { chain i { type filter hook input priority 0; udp dport 4789 drop; } }",
        [false, true, false],
    ),
    (
        "table ip f { chain i { type filter hook input priority 0; udp dport 4789 reject; } }",
        [false, true, true],
    ),
    (
        "table ip6 f { chain i { type filter hook input priority 0; udp dport { 4789, 6081 } drop; } }",
        [true, true, false],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; policy drop; ct state established accept; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; udp dport 6081 accept; } }",
        [false, true, false],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; udp dport 4000-5000 drop; } }",
        [false, true, false],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; udp dport { 4000-5000, 7000-8000 } counter drop; } }",
        [false, true, false],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; udp dport != 6081 drop; } }",
        [false, true, false],
    ),
    (
        "table inet f { chain j { udp dport 4789 drop; } chain i { type filter hook input priority 0; meta nfproto ipv4 jump j; } }",
        [false, true, true],
    ),
    (
        "table inet f { chain j { udp dport 6081 return; drop; } chain i { type filter hook input priority 0; meta l4proto udp goto j; } }",
        [false, true, false],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; udp dport vmap { 4789 : drop, 6081 : accept }; } }",
        [false, true, false],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; iifname \"other0\" drop; iifname != \"eth0\" drop; } }",
        [true, true, true],
    ),
    (
        "table inet f { set s { type inet_service; elements = { 4789 } } chain i { type filter hook prerouting priority 0; udp dport @s drop; } }",
        [false, true, false],
    ),
    (
        "table netdev f { chain i { type filter hook ingress device eth0 priority 0; udp dport 4789 drop; } }",
        [false, true, false],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; ip saddr 10.0.0.0/8 udp dport 4789 drop; } }",
        [false, true, true],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; ip saddr 192.0.2.0/24 drop; udp dport & 1 == 1 drop; udp dport 6081 accept; } }",
        [false, false, false],
    ),
    (
        "table inet f { flags dormant; chain i { type filter hook input priority 0; policy drop; } }",
        [true, true, true],
    ),
    (
        "table inet f { chain o { type filter hook output priority 0; udp dport 4789 drop; } }",
        [true, true, true],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; ct state new udp dport 4789 drop; ct state invalid drop; } }",
        [false, true, false],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; meta l4proto . th dport { udp . 4789 } drop; } }",
        [false, true, false],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; policy drop; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; ip saddr 10.0.0.0/8 accept; } }",
        [true, true, false],
    ),
];

#[test]
fn fate_of_a_packet_is_what_becomes_of_it() {
    require_root!();
    require_program!("nft", "nftables");
    let lab = Lab::new();
    // Neighbours are known before rules can be in the way of that.
    assert!(lab.receives(false, 9) && lab.receives(true, 9));
    for (rules, passes) in RULES {
        lab.nft(rules);
        let read = lab.rules();
        for ((v6, port), expected) in
            [(false, 4789), (false, 6081), (true, 4789)].iter().zip(passes)
        {
            assert_eq!(lab.receives(*v6, *port), *expected, "{rules}: {port}, IPv6 {v6}");
            let said = fate(&read, &lab.packet(*v6, *port), Direction::In);
            let agrees = match said {
                Fate::Passes => *expected,
                Fate::Drops(_) => !expected,
                Fate::MayDrop(_) => false,
            };
            assert!(agrees, "{rules}: {port}, IPv6 {v6}: {said:?}\n{read:#?}");
        }
    }
}

#[test]
fn fate_is_open_when_it_depends_on_an_unknown_sender() {
    require_root!();
    require_program!("nft", "nftables");
    let lab = Lab::new();
    let packet = Packet { source: None, ..lab.packet(false, 4789) };
    lab.nft("table inet f { chain i { type filter hook input priority 0; policy drop; ip saddr 10.0.0.0/8 accept; } }");
    assert!(matches!(fate(&lab.rules(), &packet, Direction::In), Fate::MayDrop(_)));
    lab.nft(
        "table inet f { chain i { type filter hook input priority 0; limit rate 1/second drop; } }",
    );
    let Fate::MayDrop(place) = fate(&lab.rules(), &packet, Direction::In) else { panic!() };
    assert_eq!(place.chain, "inet f i");
    lab.nft(
        "table inet f { chain o { type filter hook output priority 0; udp dport 4789 drop; } }",
    );
    assert!(matches!(fate(&lab.rules(), &packet, Direction::Out), Fate::Drops(_)));
}

#[test]
fn command_mends_it_when_the_firewall_drops_a_tunnel() {
    require_root!();
    require_program!("nft", "nftables");
    let lab = Lab::new();
    assert!(lab.receives(false, 9));
    let tunnels: Vec<_> = TunnelType::ALL
        .into_iter()
        .filter_map(|tunnel| Received::standard(tunnel, &lab.end.name))
        .collect();
    lab.nft("table inet f { chain i { type filter hook input priority 0; policy drop; udp dport 6081 accept; meta l4proto { tcp, gre } accept; } }");
    let findings = firewall(Some(&lab.rules()), &tunnels);
    let [finding] = findings.as_slice() else { panic!("{findings:#?}") };
    assert_eq!((finding.level, finding.subject.as_str()), (Level::Fail, "vxlan"));
    let Some(Mend::Command(command)) = &finding.mend else { panic!() };
    assert_eq!(command, "nft insert rule inet f i udp dport 4789 accept");
    assert!(!lab.receives(false, 4789));
    lab.run("sh", &["-c", command]);
    assert!(lab.receives(false, 4789));
    let mended = firewall(Some(&lab.rules()), &tunnels);
    assert!(mended.iter().all(|finding| finding.level == Level::Pass), "{mended:#?}");
}

#[test]
fn rules_of_iptables_are_followed() {
    require_root!();
    require_program!("iptables-nft", "iptables");
    let lab = Lab::new();
    assert!(lab.receives(false, 9));
    for (arguments, passes) in [
        ("-A INPUT -p udp --dport 4789 -j DROP", false),
        ("-I INPUT -p udp --dport 4789 -j ACCEPT", true),
        ("-t raw -A PREROUTING -p udp -m multiport --dports 6081,4789 -j DROP", false),
    ] {
        let arguments: Vec<_> = arguments.split(' ').collect();
        lab.run("iptables-nft", &arguments);
        assert_eq!(lab.receives(false, 4789), passes, "{arguments:?}");
        let said = fate(&lab.rules(), &lab.packet(false, 4789), Direction::In);
        assert_eq!(said == Fate::Passes, passes, "{arguments:?}: {said:?} {:#?}", lab.rules());
    }
}
