//! Whether tunnel packets reach weft: the firewall, and who else has their ports.

use super::firewall::{Direction, Fate, Firewall, Packet, Place};
use crate::facts::{Ports, Uplink};
use crate::finding::{Finding, Level, Mend};
use flow::TunnelType;
use netdev::nftables::Ruleset;
use std::net::IpAddr;

/// A tunnel that this host receives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Received {
    /// Its type; only those with end points.
    pub tunnel: TunnelType,
    /// The port, for those that have one.
    pub port: u16,
    /// The underlay is IPv6.
    pub v6: bool,
    /// This host's end, if it is known.
    pub local: Option<IpAddr>,
    /// The other hosts, as far as they are known.
    pub remotes: Vec<IpAddr>,
    /// The devices that lead to them; none when they are not known.
    pub uplinks: Vec<Uplink>,
}

impl Received {
    /// A tunnel type by its registered port, at any address of these devices.
    pub fn standard(tunnel: TunnelType, uplinks: &[Uplink]) -> Option<Self> {
        let port = match tunnel {
            TunnelType::Vxlan => 4789,
            TunnelType::Geneve => 6081,
            TunnelType::Stt => 7471,
            TunnelType::Gre => 0,
            TunnelType::Vlan | TunnelType::QinQ => return None,
        };
        let (uplinks, remotes) = (uplinks.to_vec(), Vec::new());
        Some(Self { tunnel, port, v6: false, local: None, remotes, uplinks })
    }

    fn protocol(&self) -> u8 {
        match self.tunnel {
            TunnelType::Vxlan | TunnelType::Geneve => 17,
            TunnelType::Stt => 6,
            TunnelType::Gre | TunnelType::Vlan | TunnelType::QinQ => 47,
        }
    }

    /// As nft writes the condition.
    fn condition(&self) -> String {
        match self.tunnel {
            TunnelType::Vxlan | TunnelType::Geneve => format!("udp dport {}", self.port),
            TunnelType::Stt => format!("tcp dport {}", self.port),
            TunnelType::Gre | TunnelType::Vlan | TunnelType::QinQ => "meta l4proto gre".to_owned(),
        }
    }

    /// weft receives GRE and STT before the firewall, and sends STT behind it.
    fn passes_the_firewall(&self, direction: Direction) -> bool {
        match direction {
            Direction::In => matches!(self.tunnel, TunnelType::Vxlan | TunnelType::Geneve),
            Direction::Out => self.tunnel != TunnelType::Stt,
        }
    }
}

/// Whether there are rules of the old iptables, which are not followed here. `tables` are those in use.
pub fn old_firewall(tables: &[String]) -> Option<Finding> {
    if tables.is_empty() {
        return None;
    }
    let seen = format!("the old iptables has tables: {}", tables.join(", "));
    let why = "weft doctor follows nftables only, which iptables of today writes, and does not know what these drop";
    let mend = "look with iptables-legacy-save whether they drop what tunnels need";
    let finding = Finding::pass("firewall_legacy", "host", seen, why);
    Some(finding.worse(Level::Warn, Mend::Command(mend.to_owned())))
}

