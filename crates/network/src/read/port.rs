//! `[[logical_switch.port]]`.

pub(super) mod pool;

use super::acl::word;
use super::{
    HostDraft, Unique, interface_name, ip_net, ip_or_network, object_name, unicast_mac,
    unknown_host,
};
use crate::errors::ProblemCollector;
use crate::model::MAX_VM_QUEUES;
use crate::section::{Field, Located, Schema, Section, key};
use crate::{Device, FileLine, HostIndex, IpNet, Port, PortSecurity, Prefix, Trust};
use flow::PortKey;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use wire::MacAddr;

pub(super) const PORT: Schema = Schema {
    name: "[[logical_switch.port]]",
    keys: &[
        key("name", "name = \"web\""),
        key("key", "key = 7"),
        key("host", "host = \"h1\""),
        key("mac", "mac = \"02:00:00:00:00:01\""),
        key("addresses", "addresses = [\"10.0.0.1/24\"]"),
        key("device", "device = { tap = \"web0\" }"),
        key("port_security", "port_security = true"),
        key("trusted", "trusted = [\"ra\", \"dhcp\"]"),
        key("learn", "learn = true"),
    ],
};

pub(super) const DEVICE: Schema = Schema {
    name: "`device`",
    keys: &[
        key("tap", "tap = \"web0\""),
        key("netns", "netns = \"web\""),
        key("vm", "vm = \"tap7\""),
        key("queues", "queues = 4"),
        key("interface", "interface = \"veth-web\""),
    ],
};

/// A port as read. Missing or invalid parts are absent, and have been reported.
pub(crate) struct PortDraft {
    pub(crate) key: PortKey,
    pub(crate) name: Option<String>,
    pub(crate) host: Option<HostIndex>,
    pub(crate) mac: Option<Located<MacAddr>>,
    pub(crate) addresses: Vec<Located<IpNet>>,
    pub(crate) device: DeviceDraft,
    pub(crate) pool: Option<Arc<str>>,
    security: SecurityDraft,
    trusted: Trust,
    learn: bool,
    line: FileLine,
}

/// The device of a port as read.
pub(crate) enum DeviceDraft {
    /// Missing or invalid, which has been reported.
    Wrong,
    Given(Device),
    /// A port of a pool gets its device while the switch runs.
    Later,
}

/// The value of `port_security`.
enum SecurityDraft {
    /// `false` or absent.
    Off,
    /// `true`: the port's own addresses.
    Own,
    /// A list of addresses.
    Listed(Vec<Prefix>),
}

impl PortDraft {
    pub(crate) fn finish(self) -> Option<Port> {
        let mac = self.mac?.value;
        let addresses: Vec<IpNet> =
            self.addresses.into_iter().map(|located| located.value).collect();
        let allowed = match self.security {
            SecurityDraft::Off => None,
            SecurityDraft::Own => Some(addresses.iter().map(|net| net.addr().into()).collect()),
            SecurityDraft::Listed(listed) => Some(listed),
        };
        Some(Port {
            name: self.name?,
            key: self.key,
            host: self.host?,
            mac,
            addresses,
            device: match self.device {
                DeviceDraft::Wrong => return None,
                DeviceDraft::Given(device) => Some(device),
                DeviceDraft::Later => None,
            },
            pool: self.pool,
            security: allowed.map(|addresses| PortSecurity { mac, addresses }),
            trusted: self.trusted,
            learn: self.learn,
            line: self.line,
        })
    }
}

/// An interface: host, namespace, name.
type InterfaceLocation = (HostIndex, Option<String>, String);

/// Reads the ports of all switches.
pub(super) struct PortReader<'h> {
    hosts: &'h [HostDraft],
    index: HashMap<&'h str, HostIndex>,
    names: Unique<String>,
    devices: Unique<InterfaceLocation>,
    keys: Unique<PortKey>,
    macs: Unique<MacAddr>,
    addresses: Unique<IpAddr>,
}

impl<'h> PortReader<'h> {
    pub(super) fn new(hosts: &'h [HostDraft]) -> Self {
        let named = hosts.iter().enumerate();
        let index = named
            .filter_map(|(index, host)| Some((host.name.as_deref()?, HostIndex(index))))
            .collect();
        Self {
            hosts,
            index,
            names: Unique::new(),
            devices: Unique::new(),
            keys: Unique::new(),
            macs: Unique::new(),
            addresses: Unique::new(),
        }
    }

