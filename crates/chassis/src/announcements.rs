//! Announcements of this host: addresses that physical networks reach through it, and unsolicited
//! router advertisements.
//!
//! | port | announced |
//! |---|---|
//! | VIF of this host | its addresses |
//! | port of a switch to a router that this host serves | `nat_addresses` |
//! | port of a router with `ipv6_ra_send_periodic` | router advertisements, on this host |
//!
//! Addresses are announced only on switches with a localnet port that is mapped on this host.

use crate::host::Host;
use crate::program::ProgramBuilder;
use crate::program::ports::{find, port_named};
use crate::tables::{DatapathBinding, PortBinding, Text, TextMap, index};
use flow::{DatapathKey, PortKey};
use lflow::ra_route;
use ovsdb::{Atom, Replica, Row, Table, Uuid};
use pipeline::InjectionPort;
use services::announce::Subject;
use services::router::{AddressMode, BadOption, Preference, Router};
use southbound::PortKind;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use wire::MacAddr;
use wire::icmp::nd::{NdOption, NdPrefix};

/// The most IP addresses of one entry that are announced.
const MAX_ADDRESSES: usize = 256;
/// The default of `ipv6_ra_max_interval`, in seconds, and the largest value (RFC 4861).
const MAX_INTERVAL_S: u64 = 600;
const LONGEST_INTERVAL_S: u64 = 1800;
/// The least interval of advertisements, in seconds.
const SHORTEST_INTERVAL_S: u64 = 1;

/// The logical port, and a text that is unique among its announcements.
pub type AnnouncementKey = (Text, Text);

/// Something that this host announces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Announcement {
    /// The port by which its frames enter the program.
    pub from: InjectionPort,
    /// The announced addresses or router.
    pub subject: Subject,
}

/// The state of this host that announcements depend on.
pub(crate) struct HostState<'a> {
    pub replica: &'a Replica,
    pub chassis: Option<Uuid>,
    pub builder: &'a ProgramBuilder,
    /// The names of the logical ports that are installed.
    pub installed: Vec<&'a Text>,
}

impl Host {
    /// The announcements of this host, if they may have changed since the last call.
    pub fn take_announcements(
        &mut self,
        replica: &Replica,
    ) -> Option<BTreeMap<AnnouncementKey, Announcement>> {
        self.announcing(replica).map(|state| state.all())
    }
}

