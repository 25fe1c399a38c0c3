//! Checks that tunnel packets reach weft: that the firewall passes them, and that no other program
//! owns the tunnels' ports.

use super::firewall::{DropPoint, Firewall, FirewallOutcome, PacketDirection, TunnelPacket};
use crate::facts::{TunnelListeners, Uplink};
use crate::finding::{Finding, Fix, Level};
use flow::{Carrier, TunnelType};
use netdev::nftables::Ruleset;
use std::net::IpAddr;

/// A tunnel that this host receives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReceivedTunnel {
    /// Its type. VLAN and QinQ, which have no end points, are excluded.
    pub tunnel: TunnelType,
    /// Its UDP or TCP port; 0 for a type without ports.
    pub port: u16,
    /// The underlay is IPv6.
    pub v6: bool,
    /// This host's address, if it is known.
    pub local: Option<IpAddr>,
    /// The known addresses of other hosts.
    pub remotes: Vec<IpAddr>,
    /// The devices that lead to the other hosts; empty if unknown.
    pub uplinks: Vec<Uplink>,
}

impl ReceivedTunnel {
    /// A tunnel type on its registered port, at any address of these devices.
    pub fn standard(tunnel: TunnelType, uplinks: &[Uplink]) -> Option<Self> {
        let descriptor = tunnel.descriptor();
        if !descriptor.has_endpoints() {
            return None;
        }
        let port = descriptor.default_port;
        let (uplinks, remotes) = (uplinks.to_vec(), Vec::new());
        Some(Self { tunnel, port, v6: false, local: None, remotes, uplinks })
    }

    fn protocol(&self) -> u8 {
        self.tunnel.carrier().protocol().map_or(0, |protocol| protocol.0)
    }

    /// The nft match for its packets.
    fn condition(&self) -> String {
        match self.tunnel.carrier() {
            Carrier::Udp => format!("udp dport {}", self.port),
            Carrier::TcpLike => format!("tcp dport {}", self.port),
            Carrier::Gre | Carrier::Tags => "meta l4proto gre".to_owned(),
        }
    }

    /// Whether weft's packets traverse the firewall. weft receives GRE and STT by packet sockets,
    /// which see packets before the firewall. It sends STT by a packet socket, which bypasses the
    /// firewall.
    fn passes_the_firewall(&self, direction: PacketDirection) -> bool {
        match direction {
            PacketDirection::In => self.tunnel.carrier() == Carrier::Udp,
            PacketDirection::Out => self.tunnel.carrier() != Carrier::TcpLike,
        }
    }
}

/// A warning that legacy iptables has rules, which the doctor does not evaluate. `tables` are the
/// legacy tables in use.
pub fn legacy_firewall(tables: &[String]) -> Option<Finding> {
    if tables.is_empty() {
        return None;
    }
    let seen = format!("legacy iptables has tables: {}", tables.join(", "));
    let why = "weft doctor evaluates nftables only, and does not know what legacy rules drop";
    let fix = "check with iptables-legacy-save whether they drop tunnel packets";
    let finding = Finding::pass("firewall_legacy", "host", seen, why);
    Some(finding.worse(Level::Warn, Fix::Command(fix.to_owned())))
}

/// Checks what the firewall does with the packets of tunnels.
///
/// `rules` is the result of reading the ruleset. Rules that could not be read may drop anything.
pub fn firewall(rules: &netdev::Result<Ruleset>, tunnels: &[ReceivedTunnel]) -> Vec<Finding> {
    let why = "the firewall drops tunnel packets silently";
    let unread = |seen: String, fix: &str| {
        let finding = Finding::pass("firewall", "host", seen, why);
        vec![finding.worse(Level::Warn, Fix::Command(fix.to_owned()))]
    };
    let rules = match rules {
        Ok(rules) => rules,
        Err(error) if error.is_permission() => {
            return unread("only root can read the rules".to_owned(), "sudo weft doctor");
        }
        Err(error) => {
            let fix = "check with nft list ruleset whether rules drop tunnel packets";
            return unread(format!("the rules cannot be read: {error}"), fix);
        }
    };
    let firewall = Firewall::new(rules);
    let mut findings = Vec::new();
    for tunnel in tunnels {
        for direction in [PacketDirection::In, PacketDirection::Out] {
            findings.extend(of_tunnel(&firewall, tunnel, direction));
        }
    }
    if findings.is_empty() {
        let names: Vec<_> = tunnels.iter().map(|tunnel| tunnel.tunnel.to_string()).collect();
        let seen = format!("{} rules let {} pass", rules.rules.len(), names.join(", "));
        findings.push(Finding::pass("firewall", "host", seen, why));
    }
    findings
}