    /// Reads the ports and pools of a switch, after the number of ports was checked.
    pub(super) fn ports(
        &mut self,
        report: &mut ProblemCollector<'_>,
        sections: &[Section<'_, '_>],
        pools: &[Section<'_, '_>],
    ) -> Vec<PortDraft> {
        self.keys = Unique::new();
        self.macs = Unique::new();
        self.addresses = Unique::new();
        let given: Vec<_> = sections.iter().map(|section| self.key(report, section)).collect();
        let pools: Vec<_> = pools.iter().filter_map(|pool| self.pool(report, pool)).collect();
        let taken: HashSet<PortKey> = given.iter().flatten().copied().collect();
        let keys = (1..=PortKey::MAX_PORT).filter_map(PortKey::new);
        let mut left = keys.filter(|key| !taken.contains(key));
        let mut ports = Vec::new();
        for (section, given) in sections.iter().zip(given) {
            let Some(key) = given.or_else(|| left.next()) else { break };
            ports.push(self.port(report, section, key));
        }
        for pool in &pools {
            self.ports_of_pool(report, pool, &mut left, &mut ports);
        }
        ports
    }

    /// Reads the key that the file sets for a port.
    fn key(
        &mut self,
        report: &mut ProblemCollector<'_>,
        section: &Section<'_, '_>,
    ) -> Option<PortKey> {
        let field = section.get("key")?;
        let rule = "the key of a port is 1 to 32767";
        let key = PortKey::new(field.integer(report, 1..=PortKey::MAX_PORT, rule)?)?;
        let Some(first) = self.keys.insert(key, field.at) else { return Some(key) };
        let (key, line) = (key.value(), report.line(first));
        field.error(
            report,
            format!(
                "{key} is already the key of the port in line {line}; give each port of a switch \
                 its own"
            ),
        );
        None
    }

    fn port(
        &mut self,
        report: &mut ProblemCollector<'_>,
        section: &Section<'_, '_>,
        key: PortKey,
    ) -> PortDraft {
        let name = self.name(report, section);
        let host = section.require(report, "host").and_then(|field| self.host(report, field));
        let mac = section.require(report, "mac").and_then(|field| self.mac(report, field));
        let addresses =
            section.get("addresses").map_or_else(Vec::new, |field| self.addresses(report, field));
        let device =
            self.device(report, section, host).map_or(DeviceDraft::Wrong, DeviceDraft::Given);
        let security = section
            .get("port_security")
            .map_or(SecurityDraft::Off, |field| security(report, field));
        let trusted =
            section.get("trusted").map_or_else(Trust::default, |field| trust(report, field));
        let learn = section.get("learn").is_some_and(|field| learn(report, field, &security));
        let line = FileLine(report.line(section.at));
        let pool = None;
        PortDraft { key, name, host, mac, addresses, device, pool, security, trusted, learn, line }
    }

    /// The hosts.
    pub(super) fn hosts(&self) -> &'h [HostDraft] {
        self.hosts
    }

    /// Reads the name of a port, which no other port has.
    pub(super) fn name(
        &mut self,
        report: &mut ProblemCollector<'_>,
        section: &Section<'_, '_>,
    ) -> Option<String> {
        object_name(report, section, "port", &mut self.names)
    }

    /// Reads the device of a port on `host`, which no other port has.
    pub(super) fn device(
        &mut self,
        report: &mut ProblemCollector<'_>,
        section: &Section<'_, '_>,
        host: Option<HostIndex>,
    ) -> Option<Device> {
        let field = section.require(report, "device")?;
        let device = device(report, field)?;
        self.check_device(report, field.at, host, &device);
        Some(device)
    }

    /// The names of all ports.
    pub(super) fn into_names(self) -> Unique<String> {
        self.names
    }

    fn host(&self, report: &mut ProblemCollector<'_>, field: Field<'_, '_>) -> Option<HostIndex> {
        let name = field.string(report)?;
        let found = self.index.get(name).copied();
        if found.is_none() {
            unknown_host(report, field, name, self.hosts);
        }
        found
    }

    fn mac(
        &mut self,
        report: &mut ProblemCollector<'_>,
        field: Field<'_, '_>,
    ) -> Option<Located<MacAddr>> {
        let mac = unicast_mac(report, field)?;
        if let Some(first) = self.macs.insert(mac, field.at) {
            report.mac_taken(field.at, mac, first);
            return None;
        }
        Some(field.located(mac))
    }

    fn addresses(
        &mut self,
        report: &mut ProblemCollector<'_>,
        field: Field<'_, '_>,
    ) -> Vec<Located<IpNet>> {
        let Some(elements) = field.array(report) else { return Vec::new() };
        elements.filter_map(|element| self.address(report, element)).collect()
    }

    fn address(
        &mut self,
        report: &mut ProblemCollector<'_>,
        field: Field<'_, '_>,
    ) -> Option<Located<IpNet>> {
        let net = ip_net(report, field)?;
        if let Some(first) = self.addresses.insert(net.addr(), field.at) {
            report.address_taken(field.at, net.addr(), first);
            return None;
        }
        Some(field.located(net))
    }

    /// Reports a device that another port uses, or that is the uplink.
    fn check_device(
        &mut self,
        report: &mut ProblemCollector<'_>,
        at: usize,
        host: Option<HostIndex>,
        device: &Device,
    ) {
        let Some(index) = host else { return };
        let Some(HostDraft { name: Some(host), uplink, .. }) = self.hosts.get(index.0) else {
            return;
        };
        let (name, netns) = (device.name(), device.netns());
        if netns.is_none() && uplink.as_deref() == Some(name) {
            report.error(
                at,
                format!("`{name}` is the uplink of host `{host}`; name another interface"),
            );
            return;
        }
        let place = (index, netns.map(str::to_owned), name.to_owned());
        if let Some(first) = self.devices.insert(place, at) {
            let line = report.line(first);
            report.error(
                at,
                format!(
                    "`{name}` is already the device of the port in line {line} on host `{host}`; \
                     give each port its own"
                ),
            );
        }
    }
}

