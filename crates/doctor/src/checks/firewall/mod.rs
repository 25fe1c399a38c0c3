//! Determines whether the firewall drops the packets of a tunnel, by a symbolic evaluation of the
//! nftables rules.
//!
//! Some values of the packet are known (protocol, port, perhaps addresses and device), others are
//! unknown. A condition is therefore true, false or undecided, and a chain can have several
//! possible outcomes. A packet "is dropped" only if no possible evaluation lets it pass, and
//! "passes" only if none drops it.

mod registers;
mod walk;

use crate::facts::Uplink;
use netdev::nftables::{Chain, Rule, Ruleset, Set, TableFamily};
use std::collections::HashMap;
use std::net::IpAddr;
use walk::RuleEvaluation;

/// The known values of a tunnel's packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TunnelPacket {
    /// The outer header is IPv6.
    pub v6: bool,
    /// The IP protocol.
    pub protocol: u8,
    /// The destination port, for UDP and TCP.
    pub port: Option<u16>,
    /// The source address.
    pub source: Option<IpAddr>,
    /// The destination address.
    pub destination: Option<IpAddr>,
    /// The device that receives or sends it.
    pub uplink: Option<Uplink>,
}

/// The direction of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PacketDirection {
    /// Received: it passes the ingress, prerouting and input hooks.
    In,
    /// Sent: it passes the output, postrouting and egress hooks.
    Out,
}

/// The effect of the firewall on a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FirewallOutcome {
    /// It passes.
    Passes,
    /// It may be dropped, depending on values that are not known.
    MayDrop(DropPoint),
    /// It is dropped.
    Drops(DropPoint),
}

/// The rule that drops a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DropPoint {
    /// The base chain, such as `inet filter input`. A rule inserted at its start precedes the
    /// dropping rule.
    pub chain: String,
    /// The rule or policy that drops it: `handle 7 of inet filter blocked`, or `its policy`.
    pub by: String,
}

/// The family, table and name of a chain or a set.
type ObjectName<'a> = (TableFamily, &'a str, &'a str);

/// The rules of a namespace, indexed for the evaluation.
pub struct Firewall<'a> {
    /// The base chains.
    bases: Vec<&'a Chain>,
    chains: HashMap<ObjectName<'a>, &'a Chain>,
    rules: HashMap<ObjectName<'a>, Vec<&'a Rule>>,
    sets: HashMap<ObjectName<'a>, &'a Set>,
}

impl<'a> Firewall<'a> {
    /// Indexes a ruleset.
    pub fn new(ruleset: &'a Ruleset) -> Self {
        let mut rules: HashMap<ObjectName<'_>, Vec<&Rule>> = HashMap::new();
        for rule in &ruleset.rules {
            rules.entry((rule.family, &rule.table, &rule.chain)).or_default().push(rule);
        }
        let name = |chain: &'a Chain| (chain.family, chain.table.as_str(), chain.name.as_str());
        Self {
            bases: ruleset.chains.iter().filter(|chain| chain.hook.is_some()).collect(),
            chains: ruleset.chains.iter().map(|chain| (name(chain), chain)).collect(),
            rules,
            sets: ruleset
                .sets
                .iter()
                .map(|set| ((set.family, set.table.as_str(), set.name.as_str()), set))
                .collect(),
        }
    }

    /// Evaluates the rules for a packet. It passes if every base chain on its way lets it pass.
    pub fn outcome(&self, packet: &TunnelPacket, direction: PacketDirection) -> FirewallOutcome {
        let mut seen: Vec<_> = self
            .bases
            .iter()
            .filter_map(|chain| Some((chain_view(chain, packet, direction)?, *chain)))
            .collect();
        seen.sort_by_key(|(view, _)| (view.stage, view.priority));
        let mut walk = RuleEvaluation::new(self, packet, direction);
        let mut worst = FirewallOutcome::Passes;
        for (view, chain) in seen {
            let ends = walk.base(chain, view);
            let Some(by) = ends.drops else { continue };
            let place = DropPoint { chain: path(chain), by };
            if !ends.accepts {
                return FirewallOutcome::Drops(place);
            }
            if worst == FirewallOutcome::Passes {
                worst = FirewallOutcome::MayDrop(place);
            }
        }
        worst
    }
}