/// What the firewall does with tunnels.
///
/// `rules` are as they could be read: what could not be read may drop anything.
pub fn firewall(rules: &netdev::Result<Ruleset>, tunnels: &[Received]) -> Vec<Finding> {
    let why = "tunnel packets that the firewall drops are lost without a word to anybody";
    let unread = |seen: String, mend: &str| {
        let finding = Finding::pass("firewall", "host", seen, why);
        vec![finding.worse(Level::Warn, Mend::Command(mend.to_owned()))]
    };
    let rules = match rules {
        Ok(rules) => rules,
        Err(error) if error.is_permission() => {
            return unread("its rules are shown to root only".to_owned(), "sudo weft doctor");
        }
        Err(error) => {
            let mend = "look with nft list ruleset whether rules drop what tunnels need";
            return unread(format!("its rules could not be read: {error}"), mend);
        }
    };
    let firewall = Firewall::new(rules);
    let mut findings = Vec::new();
    for tunnel in tunnels {
        for direction in [Direction::In, Direction::Out] {
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

fn of_tunnel(firewall: &Firewall<'_>, tunnel: &Received, direction: Direction) -> Option<Finding> {
    let packet = |remote: Option<IpAddr>, uplink: Option<&Uplink>| {
        let (source, destination) = match direction {
            Direction::In => (remote, tunnel.local),
            Direction::Out => (tunnel.local, remote),
        };
        Packet {
            v6: tunnel.v6,
            protocol: tunnel.protocol(),
            port: (tunnel.port != 0).then_some(tunnel.port),
            source,
            destination,
            uplink: uplink.cloned(),
        }
    };
    let uplinks = or_unknown(&tunnel.uplinks);
    let mut worst: Option<(bool, Place)> = None;
    for remote in or_unknown(&tunnel.remotes) {
        let fates = uplinks
            .iter()
            .map(|uplink| firewall.fate(&packet(remote.copied(), uplink.as_deref()), direction));
        let fates: Vec<_> = fates.collect();
        // By which of several devices its packets come is not known.
        let is_sure = fates.iter().all(|fate| matches!(fate, Fate::Drops(_)));
        let places = fates.into_iter().filter_map(|fate| match fate {
            Fate::Drops(place) | Fate::MayDrop(place) => Some(place),
            Fate::Passes => None,
        });
        let found = places.map(|place| (is_sure, place)).next();
        if worst.as_ref().is_none_or(|(was_sure, _)| !was_sure && is_sure) {
            worst = found.or(worst);
        }
    }
    let (is_sure, place) = worst?;
    let way = match direction {
        Direction::In => "received",
        Direction::Out => "sent",
    };
    let passes = tunnel.passes_the_firewall(direction);
    let level = if is_sure && passes { Level::Fail } else { Level::Warn };
    let Place { chain, by } = &place;
    let condition = tunnel.condition();
    let seen = if is_sure {
        format!("{condition}, {way}: dropped in {chain} by {by}")
    } else {
        format!(
            "{condition}, {way}: perhaps dropped in {chain} by {by}, depending on what is not known here"
        )
    };
    let why = if passes {
        "tunnel packets that the firewall drops are lost without a word to anybody"
    } else {
        "weft itself takes these past the firewall, but the kernel's tunnels and other programs do not"
    };
    let mend = Mend::Command(format!("nft insert rule {chain} {condition} accept"));
    let subject = tunnel.tunnel.name();
    Some(Finding::pass("firewall", subject, seen, why).worse(level, mend))
}

/// Each of them, or one that is not known where there is none.
fn or_unknown<T>(known: &[T]) -> Vec<Option<&T>> {
    if known.is_empty() { vec![None] } else { known.iter().map(Some).collect() }
}

/// Who else has the ports and protocols of tunnels.
pub fn ports(ports: &Ports, tunnels: &[Received]) -> Vec<Finding> {
    tunnels.iter().map(|tunnel| taken(ports, tunnel)).collect()
}

fn taken(ports: &Ports, tunnel: &Received) -> Finding {
    let name = tunnel.tunnel.name();
    let what = match tunnel.port {
        0 => "IP protocol 47".to_owned(),
        port => format!("{} port {port}", if tunnel.protocol() == 6 { "TCP" } else { "UDP" }),
    };
    let why =
        "only one can receive a tunnel: weft does not start, or the other one takes the packets";
    let free = |seen: String| Finding::pass("port", name, seen, why);
    let device =
        ports.devices.iter().filter(|device| device.up).find(|device| match tunnel.tunnel {
            TunnelType::Gre => device.kind.contains("gre") || device.kind == "erspan",
            _ => device.port == Some(tunnel.port) && tunnel.protocol() == 17,
        });
    if let Some(device) = device {
        let seen = format!("{what} is taken by the {} device {}", device.kind, device.name);
        let is_ovs = device.name.starts_with("vxlan_sys") || device.name.contains("_sys");
        let mend = if is_ovs {
            format!(
                "ovs-vsctl del-port the tunnel port of {}, or another `port` in network.toml",
                device.name
            )
        } else {
            format!("ip link del {}", device.name)
        };
        return free(seen).worse(Level::Fail, Mend::Command(mend));
    }
    let held = ports.sockets.iter().find(|socket| {
        socket.protocol == tunnel.protocol() && socket.port == tunnel.port
            // Raw sockets of one protocol do not exclude each other.
            && (tunnel.port != 0 || ports.program(socket.inode).is_some_and(|(_, name)| name == "weft"))
    });
    let Some(socket) = held else { return free(format!("{what} is free")) };
    // What it is has to be looked at before it may be ended; another port is always to be had.
    let look = |look: &str| {
        let key = if tunnel.protocol() == 6 { "tcp_port" } else { "udp_port" };
        let other =
            format!("; another {key} in network.toml, or end that program by its own means");
        Mend::Command(format!("{look}{}", if tunnel.port == 0 { "" } else { &other }))
    };
    let list = format!("ss -lunpt 'sport = :{}'", tunnel.port);
    match ports.program(socket.inode) {
        Some((pid, "weft")) => free(format!("{what} is weft's own (process {pid})")),
        Some((pid, program)) => free(format!("{what} is taken by {program} (process {pid})"))
            .worse(Level::Fail, look(&format!("ps -o user=,args= -p {pid}"))),
        None if socket.inode == 0 => free(format!("{what} is taken by the kernel"))
            .worse(Level::Fail, look("ip -d link show type vxlan; ip -d link show type geneve")),
        // weft's own looks the same to whoever may not look at its process.
        None if ports.sees_all => {
            free(format!("{what} is taken by a program that is not seen here"))
                .worse(Level::Warn, look(&list))
        }
        None => free(format!("{what} is taken, and only root sees by whom"))
            .worse(Level::Warn, Mend::Command("sudo weft doctor".to_owned())),
    }
}
