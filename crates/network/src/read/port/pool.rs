//! `[[logical_switch.pool]]`: equal ports on several hosts, whose devices come and go while the
//! switch runs.
//!
//! A pool is a short way to write many ports. All hosts know all of them, with their addresses and
//! keys, so that attaching a device concerns one host only.

use super::{DeviceDraft, PortDraft, PortReader, SecurityDraft};
use crate::errors::ProblemCollector;
use crate::read::{host_named, ip_net, object_name, unicast_mac};
use crate::section::{Field, Located, Schema, Section, key};
use crate::{FileLine, HostIndex, IpNet, Trust, interface_address};
use flow::PortKey;
use std::net::IpAddr;
use std::sync::Arc;
use wire::MacAddr;

pub(in crate::read) const POOL: Schema = Schema {
    name: "[[logical_switch.pool]]",
    keys: &[
        key("name", "name = \"pods\""),
        key("hosts", "hosts = [\"h1\", \"h2\"]"),
        key("count", "count = 100"),
        key("key", "key = 1001"),
        key("mac", "mac = \"02:00:00:01:00:01\""),
        key("addresses", "addresses = [\"10.0.1.1/16\"]"),
        key("port_security", "port_security = true"),
    ],
};

/// A pool as read. Missing parts have been reported.
pub(super) struct PoolDraft {
    at: usize,
    name: Arc<str>,
    /// The hosts with their names.
    hosts: Vec<(HostIndex, String)>,
    /// The number of ports on each host.
    count: u16,
    /// The key of the first port.
    key: Option<Located<PortKey>>,
    mac: Located<MacAddr>,
    addresses: Vec<Located<IpNet>>,
    is_secured: bool,
}

impl PoolDraft {
    /// The number of ports on all hosts.
    fn len(&self) -> u64 {
        u64::from(self.count) * self.hosts.len() as u64
    }
}