impl HostState<'_> {
    fn all(&self) -> BTreeMap<AnnouncementKey, Announcement> {
        let mut all = BTreeMap::new();
        let interfaces = self.installed.iter().filter_map(|name| port_named(self.replica, name));
        for row in interfaces.filter(|row| self.is_bound(row)) {
            let is_vif = PortKind::from(&*row.kind) == PortKind::Vif;
            if let Some(from) = self.of_provider(&row).filter(|_| is_vif) {
                self.add_addresses(&mut all, from, &row, &row.mac);
            }
        }
        for switch in self.builder.provider_switches(self.replica) {
            for row in self.ports_to_routers(switch) {
                if let Some(from) = self.of_provider(&row) {
                    let of_option = || row.options.get("nat-addresses").map(|it| it.to_string());
                    let entries = match row.nat_addresses.is_empty() {
                        true => of_option().into_iter().collect(),
                        false => row.nat_addresses.clone(),
                    };
                    self.add_addresses(&mut all, from, &row, &entries);
                }
            }
        }
        // The index has the values of all options. Few ports have the value "true" for another
        // option, so reading those too costs little.
        let periodic = find(self.replica, index::OPTIONS, &[Atom::String("true".into())]);
        for row in periodic.into_iter().filter_map(|uuid| self.replica.get::<PortBinding>(uuid)) {
            let announced = self.router(&row);
            let name = row.logical_port.clone();
            all.extend(announced.map(|it| ((name, "router".into()), it)));
        }
        all
    }

    /// The ports of a switch that lead to routers which this host may serve.
    fn ports_to_routers(&self, switch: Uuid) -> impl Iterator<Item = PortBinding> {
        let table = self.replica.table(PortBinding::NAME);
        let by_datapath = table.and_then(|table| table.index(index::DATAPATH));
        let rows = by_datapath.into_iter().flat_map(move |it| it.find_atom(Atom::Uuid(switch)));
        let kind = |row: &Row| row.value::<Text>("type").map(|kind| PortKind::from(&*kind));
        // Most ports are those of guests, so this filters before it converts the rows.
        let to_routers = rows
            .filter(move |row| matches!(kind(row), Some(PortKind::Patch | PortKind::L3Gateway)));
        let rows = to_routers.filter_map(|row| PortBinding::from_row(row));
        rows.filter(|row| &*row.kind == "patch" || self.is_bound(row))
    }

    fn is_bound(&self, row: &PortBinding) -> bool {
        row.chassis.is_some() && row.chassis == self.chassis
    }

    /// The port by which frames of a port enter the program, if its switch has a localnet port that
    /// is mapped on this host.
    fn of_provider(&self, row: &PortBinding) -> Option<InjectionPort> {
        let from = self.origin(row)?;
        self.builder.has_localnet(from.datapath).then_some(from)
    }

    fn origin(&self, row: &PortBinding) -> Option<InjectionPort> {
        let datapath = self.replica.get::<DatapathBinding>(row.datapath)?;
        let datapath = DatapathKey(u32::try_from(datapath.tunnel_key).ok()?);
        let port = u16::try_from(row.tunnel_key).ok().and_then(PortKey::new)?;
        let is_known = self.builder.is_complete(datapath);
        is_known.then_some(InjectionPort { datapath, port, stays_on_host: false })
    }

    /// Adds the entries of a port that this host serves.
    fn add_addresses(
        &self,
        all: &mut BTreeMap<AnnouncementKey, Announcement>,
        from: InjectionPort,
        row: &PortBinding,
        entries: &[String],
    ) {
        let is_router = PortKind::from(&*row.kind) != PortKind::Vif;
        for text in entries {
            let Some(Addresses { mac, ips, resident }) = Addresses::parse(text) else { continue };
            let is_served = match resident {
                Some(port) => {
                    port_named(self.replica, port).is_some_and(|port| self.is_bound(&port))
                }
                // Every host has the port to a distributed router.
                None => PortKind::from(&*row.kind) != PortKind::Patch,
            };
            if is_served {
                let subject = Subject::Addresses { mac, ips, is_router };
                let key = (row.logical_port.clone(), text.as_str().into());
                all.insert(key, Announcement { from, subject });
            }
        }
    }

    /// The advertisements of a router port. They enter the program by its peer, the port of the
    /// switch.
    fn router(&self, row: &PortBinding) -> Option<Announcement> {
        if row.options.get("ipv6_ra_send_periodic").is_none_or(|value| &**value != "true") {
            return None;
        }
        let peer = port_named(self.replica, row.options.get("peer")?)?;
        // Each host sends them to its own guests only.
        let from = InjectionPort { stays_on_host: true, ..self.origin(&peer)? };
        Some(Announcement { from, subject: router(&row.options)? })
    }
}

/// An entry of `mac` or `nat_addresses`.
#[derive(PartialEq, Eq, Debug)]
struct Addresses<'a> {
    mac: MacAddr,
    ips: Vec<IpAddr>,
    /// Only the host of this port serves the addresses.
    resident: Option<&'a str>,
}

impl<'a> Addresses<'a> {
    /// Reads `MAC [IP...] [is_chassis_resident("PORT")]`; `None` without a MAC address, or for
    /// another condition.
    fn parse(text: &'a str) -> Option<Self> {
        const CONDITION: &str = "is_chassis_resident";
        let (addresses, condition) = match text.find(CONDITION) {
            Some(at) => (&text[..at], Some(&text[at + CONDITION.len()..])),
            None => (text, None),
        };
        let mut words = addresses.split_whitespace();
        let mac: MacAddr = words.next()?.parse().ok()?;
        let ip = |word: &str| word.split('/').next().and_then(|word| word.parse().ok());
        let ips = words.map(ip).take(MAX_ADDRESSES).collect::<Option<Vec<IpAddr>>>()?;
        let resident = match condition {
            Some(condition) => {
                let name = condition.trim().strip_prefix('(')?.strip_suffix(')')?.trim();
                Some(name.strip_prefix('"')?.strip_suffix('"')?)
            }
            None => None,
        };
        (!mac.is_multicast()).then_some(Self { mac, ips, resident })
    }
}

