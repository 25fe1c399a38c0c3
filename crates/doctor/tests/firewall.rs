//! Installs rules of nft and iptables on a test host. The kernel must treat tunnel packets as the
//! doctor predicts from these rules.

use doctor::checks::firewall::{Firewall, FirewallOutcome, PacketDirection, TunnelPacket};
use doctor::checks::tunnel_reception::{ReceivedTunnel, firewall};
use doctor::facts::{Device, Ruleset, Uplink};
use doctor::{Fix, Level};
use flow::TunnelType;
use netdev::{LinkKind, LinkSpec};
use std::net::{IpAddr, UdpSocket};
use std::process::Stdio;
use std::time::Duration;
use testkit::host::{TestHost, WireEnd, pair};
use testkit::{require_program, require_root};

/// Two hosts on one link. The rules are installed on `host`, and `far` sends packets to it.
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

    /// Replaces the ruleset.
    fn nft(&self, rules: &str) {
        self.run("nft", &["flush ruleset"]);
        // nft requires a newline at the end of each block.
        let lines = rules.replace("} }", "}\n}\n").replace("} chain", "}\nchain");
        self.run("nft", &[&lines]);
    }

    /// The rules as the doctor reads them.
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
        // Sending can fail, because the kernel reports an earlier ICMP error at the next send.
        let _ = sender.send_to(b"tunnel", (here, port));
        receiver.recv_from(&mut [0; 16]).is_ok()
    }

    fn uplink(&self) -> Uplink {
        let (name, index) = (self.end.name.clone(), self.end.index);
        let device = Device { name, index, kind: Some("veth".to_owned()) };
        Uplink { device, below: Vec::new() }
    }

    /// The datagram of [`Lab::receives`], as the doctor describes it.
    fn packet(&self, v6: bool, port: u16) -> TunnelPacket {
        let ends = if v6 {
            (IpAddr::from(self.far_end.ip6), IpAddr::from(self.end.ip6))
        } else {
            (IpAddr::from(self.far_end.ip4), IpAddr::from(self.end.ip4))
        };
        TunnelPacket {
            v6,
            protocol: 17,
            port: Some(port),
            source: Some(ends.0),
            destination: Some(ends.1),
            uplink: Some(self.uplink()),
        }
    }
}

/// The doctor's prediction for a packet.
fn firewall_outcome(
    rules: &Ruleset,
    packet: &TunnelPacket,
    direction: PacketDirection,
) -> FirewallOutcome {
    Firewall::new(rules).outcome(packet, direction)
}