/// The name of a chain in the syntax of `nft`.
fn path(chain: &Chain) -> String {
    format!("{} {} {}", chain.family.name(), chain.table, chain.name)
}

/// How a base chain sees a packet.
#[derive(Clone)]
struct ChainView {
    /// Chains of lower stages come first.
    stage: u32,
    /// Within a stage, chains of lower priority come first.
    priority: i32,
    /// The packet's device at this hook, if it is known: name and interface index.
    device: Option<(String, u32)>,
    /// The packet certainly traverses this chain. False if it may bypass the chain, for example a
    /// chain for one port of a bond.
    is_certain: bool,
    /// The value of `meta nfproto` in this chain.
    nfproto: u8,
    /// Connection tracking has already seen the packet.
    is_tracked: bool,
}

/// The view of a base chain on such packets; `None` if they do not traverse it.
fn chain_view(
    chain: &Chain,
    packet: &TunnelPacket,
    direction: PacketDirection,
) -> Option<ChainView> {
    /// NF_IP_PRI_CONNTRACK.
    const TRACKING: i32 = -200;
    let hook = chain.hook.as_ref()?;
    let stage = match (chain.family, direction, hook.number) {
        (TableFamily::Netdev, PacketDirection::In, 0)
        | (TableFamily::Inet, PacketDirection::In, 5) => 0,
        (TableFamily::Bridge, PacketDirection::In, number @ 0..=1) => 1 + number,
        (
            TableFamily::Inet | TableFamily::Ip | TableFamily::Ip6,
            PacketDirection::In,
            number @ 0..=1,
        ) => 3 + number,
        (
            TableFamily::Inet | TableFamily::Ip | TableFamily::Ip6,
            PacketDirection::Out,
            number @ 3..=4,
        ) => number,
        (TableFamily::Bridge, PacketDirection::Out, number @ 3..=4) => 2 + number,
        (TableFamily::Netdev, PacketDirection::Out, 1) => 7,
        _ => return None,
    };
    let version = if packet.v6 { TableFamily::Ip6 } else { TableFamily::Ip };
    if matches!(chain.family, TableFamily::Ip | TableFamily::Ip6) && chain.family != version {
        return None;
    }
    let is_ip = matches!(stage, 3 | 4) && chain.family != TableFamily::Bridge;
    let mut view = ChainView {
        stage,
        priority: hook.priority,
        device: None,
        is_certain: true,
        nfproto: match chain.family {
            TableFamily::Netdev | TableFamily::Bridge => chain.family.number(),
            _ => version.number(),
        },
        is_tracked: is_ip && hook.priority > TRACKING,
    };
    let own = |device: &crate::facts::Device| Some((device.name.clone(), device.index.0));
    match (chain.family, &packet.uplink) {
        // The port that packets of the bridge device itself use is unknown.
        (TableFamily::Bridge, Some(uplink)) => {
            let may_be = uplink.below.iter().any(|device| device.is_bridge());
            view.is_certain = uplink.device.is_bridge();
            return (view.is_certain || may_be).then_some(view);
        }
        (TableFamily::Bridge, None) => view.is_certain = false,
        _ if hook.devices.is_empty() => {
            view.device = packet.uplink.as_ref().and_then(|uplink| own(&uplink.device));
        }
        (_, None) => view.is_certain = false,
        (_, Some(uplink)) => {
            let is_hooked = |name: &str| {
                hook.devices.iter().any(|device| match device.strip_suffix('*') {
                    Some(start) => name.starts_with(start),
                    None => device == name,
                })
            };
            view.is_certain = is_hooked(&uplink.device.name);
            let mut devices = std::iter::once(&uplink.device).chain(&uplink.below);
            let device = devices.find(|device| is_hooked(&device.name))?;
            view.device = own(device);
        }
    }
    Some(view)
}
