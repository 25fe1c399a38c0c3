//! Whether the firewall eats the packets of a tunnel: its rules are followed for a packet of which something is known (protocol,
//! port, perhaps addresses and device) and the rest is not.
//!
//! A condition is then true, false, or may be either, and a chain may end in more than one way. What is known is never less than
//! what may happen: a packet is said to be dropped only where there is no other way, and to pass only where nothing drops it.

mod registers;
mod walk;

use crate::facts::Uplink;
use netdev::nftables::{Chain, Family, Rule, Ruleset, Set};
use std::collections::HashMap;
use std::net::IpAddr;
use walk::Walk;

/// A packet of a tunnel, as far as it is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// IPv6 outside.
    pub v6: bool,
    /// The IP protocol.
    pub protocol: u8,
    /// The destination port, for UDP and TCP.
    pub port: Option<u16>,
    /// The sender.
    pub source: Option<IpAddr>,
    /// The receiver.
    pub destination: Option<IpAddr>,
    /// The devices by which it comes or goes.
    pub uplink: Option<Uplink>,
}

/// Which way a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// It is received: at the device, before routing, and for this host.
    In,
    /// It is sent.
    Out,
}

/// What becomes of a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It passes.
    Passes,
    /// It may be dropped, depending on what is not known.
    MayDrop(Place),
    /// It is dropped.
    Drops(Place),
}

/// What drops it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// `inet filter input`: the chain at which packets arrive, where a rule can be put before.
    pub chain: String,
    /// `handle 7 of inet filter blocked`, or `its policy`.
    pub by: String,
}

/// The family, table and name of a chain or a set.
type Name<'a> = (Family, &'a str, &'a str);

/// Rules, in the order in which packets meet them.
pub struct Firewall<'a> {
    /// Those at which packets arrive.
    bases: Vec<&'a Chain>,
    chains: HashMap<Name<'a>, &'a Chain>,
    rules: HashMap<Name<'a>, Vec<&'a Rule>>,
    sets: HashMap<Name<'a>, &'a Set>,
}

impl<'a> Firewall<'a> {
    /// Puts rules in order.
    pub fn new(ruleset: &'a Ruleset) -> Self {
        let mut rules: HashMap<Name<'_>, Vec<&Rule>> = HashMap::new();
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

    /// What the rules do with a packet. All chains that see it have to let it pass.
    pub fn fate(&self, packet: &Packet, direction: Direction) -> Fate {
        let mut seen: Vec<_> = self
            .bases
            .iter()
            .filter_map(|chain| Some((sees(chain, packet, direction)?, *chain)))
            .collect();
        seen.sort_by_key(|(view, _)| (view.stage, view.priority));
        let mut walk = Walk::new(self, packet, direction);
        let mut worst = Fate::Passes;
        for (view, chain) in seen {
            let ends = walk.base(chain, view);
            let Some(by) = ends.drops else { continue };
            let place = Place { chain: path(chain), by };
            if !ends.accepts {
                return Fate::Drops(place);
            }
            if worst == Fate::Passes {
                worst = Fate::MayDrop(place);
            }
        }
        worst
    }
}

/// A chain as `nft` names it.
fn path(chain: &Chain) -> String {
    format!("{} {} {}", chain.family.name(), chain.table, chain.name)
}

/// How a chain sees a packet.
#[derive(Clone)]
struct View {
    /// Chains of lower stages are met before.
    stage: u32,
    /// Within a stage, lower ones are met before.
    priority: i32,
    /// The device that is the packet's own there, if it is known: name and number.
    device: Option<(String, u32)>,
    /// It certainly arrives there; one of several ports of a bond may not be its way.
    is_sure: bool,
    /// What `meta nfproto` is there.
    nfproto: u8,
    /// Connections are known there already.
    is_tracked: bool,
}

/// How packets of this kind arrive at a chain, if they do.
fn sees(chain: &Chain, packet: &Packet, direction: Direction) -> Option<View> {
    /// NF_IP_PRI_CONNTRACK
    const TRACKING: i32 = -200;
    let hook = chain.hook.as_ref()?;
    let stage = match (chain.family, direction, hook.number) {
        (Family::Netdev, Direction::In, 0) | (Family::Inet, Direction::In, 5) => 0,
        (Family::Bridge, Direction::In, number @ 0..=1) => 1 + number,
        (Family::Inet | Family::Ip | Family::Ip6, Direction::In, number @ 0..=1) => 3 + number,
        (Family::Inet | Family::Ip | Family::Ip6, Direction::Out, number @ 3..=4) => number,
        (Family::Bridge, Direction::Out, number @ 3..=4) => 2 + number,
        (Family::Netdev, Direction::Out, 1) => 7,
        _ => return None,
    };
    let version = if packet.v6 { Family::Ip6 } else { Family::Ip };
    if matches!(chain.family, Family::Ip | Family::Ip6) && chain.family != version {
        return None;
    }
    let is_ip = matches!(stage, 3 | 4) && chain.family != Family::Bridge;
    let mut view = View {
        stage,
        priority: hook.priority,
        device: None,
        is_sure: true,
        nfproto: match chain.family {
            Family::Netdev | Family::Bridge => chain.family.number(),
            _ => version.number(),
        },
        is_tracked: is_ip && hook.priority > TRACKING,
    };
    let own = |device: &crate::facts::Device| Some((device.name.clone(), device.index.0));
    match (chain.family, &packet.uplink) {
        // Of a bridge's own packets it is not known which port they come or go by.
        (Family::Bridge, Some(uplink)) => {
            let may_be = uplink.below.iter().any(|device| device.is_bridge());
            view.is_sure = uplink.device.is_bridge();
            return (view.is_sure || may_be).then_some(view);
        }
        (Family::Bridge, None) => view.is_sure = false,
        _ if hook.devices.is_empty() => {
            view.device = packet.uplink.as_ref().and_then(|uplink| own(&uplink.device));
        }
        (_, None) => view.is_sure = false,
        (_, Some(uplink)) => {
            let is_meant = |name: &str| {
                hook.devices.iter().any(|device| match device.strip_suffix('*') {
                    Some(start) => name.starts_with(start),
                    None => device == name,
                })
            };
            view.is_sure = is_meant(&uplink.device.name);
            let mut devices = std::iter::once(&uplink.device).chain(&uplink.below);
            let device = devices.find(|device| is_meant(&device.name))?;
            view.device = own(device);
        }
    }
    Some(view)
}