impl PortReader<'_> {
    /// Reads a pool, and reserves its keys if the file sets the first one.
    pub(super) fn pool(
        &mut self,
        report: &mut ProblemCollector<'_>,
        section: &Section<'_, '_>,
    ) -> Option<PoolDraft> {
        let name = object_name(report, section, "port or pool", &mut self.names);
        let hosts = section.require(report, "hosts").and_then(|it| self.pool_hosts(report, it));
        let rule = "a pool has 1 to 32767 ports on each host";
        let count = section
            .require(report, "count")
            .and_then(|field| field.integer(report, 1..=PortKey::MAX_PORT, rule));
        let rule = "the key of a port is 1 to 32767";
        let key = section.get("key").and_then(|field| {
            let key = PortKey::new(field.integer(report, 1..=PortKey::MAX_PORT, rule)?)?;
            Some(field.located(key))
        });
        let mac = section
            .require(report, "mac")
            .and_then(|field| Some(field.located(unicast_mac(report, field)?)));
        let addresses = section.get("addresses").map_or_else(Vec::new, |field| {
            let elements = field.array(report).into_iter().flatten();
            elements.filter_map(|element| Some(element.located(ip_net(report, element)?))).collect()
        });
        let is_secured =
            section.get("port_security").and_then(|field| field.boolean(report)).unwrap_or(true);
        let (at, name) = (section.at, name?.into());
        let (hosts, count, mac) = (hosts?, count?, mac?);
        let pool = PoolDraft { at, name, hosts, count, key, mac, addresses, is_secured };
        self.check_pool(report, &pool).then_some(pool)
    }

    fn pool_hosts(
        &self,
        report: &mut ProblemCollector<'_>,
        field: Field<'_, '_>,
    ) -> Option<Vec<(HostIndex, String)>> {
        let mut hosts: Vec<(HostIndex, String)> = Vec::new();
        for element in field.array(report)? {
            let index = host_named(report, element, self.hosts)?;
            let name = self.hosts.get(index.value())?.name.clone()?;
            if hosts.iter().any(|(other, _)| *other == index) {
                element.error(report, format!("`hosts` names {name} twice; name each host once"));
                return None;
            }
            hosts.push((index, name));
        }
        if hosts.is_empty() {
            field.error(report, "`hosts` is empty; name the hosts of the ports");
            return None;
        }
        Some(hosts)
    }

    /// Checks that the keys, addresses and names of all ports are valid, and reserves the keys.
    fn check_pool(&mut self, report: &mut ProblemCollector<'_>, pool: &PoolDraft) -> bool {
        let (len, most) = (pool.len(), u64::from(PortKey::MAX_PORT));
        let room = pool.key.map_or(most, |key| most + 1 - u64::from(key.value.value()));
        if len > room {
            let at = pool.key.map_or(pool.at, |key| key.at);
            report.error(
                at,
                format!("the pool has {len} ports, but there is room for {room}: lower `count`"),
            );
            return false;
        }
        let last = len - 1;
        if mac_after(pool.mac.value, last).is_none() {
            let first = pool.mac.value;
            let why = format!("{len} addresses from {first} on leave the first octet; start lower");
            report.error(pool.mac.at, why);
            return false;
        }
        for net in &pool.addresses {
            if net_after(net.value, last).is_none() {
                let net_of = net.value.trunc();
                let first = net.value.addr();
                let why = format!("{len} addresses from {first} on do not fit into {net_of}");
                report.error(net.at, format!("{why}; start lower, or write a shorter prefix"));
                return false;
            }
        }
        if let Some((_, host)) = pool.hosts.iter().max_by_key(|(_, host)| host.len()) {
            let longest = port_name(&pool.name, host, pool.count.into());
            if let Some(problem) = crate::name::object_problem(&longest) {
                report.error(pool.at, format!("the ports of the pool have bad names: {problem}"));
                return false;
            }
        }
        let Some(first) = pool.key else { return true };
        for offset in 0..len {
            let Some(key) = key_after(first.value, offset) else { return false };
            if let Some(taken) = self.keys.insert(key, first.at) {
                let (key, line) = (key.value(), report.line(taken));
                let why = format!("the pool needs key {key}, which the port in line {line} has");
                report.error(first.at, format!("{why}; give the pool another first `key`"));
                return false;
            }
        }
        true
    }

    /// Adds the ports of a pool. If the file sets no key, the ports get keys from `left`.
    pub(super) fn ports_of_pool(
        &mut self,
        report: &mut ProblemCollector<'_>,
        pool: &PoolDraft,
        left: &mut impl Iterator<Item = PortKey>,
        ports: &mut Vec<PortDraft>,
    ) {
        let line = FileLine(report.line(pool.at));
        for offset in 0..pool.len() {
            let (host, number) = (offset / u64::from(pool.count), offset % u64::from(pool.count));
            let Some((host, host_name)) = pool.hosts.get(host as usize) else { return };
            let key = match pool.key {
                Some(first) => key_after(first.value, offset),
                None => left.next(),
            };
            let Some(key) = key else {
                let why = "the switch has more ports than there are keys; lower `count`";
                return report.error(pool.at, why.to_owned());
            };
            let name = port_name(&pool.name, host_name, number + 1);
            if let Some(first) = self.names.insert(name.clone(), pool.at) {
                let line = report.line(first);
                let why = format!("the pool has a port {name}, as line {line} has");
                return report.error(pool.at, format!("{why}; give the pool another name"));
            }
            let Some(mac) = mac_after(pool.mac.value, offset) else { return };
            if let Some(first) = self.macs.insert(mac, pool.mac.at) {
                return report.mac_taken(pool.mac.at, mac, first);
            }
            let mut addresses = Vec::new();
            for first in &pool.addresses {
                let Some(net) = net_after(first.value, offset) else { return };
                if let Some(first_use) = self.addresses.insert(net.addr(), first.at) {
                    return report.address_taken(first.at, net.addr(), first_use);
                }
                addresses.push(Located { value: net, at: first.at });
            }
            ports.push(PortDraft {
                key,
                name: Some(name),
                host: Some(*host),
                mac: Some(Located { value: mac, at: pool.mac.at }),
                addresses,
                device: DeviceDraft::Later,
                pool: Some(Arc::clone(&pool.name)),
                security: if pool.is_secured { SecurityDraft::Own } else { SecurityDraft::Off },
                trusted: Trust::default(),
                learn: false,
                line,
            });
        }
    }
}

/// The name of a port; `number` counts from 1 on each host.
fn port_name(pool: &str, host: &str, number: u64) -> String {
    format!("{pool}.{host}.{number}")
}

fn key_after(first: PortKey, offset: u64) -> Option<PortKey> {
    let offset = u16::try_from(offset).ok()?;
    PortKey::new(first.value().checked_add(offset)?).filter(|key| key.value() <= PortKey::MAX_PORT)
}

/// The MAC address `offset` after `first`, with the same first octet.
fn mac_after(first: MacAddr, offset: u64) -> Option<MacAddr> {
    let [octet, rest @ ..] = first.0;
    let low = rest.iter().fold(0u64, |sum, &octet| sum << 8 | u64::from(octet));
    let low = low.checked_add(offset).filter(|sum| sum >> 40 == 0)?;
    let [_, _, _, rest @ ..] = low.to_be_bytes();
    let [a, b, c, d, e] = rest;
    Some(MacAddr([octet, a, b, c, d, e]))
}

/// The address `offset` after `first`, if it is one of a host in the same network.
fn net_after(first: IpNet, offset: u64) -> Option<IpNet> {
    let addr = match first.addr() {
        IpAddr::V4(ip) => IpAddr::V4(ip.to_bits().checked_add(u32::try_from(offset).ok()?)?.into()),
        IpAddr::V6(ip) => IpAddr::V6(ip.to_bits().checked_add(offset.into())?.into()),
    };
    let net = IpNet::new(addr, first.prefix_len()).ok()?;
    (net.trunc() == first.trunc() && interface_address::not_a_host(net).is_none()).then_some(net)
}