/// Rules, and whether datagrams to IPv4 port 4789, IPv4 port 6081 and IPv6 port 4789 pass.
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
        "table ip6 f { chain i { type filter hook input priority 0; udp dport { 4789, 6081 } \
         drop; } }",
        [true, true, false],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; policy drop; ct state \
         established accept; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; udp \
         dport 6081 accept; } }",
        [false, true, false],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; udp dport 4000-5000 drop; } }",
        [false, true, false],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; udp dport { 4000-5000, \
         7000-8000 } counter drop; } }",
        [false, true, false],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; udp dport != 6081 drop; } }",
        [false, true, false],
    ),
    (
        "table inet f { chain j { udp dport 4789 drop; } chain i { type filter hook input \
         priority 0; meta nfproto ipv4 jump j; } }",
        [false, true, true],
    ),
    (
        "table inet f { chain j { udp dport 6081 return; drop; } chain i { type filter hook \
         input priority 0; meta l4proto udp goto j; } }",
        [false, true, false],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; udp dport vmap { 4789 : \
         drop, 6081 : accept }; } }",
        [false, true, false],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; iifname \"other0\" drop; \
         iifname != \"eth0\" drop; } }",
        [true, true, true],
    ),
    (
        "table inet f { set s { type inet_service; elements = { 4789 } } chain i { type filter \
         hook prerouting priority 0; udp dport @s drop; } }",
        [false, true, false],
    ),
    (
        "table netdev f { chain i { type filter hook ingress device eth0 priority 0; udp dport \
         4789 drop; } }",
        [false, true, false],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; ip saddr 10.0.0.0/8 udp \
         dport 4789 drop; } }",
        [false, true, true],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; ip saddr 192.0.2.0/24 drop; \
         udp dport & 1 == 1 drop; udp dport 6081 accept; } }",
        [false, false, false],
    ),
    (
        "table inet f { flags dormant; chain i { type filter hook input priority 0; policy drop; \
         } }",
        [true, true, true],
    ),
    (
        "table inet f { chain o { type filter hook output priority 0; udp dport 4789 drop; } }",
        [true, true, true],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; ct state new udp dport 4789 \
         drop; ct state invalid drop; } }",
        [false, true, false],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; meta l4proto . th dport { \
         udp . 4789 } drop; } }",
        [false, true, false],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; policy drop; icmpv6 type { \
         nd-neighbor-solicit, nd-neighbor-advert } accept; ip saddr 10.0.0.0/8 accept; } }",
        [true, true, false],
    ),
    // After a `goto`, evaluation continues after the calling chain: here with the policy.
    (
        "table inet f { chain j { udp dport 6081 accept; } chain i { type filter hook input \
         priority 0; policy drop; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } \
         accept; meta l4proto udp goto j; udp dport 4789 accept; } }",
        [false, true, false],
    ),
    (
        "table inet f { chain k { return; } chain j { udp dport 4789 goto k; accept; } chain i { \
         type filter hook input priority 0; meta l4proto udp jump j; udp dport 4789 drop; } }",
        [false, true, false],
    ),
    (
        "table inet f { chain j { udp dport 4789 drop; } chain i { type filter hook input \
         priority 0; meta nfproto vmap { ipv4 : jump j, ipv6 : accept }; udp dport 6081 drop; } }",
        [false, false, true],
    ),
    (
        "table inet f { chain j { udp dport 4789 accept; } chain i { type filter hook input \
         priority 0; policy drop; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } \
         accept; udp dport vmap { 4789 : goto j, 6081 : return } } }",
        [true, false, true],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; iif vmap { \"lo\" : accept, \
         \"eth0\" : drop } } }",
        [false, false, false],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; iif != \"eth0\" drop; \
         oifname \"eth0\" drop; iifname \"eth*\" udp dport 4789 drop; } }",
        [false, true, false],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; ip saddr . udp dport { \
         10.0.0.0/8 . 4000-5000, 192.0.2.0/24 . 6000-7000 } drop; } }",
        [false, true, true],
    ),
    (
        "table inet f { chain i { type filter hook input priority 0; policy drop; icmpv6 type { \
         nd-neighbor-solicit, nd-neighbor-advert } accept; ct state established,related accept; \
         ct status dnat accept; meta pkttype { broadcast, multicast } accept; udp dport 6081 \
         accept; } }",
        [false, true, false],
    ),
];

#[test]
fn outcome_is_what_the_kernel_does_with_a_packet() {
    require_root!();
    require_program!("nft", "nftables");
    let lab = Lab::new();
    // Resolves the neighbours before the rules can drop neighbour discovery.
    assert!(lab.receives(false, 9) && lab.receives(true, 9));
    for (rules, passes) in RULES {
        lab.nft(rules);
        let read = lab.rules();
        for ((v6, port), expected) in
            [(false, 4789), (false, 6081), (true, 4789)].iter().zip(passes)
        {
            assert_eq!(lab.receives(*v6, *port), *expected, "{rules}: {port}, IPv6 {v6}");
            let outcome = firewall_outcome(&read, &lab.packet(*v6, *port), PacketDirection::In);
            let agrees = match outcome {
                FirewallOutcome::Passes => *expected,
                FirewallOutcome::Drops(_) => !expected,
                FirewallOutcome::MayDrop(_) => false,
            };
            assert!(agrees, "{rules}: {port}, IPv6 {v6}: {outcome:?}\n{read:#?}");
        }
    }
}

#[test]
fn outcome_is_open_when_it_depends_on_an_unknown_sender() {
    require_root!();
    require_program!("nft", "nftables");
    let lab = Lab::new();
    let packet = TunnelPacket { source: None, ..lab.packet(false, 4789) };
    lab.nft(
        "table inet f { chain i { type filter hook input priority 0; policy drop; ip saddr \
             10.0.0.0/8 accept; } }",
    );
    assert!(matches!(
        firewall_outcome(&lab.rules(), &packet, PacketDirection::In),
        FirewallOutcome::MayDrop(_)
    ));
    lab.nft(
        "table inet f { chain i { type filter hook input priority 0; limit rate 1/second drop; } }",
    );
    let FirewallOutcome::MayDrop(place) =
        firewall_outcome(&lab.rules(), &packet, PacketDirection::In)
    else {
        panic!()
    };
    assert_eq!(place.chain, "inet f i");
    lab.nft(
        "table inet f { chain o { type filter hook output priority 0; udp dport 4789 drop; } }",
    );
    assert!(matches!(
        firewall_outcome(&lab.rules(), &packet, PacketDirection::Out),
        FirewallOutcome::Drops(_)
    ));
}