/// The router that the options of its port describe; `None` if they are invalid.
fn router(options: &TextMap) -> Option<Subject> {
    let option = |name: &str| options.get(name).map(|value| &**value);
    let mode = match option("ipv6_ra_address_mode")? {
        "slaac" => AddressMode::Slaac,
        "dhcpv6_stateless" => AddressMode::DhcpStateless,
        "dhcpv6_stateful" => AddressMode::DhcpStateful,
        _ => return None,
    };
    let preference = match option("ipv6_ra_prf") {
        Some("HIGH") => Preference::High,
        Some("LOW") => Preference::Low,
        _ => Preference::Medium,
    };
    let mac: MacAddr = option("ipv6_ra_src_eth")?.parse().ok()?;
    let source: Ipv6Addr = option("ipv6_ra_src_addr")?.parse().ok()?;
    let mut router = Router::new(mode, preference);
    add_options(&mut router, mac, mode, options).ok()?;
    let seconds = |name: &str| option(name).and_then(|value| value.parse::<u64>().ok());
    let max = seconds("ipv6_ra_max_interval").unwrap_or(MAX_INTERVAL_S);
    let max = max.clamp(SHORTEST_INTERVAL_S, LONGEST_INTERVAL_S);
    let default = if max >= 9 { max / 3 } else { max * 3 / 4 };
    let min = seconds("ipv6_ra_min_interval").unwrap_or(default).clamp(SHORTEST_INTERVAL_S, max);
    let interval_ms = (min * 1000, max * 1000);
    Some(Subject::Router { mac, source, router, interval_ms })
}