fn security(report: &mut ProblemCollector<'_>, field: Field<'_, '_>) -> SecurityDraft {
    let field = field.with_example("port_security = [\"10.0.0.1\", \"10.1.0.0/16\"]");
    if field.is_array() {
        let elements = field.array(report).into_iter().flatten();
        let listed = elements.filter_map(|element| ip_or_network(report, element));
        return SecurityDraft::Listed(listed.collect());
    }
    match field.boolean_or(report, "true, false or an array of addresses") {
        Some(true) => SecurityDraft::Own,
        Some(false) | None => SecurityDraft::Off,
    }
}

/// Reads the control messages that a port may send.
fn trust(report: &mut ProblemCollector<'_>, field: Field<'_, '_>) -> Trust {
    let mut trust = Trust::default();
    for element in field.array(report).into_iter().flatten() {
        match word(report, element, "protocol", &[("ra", "ra"), ("dhcp", "dhcp")]) {
            Some("ra") => trust.ra = true,
            Some(_) => trust.dhcp = true,
            None => {}
        }
    }
    trust
}

/// Reads whether MAC addresses are learned behind the port. Port security excludes that.
fn learn(
    report: &mut ProblemCollector<'_>,
    field: Field<'_, '_>,
    security: &SecurityDraft,
) -> bool {
    let learn = field.boolean(report) == Some(true);
    if learn && !matches!(security, SecurityDraft::Off) {
        report.error(
            field.key_at,
            "`learn` permits other MAC addresses behind the port, but `port_security` forbids \
             them; \
             remove one of the two",
        );
    }
    learn
}

fn device(report: &mut ProblemCollector<'_>, field: Field<'_, '_>) -> Option<Device> {
    const RIGHT: &str = "write { tap = \"web0\" } for a device that weft creates, { vm = \
                         \"tap7\" } for one that a \
                         virtual machine opens, or { interface = \"veth-web\" } for an existing \
                                                                   interface";
    let section = field.table(report, &DEVICE)?;
    let netns = section.get("netns");
    let given = [section.get("tap"), section.get("vm"), section.get("interface")];
    let is_misspelt = |key: &&str| section.is_misspelt(key);
    if let (None, Some(field)) = (given[1], section.get("queues")) {
        report.error(
            field.key_at,
            "`queues` is for `vm` only: weft itself opens other devices; remove `queues`",
        );
    }
    match given {
        [Some(tap), None, None] => {
            let name = interface_name(report, tap);
            let netns = match netns {
                Some(field) => Some(netns_name(report, field)?),
                None => None,
            };
            Some(Device::Tap { name: name?, netns })
        }
        [None, Some(vm), None] => {
            refuse_netns(
                report,
                netns,
                "a virtual machine opens its device in the namespace of \
                                         weft",
            );
            let queues = match section.get("queues") {
                Some(field) => field.integer(
                    report,
                    1..=MAX_VM_QUEUES,
                    "the device of a virtual machine has 1 to 256 queues",
                )?,
                None => 1,
            };
            Some(Device::Vm { name: interface_name(report, vm)?, queues })
        }
        [None, None, Some(interface)] => {
            refuse_netns(report, netns, "weft attaches an existing interface in its own namespace");
            Some(Device::Interface { name: interface_name(report, interface)? })
        }
        [None, None, None] if ["tap", "vm", "interface"].iter().any(is_misspelt) => None,
        [None, None, None] => {
            field.error(
                report,
                format!("`device` has neither `tap` nor `vm` nor `interface`; {RIGHT}"),
            );
            None
        }
        _ => {
            let given = ["tap", "vm", "interface"].into_iter().zip(&given);
            let names: Vec<_> =
                given.filter(|(_, it)| it.is_some()).map(|(name, _)| format!("`{name}`")).collect();
            field.error(report, format!("`device` has {}; {RIGHT}", names.join(" and ")));
            None
        }
    }
}

fn refuse_netns(report: &mut ProblemCollector<'_>, netns: Option<Field<'_, '_>>, why: &str) {
    if let Some(field) = netns {
        report.error(field.key_at, format!("`netns` is for `tap` only: {why}; remove `netns`"));
    }
}

fn netns_name(report: &mut ProblemCollector<'_>, field: Field<'_, '_>) -> Option<String> {
    let name = field.string(report)?;
    match crate::name::netns_problem(name) {
        Some(problem) => {
            field.error(report, problem);
            None
        }
        None => Some(name.to_owned()),
    }
}