/// Rules whose effect on a packet to port 4789 depends on values that the doctor does not know.
const OPEN: &[&str] = &[
    "table inet f { chain i { type filter hook input priority 0; meta mark & 1 == 1 drop; } }",
    "table inet f { chain i { type filter hook input priority 0; meta cpu vmap { 0 : drop, 1 : \
     accept }; } }",
    "table inet f { chain j { drop; } chain i { type filter hook input priority 0; meta cpu vmap \
     { 0 : goto j, 1 : return }; } }",
    "table inet f { chain j { meta cpu 0 return; drop; } chain i { type filter hook input \
     priority 0; jump j; } }",
    "table inet f { chain p { type nat hook prerouting priority -100; udp dport 4789 redirect to \
     :9; } }",
    "table inet f { chain p { type filter hook prerouting priority -300; udp dport set 4790; } \
     chain i { type filter hook input priority 0; udp dport 4790 drop; } }",
    "table inet f { chain p { type filter hook prerouting priority -300; notrack; } chain i { \
     type filter hook input priority 0; ct state new drop; } }",
    "table inet f { chain p { type filter hook prerouting priority -300; ct state new drop; } }",
    "table inet f { chain i { type filter hook input priority 0; udp sport & 1 == 1 drop; } }",
];

#[test]
fn outcome_is_open_when_it_depends_on_unknown_values() {
    require_root!();
    require_program!("nft", "nftables");
    let lab = Lab::new();
    for rules in OPEN {
        lab.nft(rules);
        let (read, packet) = (lab.rules(), lab.packet(false, 4789));
        let outcome = firewall_outcome(&read, &packet, PacketDirection::In);
        assert!(matches!(outcome, FirewallOutcome::MayDrop(_)), "{rules}: {outcome:?} {read:#?}");
        let tunnel = ReceivedTunnel {
            local: packet.destination,
            remotes: vec![packet.source.unwrap()],
            ..ReceivedTunnel::standard(TunnelType::Vxlan, &[lab.uplink()]).unwrap()
        };
        let findings = firewall(&Ok(read), &[tunnel]);
        assert!(findings.iter().all(|finding| finding.level == Level::Warn), "{findings:#?}");
    }
}

/// A pseudo-random generator of rules with a fixed seed (xorshift).
struct Dice(u32);

impl Dice {
    fn roll(&mut self, sides: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0 % sides
    }

    /// The rules of a random chain. It may jump only to chains with higher numbers, because loops
    /// are not allowed.
    fn chain(&mut self, number: u32, chains: u32) -> String {
        let conditions = [
            "",
            "udp dport 4789",
            "udp dport 6081",
            "meta nfproto ipv4",
            "iif eth0",
            "iifname \"eth1\"",
            "udp dport { 4000-5000 }",
            "ip saddr 10.0.0.0/8",
        ];
        let mut rules = String::new();
        for _ in 0..=self.roll(3) {
            let next = number + 1 + self.roll(chains);
            let verdict = |dice: &mut Self| match (dice.roll(6), next < chains) {
                (0, _) => "accept".to_owned(),
                (1, _) => "drop".to_owned(),
                (2, _) => "return".to_owned(),
                (3, true) => format!("goto c{next}"),
                (_, true) => format!("jump c{next}"),
                _ => "continue".to_owned(),
            };
            rules += &match self.roll(4) {
                0 => format!(
                    "udp dport vmap {{ 4789 : {}, 6081 : {} }}; ",
                    verdict(self),
                    verdict(self)
                ),
                _ => {
                    let condition = conditions[self.roll(conditions.len() as u32) as usize];
                    format!("{condition} {}; ", verdict(self))
                }
            };
        }
        rules
    }
}

#[test]
fn outcome_is_what_the_kernel_does_for_random_rules() {
    require_root!();
    require_program!("nft", "nftables");
    let lab = Lab::new();
    assert!(lab.receives(false, 9));
    let mut dice = Dice(7);
    let mut dropped = 0;
    for _ in 0..60 {
        let mut text = "table inet f {\n".to_owned();
        for number in (0..4).rev() {
            let policy = if dice.roll(4) == 0 { "drop" } else { "accept" };
            let hook = format!("type filter hook input priority 0; policy {policy}; ");
            let hook = if number == 0 { hook } else { String::new() };
            text += &format!("chain c{number} {{ {hook}{}}}\n", dice.chain(number, 4));
        }
        text += "}";
        lab.nft(&text);
        let arrives = lab.receives(false, 4789);
        let outcome = firewall_outcome(&lab.rules(), &lab.packet(false, 4789), PacketDirection::In);
        let agrees = matches!(
            (&outcome, arrives),
            (FirewallOutcome::Passes, true) | (FirewallOutcome::Drops(_), false)
        );
        assert!(agrees, "{text}: arrives {arrives}, outcome {outcome:?}");
        dropped += u32::from(!arrives);
    }
    assert!((10..50).contains(&dropped), "{dropped} of 60");
}