fn add_options(
    router: &mut Router,
    mac: MacAddr,
    mode: AddressMode,
    options: &TextMap,
) -> Result<(), BadOption> {
    let option = |name: &str| options.get(name).map(|value| &**value);
    let list = |name: &str| option(name).into_iter().flat_map(|value| value.split(','));
    router.add(NdOption::SourceLinkLayer(mac))?;
    if let Some(mtu) = option("ipv6_ra_mtu").and_then(|it| it.parse().ok()).filter(|it| *it > 0) {
        router.add(NdOption::Mtu(mtu))?;
    }
    for text in option("ipv6_ra_prefixes").unwrap_or_default().split_whitespace() {
        let Some((prefix, len)) = text.split_once('/') else { continue };
        let (Ok(prefix), Ok(len)) = (prefix.parse::<Ipv6Addr>(), len.parse::<u8>()) else {
            continue;
        };
        if len > 128 {
            continue;
        }
        let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
        router.add(NdOption::Prefix(NdPrefix {
            len,
            on_link: true,
            autonomous: mode != AddressMode::DhcpStateful,
            valid_lifetime_s: u32::MAX,
            preferred_lifetime_s: u32::MAX,
            prefix: Ipv6Addr::from_bits(prefix.to_bits() & mask),
        }))?;
    }
    let servers: Vec<Ipv6Addr> =
        list("ipv6_ra_rdnss").filter_map(|server| server.trim().parse().ok()).collect();
    if !servers.is_empty() {
        router.add_dns_servers(&servers)?;
    }
    if option("ipv6_ra_dnssl").is_some_and(|list| !list.trim().is_empty()) {
        router.add_domains(list("ipv6_ra_dnssl").map(str::trim))?;
    }
    for (preference, prefix) in list("ipv6_ra_route_info").map(str::trim).filter_map(ra_route) {
        router.add_route(prefix, preference)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_is_read_with_its_condition() {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let ips = |ips: &[&str]| ips.iter().map(|ip| ip.parse().unwrap()).collect();
        for (text, expected) in [
            ("02:00:00:00:00:01", Some((&[][..], None))),
            ("02:00:00:00:00:01 10.0.0.1 fd00::1", Some((&["10.0.0.1", "fd00::1"][..], None))),
            ("02:00:00:00:00:01 10.0.0.1/24", Some((&["10.0.0.1"][..], None))),
            (
                r#"02:00:00:00:00:01 10.0.0.1 is_chassis_resident("cr-lr0 public")"#,
                Some((&["10.0.0.1"][..], Some("cr-lr0 public"))),
            ),
            (r#"02:00:00:00:00:01 is_chassis_resident("a")"#, Some((&[][..], Some("a")))),
            (r#"02:00:00:00:00:01 is_chassis_resident("a"#, None),
            (r#"02:00:00:00:00:01 is_chassis_resident(a)"#, None),
            ("02:00:00:00:00:01 10.0.0.1 other", None),
            ("01:00:00:00:00:01 10.0.0.1", None),
            ("unknown", None),
            ("router", None),
            ("dynamic", None),
            ("", None),
        ] {
            let expected = expected.map(|(addresses, resident)| Addresses {
                mac,
                ips: ips(addresses),
                resident,
            });
            assert_eq!(Addresses::parse(text), expected, "{text}");
        }
    }

    fn options(more: &[(&str, &str)]) -> TextMap {
        let required = [
            ("ipv6_ra_address_mode", "slaac"),
            ("ipv6_ra_src_eth", "02:00:00:00:00:01"),
            ("ipv6_ra_src_addr", "fe80::1"),
        ];
        let all = required.iter().chain(more);
        all.map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    #[test]
    fn router_has_the_options_of_its_port() {
        let options = options(&[
            ("ipv6_ra_mtu", "1400"),
            ("ipv6_ra_prefixes", "fd77::5/64 fd78::/48"),
            ("ipv6_ra_rdnss", "fd77::53"),
            ("ipv6_ra_dnssl", "a.b, c"),
            ("ipv6_ra_route_info", "HIGH-fd01::/65,LOW-fd02::/64"),
            ("ipv6_ra_prf", "LOW"),
            ("ipv6_ra_max_interval", "9"),
        ]);
        let Some(Subject::Router { router, interval_ms: (3000, 9000), .. }) = router(&options)
        else {
            panic!("{:?}", super::router(&options))
        };
        let mut expected = Router::new(AddressMode::Slaac, Preference::Low);
        let prefix = |prefix: &str, len| {
            NdOption::Prefix(NdPrefix {
                len,
                on_link: true,
                autonomous: true,
                valid_lifetime_s: u32::MAX,
                preferred_lifetime_s: u32::MAX,
                prefix: prefix.parse().unwrap(),
            })
        };
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        for option in [
            NdOption::SourceLinkLayer(mac),
            NdOption::Mtu(1400),
            prefix("fd77::", 64),
            prefix("fd78::", 48),
        ] {
            expected.add(option).unwrap();
        }
        expected.add_dns_servers(&["fd77::53".parse().unwrap()]).unwrap();
        expected.add_domains(["a.b", "c"]).unwrap();
        expected.add_route(("fd01::".parse().unwrap(), 65), Preference::High).unwrap();
        expected.add_route(("fd02::".parse().unwrap(), 64), Preference::Low).unwrap();
        assert_eq!(router, expected);
    }

    #[test]
    fn intervals_are_within_the_limits() {
        for (min, max, expected) in [
            ("", "", (200_000, 600_000)),
            ("3", "4", (3000, 4000)),
            ("9", "4", (4000, 4000)),
            ("0", "0", (1000, 1000)),
            ("", "4000000000000000000", (600_000, 1_800_000)),
        ] {
            let options = options(&[("ipv6_ra_min_interval", min), ("ipv6_ra_max_interval", max)]);
            let Some(Subject::Router { interval_ms, .. }) = router(&options) else { panic!() };
            assert_eq!(interval_ms, expected, "{min} {max}");
        }
        let without = |name: &str| {
            let mut options = options(&[]);
            options.remove(name);
            router(&options)
        };
        for name in ["ipv6_ra_address_mode", "ipv6_ra_src_eth", "ipv6_ra_src_addr"] {
            assert_eq!(without(name), None, "{name}");
        }
    }
}
