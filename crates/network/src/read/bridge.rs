//! `[[bridge]]`.

use super::port::PortReader;
use super::{Setting, Unique, host_named, object_name};
use crate::errors::ProblemCollector;
use crate::section::{Field, Located, Schema, Section, key};
use crate::{Bridge, BridgePort, Device, FileLine, HostIndex, IpNet};
use flow::PortNo;
use ofctl::Ports;
use std::path::PathBuf;
use wire::MacAddr;

pub(super) const BRIDGE: Schema = Schema {
    name: "[[bridge]]",
    keys: &[
        key("name", "name = \"br0\""),
        key("host", "host = \"h1\""),
        key("flows", "flows = \"br0.flows\""),
        key("mtu", "mtu = 1500"),
        key("port", "[[bridge.port]]"),
    ],
};

pub(super) const PORT: Schema = Schema {
    name: "[[bridge.port]]",
    keys: &[
        key("name", "name = \"web\""),
        key("number", "number = 1"),
        key("device", "device = { tap = \"web0\" }"),
        key("mac", "mac = \"02:00:00:00:00:01\""),
        key("addresses", "addresses = [\"10.0.0.1/24\"]"),
    ],
};

/// A bridge as read. Missing or invalid parts are `None`, and have been reported.
pub(crate) struct BridgeDraft {
    name: Option<String>,
    host: Option<HostIndex>,
    flows: Setting<PathBuf>,
    pub(crate) mtu: Setting<Located<u16>>,
    ports: Vec<BridgePortDraft>,
    line: FileLine,
}

struct BridgePortDraft {
    name: Option<String>,
    number: PortNo,
    device: Option<Device>,
    mac: Setting<MacAddr>,
    addresses: Vec<IpNet>,
    line: FileLine,
}

impl BridgeDraft {
    /// Builds the bridge, with this MTU unless the bridge has its own.
    pub(crate) fn finish(self, default_mtu: u16) -> Option<Bridge> {
        let mtu = match self.mtu {
            Setting::Given(mtu) => mtu.value,
            Setting::Default => default_mtu,
            Setting::Wrong => return None,
        };
        let flows = match self.flows {
            Setting::Given(path) => Some(path),
            Setting::Default => None,
            Setting::Wrong => return None,
        };
        let ports = self.ports.into_iter().map(BridgePortDraft::finish).collect::<Option<_>>()?;
        let Self { name, host, line, .. } = self;
        Some(Bridge { name: name?, host: host?, mtu, flows, ports, line })
    }
}

impl BridgePortDraft {
    fn finish(self) -> Option<BridgePort> {
        let mac = match self.mac {
            Setting::Given(mac) => Some(mac),
            Setting::Default => None,
            Setting::Wrong => return None,
        };
        let Self { name, number, device, addresses, line, .. } = self;
        Some(BridgePort { name: name?, number, device: device?, mac, addresses, line })
    }
}

/// Reads the bridges. `names` are those of other datapaths.
pub(super) fn bridges(
    report: &mut ProblemCollector<'_>,
    field: Option<Field<'_, '_>>,
    names: &mut Unique<String>,
    ports: &mut PortReader<'_>,
) -> Vec<BridgeDraft> {
    let sections = field.map_or_else(Vec::new, |field| field.tables(report, &BRIDGE));
    sections.iter().map(|section| bridge(report, section, names, ports)).collect()
}

fn bridge(
    report: &mut ProblemCollector<'_>,
    section: &Section<'_, '_>,
    names: &mut Unique<String>,
    ports: &mut PortReader<'_>,
) -> BridgeDraft {
    let name = object_name(report, section, "bridge or logical switch", names);
    let host =
        section.require(report, "host").and_then(|field| host_named(report, field, ports.hosts()));
    let flows = Setting::of(section.get("flows"), |field| {
        let path = field.string(report)?;
        if path.is_empty() || path.contains('\0') {
            field.error(report, "`flows` is not the path of a file");
            return None;
        }
        Some(PathBuf::from(path))
    });
    let mtu = Setting::of(section.get("mtu"), |field| {
        let rule = "an MTU is 68 (RFC 791) to 65535 bytes of IP packet";
        field.integer(report, 68..=u16::MAX, rule).map(|mtu| field.located(mtu))
    });
    let sections = section.get("port").map_or_else(Vec::new, |f| f.tables(report, &PORT));
    let mut taken = Unique::new();
    let given: Vec<_> = sections.iter().map(|s| number(report, s, &mut taken)).collect();
    let mut free = (1..=Ports::MAX).map(PortNo).filter(|number| taken.get(number).is_none());
    let mut drafts = Vec::new();
    for (section, given) in sections.iter().zip(given) {
        let Some(number) = given.or_else(|| free.next()) else {
            let most = Ports::MAX;
            report.error(section.at, format!("a bridge has at most {most} ports; use another"));
            break;
        };
        drafts.push(port(report, section, number, host, ports));
    }
    let line = FileLine(report.line(section.at));
    BridgeDraft { name, host, flows, mtu, ports: drafts, line }
}

/// Reads the port number that the file sets.
fn number(
    report: &mut ProblemCollector<'_>,
    section: &Section<'_, '_>,
    taken: &mut Unique<PortNo>,
) -> Option<PortNo> {
    let field = section.get("number")?;
    let rule = "the number of a bridge port is 1 to 65279";
    let number = PortNo(field.integer(report, 1..=Ports::MAX, rule)?);
    let Some(first) = taken.insert(number, field.at) else { return Some(number) };
    let line = report.line(first);
    field.error(
        report,
        format!("{number} is already the number of the port in line {line}; use another"),
    );
    None
}

fn port(
    report: &mut ProblemCollector<'_>,
    section: &Section<'_, '_>,
    number: PortNo,
    host: Option<HostIndex>,
    ports: &mut PortReader<'_>,
) -> BridgePortDraft {
    let name = ports.name(report, section);
    if let (Some(name), Some(field)) = (&name, section.get("name"))
        && let Err(error) = Ports::new().add(number, name)
    {
        field.error(report, format!("flows cannot refer to this port: {error}"));
    }
    let device = ports.device(report, section, host);
    let mac = Setting::of(section.get("mac"), |field| super::unicast_mac(report, field));
    let addresses = section.get("addresses").and_then(|field| field.array(report));
    let addresses: Vec<_> =
        addresses.into_iter().flatten().filter_map(|field| super::ip_net(report, field)).collect();
    if matches!(mac, Setting::Default)
        && !section.is_misspelt("mac")
        && device.as_ref().is_some_and(|device| device.netns().is_some())
    {
        report.error(
            section.at,
            "[[bridge.port]] has no `mac`, which a device in a network namespace needs; add one, \
             such as mac = \"02:00:00:00:00:01\"",
        );
    }
    let line = FileLine(report.line(section.at));
    BridgePortDraft { name, number, device, mac, addresses, line }
}