fn of_tunnel(
    firewall: &Firewall<'_>,
    tunnel: &ReceivedTunnel,
    direction: PacketDirection,
) -> Option<Finding> {
    let packet = |remote: Option<IpAddr>, uplink: Option<&Uplink>| {
        let (source, destination) = match direction {
            PacketDirection::In => (remote, tunnel.local),
            PacketDirection::Out => (tunnel.local, remote),
        };
        TunnelPacket {
            v6: tunnel.v6,
            protocol: tunnel.protocol(),
            port: (tunnel.port != 0).then_some(tunnel.port),
            source,
            destination,
            uplink: uplink.cloned(),
        }
    };
    let uplinks = or_unknown(&tunnel.uplinks);
    let mut worst: Option<(bool, DropPoint)> = None;
    for remote in or_unknown(&tunnel.remotes) {
        let outcomes = uplinks
            .iter()
            .map(|uplink| firewall.outcome(&packet(remote.copied(), uplink.as_deref()), direction));
        let outcomes: Vec<_> = outcomes.collect();
        // If there are several devices, the one that the packets use is unknown.
        let is_certain =
            outcomes.iter().all(|outcome| matches!(outcome, FirewallOutcome::Drops(_)));
        let places = outcomes.into_iter().filter_map(|outcome| match outcome {
            FirewallOutcome::Drops(place) | FirewallOutcome::MayDrop(place) => Some(place),
            FirewallOutcome::Passes => None,
        });
        let found = places.map(|place| (is_certain, place)).next();
        if worst.as_ref().is_none_or(|(was_certain, _)| !was_certain && is_certain) {
            worst = found.or(worst);
        }
    }
    let (is_certain, place) = worst?;
    let verb = match direction {
        PacketDirection::In => "received",
        PacketDirection::Out => "sent",
    };
    let passes = tunnel.passes_the_firewall(direction);
    let level = if is_certain && passes { Level::Fail } else { Level::Warn };
    let DropPoint { chain, by } = &place;
    let condition = tunnel.condition();
    let seen = if is_certain {
        format!("{condition}, {verb}: dropped in {chain} by {by}")
    } else {
        format!(
            "{condition}, {verb}: may be dropped in {chain} by {by}, depending on unknown values"
        )
    };
    let why = if passes {
        "the firewall drops tunnel packets silently"
    } else {
        "weft bypasses the firewall here, but the kernel's tunnels and other programs do not"
    };
    let fix = Fix::Command(format!("nft insert rule {chain} {condition} accept"));
    let subject = tunnel.tunnel.name();
    Some(Finding::pass("firewall", subject, seen, why).worse(level, fix))
}

/// Each element as `Some`, or a single `None` if there are none.
fn or_unknown<T>(known: &[T]) -> Vec<Option<&T>> {
    if known.is_empty() { vec![None] } else { known.iter().map(Some).collect() }
}

/// Checks whether another program or device occupies the ports and protocols of tunnels.
pub fn ports(ports: &TunnelListeners, tunnels: &[ReceivedTunnel]) -> Vec<Finding> {
    tunnels.iter().map(|tunnel| check_listener(ports, tunnel)).collect()
}

fn check_listener(ports: &TunnelListeners, tunnel: &ReceivedTunnel) -> Finding {
    let name = tunnel.tunnel.name();
    let what = match tunnel.port {
        0 => "IP protocol 47".to_owned(),
        port => format!("{} port {port}", if tunnel.protocol() == 6 { "TCP" } else { "UDP" }),
    };
    let why = "only one program can receive a tunnel: weft fails to start, or gets no packets";
    let free = |seen: String| Finding::pass("port", name, seen, why);
    let device = ports.devices.iter().filter(|device| device.up).find(|device| {
        match tunnel.tunnel.carrier() {
            Carrier::Gre => device.kind.contains("gre") || device.kind == "erspan",
            _ => device.port == Some(tunnel.port) && tunnel.protocol() == 17,
        }
    });
    if let Some(device) = device {
        let seen = format!("{what} is used by the {} device {}", device.kind, device.name);
        let is_ovs = device.name.starts_with("vxlan_sys") || device.name.contains("_sys");
        let fix = if is_ovs {
            format!(
                "ovs-vsctl del-port the tunnel port of {}, or set another port in network.toml",
                device.name
            )
        } else {
            format!("ip link del {}", device.name)
        };
        return free(seen).worse(Level::Fail, Fix::Command(fix));
    }
    let is_weft = |inode: u64| ports.program(inode).is_some_and(|(_, program)| program == "weft");
    let held = ports.sockets.iter().find(|socket| {
        // Raw sockets of one protocol do not conflict.
        socket.protocol == tunnel.protocol()
            && socket.port == tunnel.port
            && (tunnel.port != 0 || is_weft(socket.inode))
    });
    let Some(socket) = held else { return free(format!("{what} is free")) };
    // The program must be identified before it is stopped; another port always works.
    let inspect = |inspect: &str| {
        let key = if tunnel.protocol() == 6 { "tcp_port" } else { "udp_port" };
        let other = format!("; then stop that program, or set another {key} in network.toml");
        Fix::Command(format!("{inspect}{}", if tunnel.port == 0 { "" } else { &other }))
    };
    let list = format!("ss -lunpt 'sport = :{}'", tunnel.port);
    match ports.program(socket.inode) {
        Some((pid, "weft")) => free(format!("{what} is weft's own (process {pid})")),
        Some((pid, program)) => free(format!("{what} is used by {program} (process {pid})"))
            .worse(Level::Fail, inspect(&format!("ps -o user=,args= -p {pid}"))),
        None if socket.inode == 0 => free(format!("{what} is used by the kernel"))
            .worse(Level::Fail, inspect("ip -d link show type vxlan; ip -d link show type geneve")),
        // The owner's process is not visible. It may be weft itself.
        None if ports.sees_all_processes => {
            free(format!("{what} is used by a program in another container"))
                .worse(Level::Warn, inspect(&list))
        }
        None => free(format!("{what} is in use, and only root can see by whom"))
            .worse(Level::Warn, Fix::Command("sudo weft doctor".to_owned())),
    }
}