#[test]
fn unreadable_rules_are_a_warning() {
    let refused =
        |errno| Err(netdev::Error::os("list rules", std::io::Error::from_raw_os_error(errno)));
    for (errno, outcome) in
        [(1, "only root can read the rules"), (12, "the rules cannot be read: list rules")]
    {
        let findings = firewall(&refused(errno), &[]);
        assert_eq!((findings.len(), findings[0].level), (1, Level::Warn));
        assert!(findings[0].seen.starts_with(outcome), "{findings:?}");
    }
}

#[test]
fn bridge_rules_apply_when_a_bridge_is_the_uplink() {
    require_root!();
    require_program!("nft", "nftables");
    let lab = Lab::new();
    let host = lab.host.netlink();
    let bridge = host.create(&LinkSpec::new("br0").up(), &LinkKind::Bridge).unwrap();
    host.set_master(lab.end.index, Some(bridge)).unwrap();
    lab.run(
        "sh",
        &["-c", &format!("ip addr flush dev eth0; ip addr add {}/24 dev br0", lab.end.ip4)],
    );
    assert!(lab.receives(false, 9));
    let links = host.links().unwrap();
    let uplink = Uplink::find(&links, "br0");
    assert!(uplink.as_ref().is_some_and(|uplink| uplink.device.is_bridge()));
    let packet = TunnelPacket { uplink, ..lab.packet(false, 4789) };
    for (chain, passes) in [
        ("type filter hook input priority 0; meta protocol ip udp dport 4789 drop;", false),
        ("type filter hook prerouting priority 0; udp dport 4789 drop;", false),
        ("type filter hook forward priority 0; udp dport 4789 drop;", true),
        ("type filter hook input priority 0; udp dport 6081 drop;", true),
    ] {
        lab.nft(&format!("table bridge f {{ chain i {{ {chain} }} }}"));
        assert_eq!(lab.receives(false, 4789), passes, "{chain}");
        let outcome = firewall_outcome(&lab.rules(), &packet, PacketDirection::In);
        assert_eq!(matches!(outcome, FirewallOutcome::Drops(_)), !passes, "{chain}: {outcome:?}");
        assert_eq!(
            firewall_outcome(&lab.rules(), &lab.packet(false, 4789), PacketDirection::In),
            FirewallOutcome::Passes
        );
    }
}

#[test]
fn command_fixes_it_when_the_firewall_drops_a_tunnel() {
    require_root!();
    require_program!("nft", "nftables");
    let lab = Lab::new();
    assert!(lab.receives(false, 9));
    let tunnels: Vec<_> = TunnelType::ALL
        .into_iter()
        .filter_map(|tunnel| ReceivedTunnel::standard(tunnel, &[lab.uplink()]))
        .collect();
    lab.nft(
        "table inet f { chain i { type filter hook input priority 0; policy drop; udp dport \
             6081 accept; meta l4proto { tcp, gre } accept; } }",
    );
    let findings = firewall(&Ok(lab.rules()), &tunnels);
    let [finding] = findings.as_slice() else { panic!("{findings:#?}") };
    assert_eq!((finding.level, finding.subject.as_str()), (Level::Fail, "vxlan"));
    let Some(Fix::Command(command)) = &finding.fix else { panic!() };
    assert_eq!(command, "nft insert rule inet f i udp dport 4789 accept");
    assert!(!lab.receives(false, 4789));
    lab.run("sh", &["-c", command]);
    assert!(lab.receives(false, 4789));
    let fixed = firewall(&Ok(lab.rules()), &tunnels);
    assert!(fixed.iter().all(|finding| finding.level == Level::Pass), "{fixed:#?}");
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
        let outcome = firewall_outcome(&lab.rules(), &lab.packet(false, 4789), PacketDirection::In);
        assert_eq!(
            outcome == FirewallOutcome::Passes,
            passes,
            "{arguments:?}: {outcome:?} {:#?}",
            lab.rules()
        );
    }
}
