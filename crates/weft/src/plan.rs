//! From the network, which is the same on every host, to what the datapath of one host needs.

use anyhow::{Context, Result, bail};
use datapath::user::{Config, DeviceConfig, GuestConfig, PortConfig};
use flow::{
    DatapathKey, Dscp, EndpointTable, MacTable, PortNo, PortPlace, SwitchLink, TunnelSpec,
    TunnelType,
};
use netdev::IpPrefix;
use network::{Device, Host, LogicalSwitch, Network, Port, Segment};
use std::net::IpAddr;
use wire::EtherType;
use wire::vlan::Tag;

const UPLINK: PortNo = PortNo(0);
/// Outer source ports per tunnel address: 64 flows' worth of paths, each a socket.
const ENTROPY_PORTS: u16 = 64;
const ENTROPY_BASE: u16 = 49_152;

/// The datapath of `host`.
pub fn plan(network: &Network, host: &Host) -> Result<Config> {
    if let Some(what) = beyond_forwarding(network) {
        // To run without what protects the guests would be worse than not to run.
        bail!(
            "{what} cannot be run yet: weft forwards by MAC addresses alone; `weft flows --logical` and `weft trace` show \
             what the network would do"
        );
    }
    let mut plan = Plan {
        network,
        host,
        table: MacTable::default(),
        endpoints: EndpointTable::new(ENTROPY_BASE, ENTROPY_PORTS),
        tunnels: Vec::new(),
        ports: Vec::new(),
        tags: false,
    };
    for switch in network.logical_switches() {
        if switch.ports.iter().any(|port| port.host == host.index) {
            plan.add_switch(switch).with_context(|| format!("logical switch {}", switch.name))?;
        }
    }
    plan.endpoints.shrink_to_fit();
    Ok(Config {
        host: host.name.clone(),
        uplink: host.uplink.clone(),
        uplink_port: UPLINK,
        tags: plan.tags,
        tagged_mtu_bytes: plan.tagged_mtu_bytes(),
        ports: plan.ports,
        tunnels: plan.tunnels,
        entropy_ports: ENTROPY_PORTS,
        endpoints: plan.endpoints,
        table: plan.table,
    })
}

/// What in the network the forwarder does not do.
fn beyond_forwarding(network: &Network) -> Option<&'static str> {
    let mut ports = network.logical_switches().iter().flat_map(|switch| &switch.ports);
    if !network.logical_routers().is_empty() {
        Some("[[logical_router]]")
    } else if !network.acls().is_empty() {
        Some("[[acl]]")
    } else if ports.any(|port| port.security.is_some()) {
        Some("`port_security`")
    } else if network.logical_switches().iter().any(|switch| switch.arp_responder) {
        Some("`arp_responder`")
    } else {
        None
    }
}

struct Plan<'a> {
    network: &'a Network,
    host: &'a Host,
    table: MacTable,
    endpoints: EndpointTable,
    tunnels: Vec<(TunnelSpec, IpAddr)>,
    ports: Vec<PortConfig>,
    tags: bool,
}

impl Plan<'_> {
    fn add_switch(&mut self, switch: &LogicalSwitch) -> Result<()> {
        let spec = self.tunnel_spec(switch.tunnel);
        let link = self.link(switch);
        if let Some(spec) = spec {
            // A switch that is on this host alone needs no tunnel, and its host no address.
            if switch.ports.iter().any(|port| port.host != self.host.index) {
                let local = self.address_of(self.host)?;
                if !self.tunnels.contains(&(spec, local)) {
                    self.tunnels.push((spec, local));
                }
            }
        } else {
            self.tags = true;
        }
        let place = self.table.add_switch(DatapathKey(switch.datapath_key.0), link)?;
        for port in &switch.ports {
            let port_place = if port.host == self.host.index {
                PortPlace::Local(self.add_vif(switch, port))
            } else if let Some(spec) = spec {
                let remote = self.address_of(&self.network.hosts()[port.host.value()])?;
                let local = self.address_of(self.host)?;
                PortPlace::Remote(self.endpoints.add(&spec, local, remote)?)
            } else {
                PortPlace::Uplink
            };
            self.table.add_port(place, port.key, port.mac, port_place)?;
        }
        Ok(())
    }

    fn address_of(&self, host: &Host) -> Result<IpAddr> {
        let family = self.network.underlay_family();
        host.underlay(family)
            .with_context(|| format!("host {} has no {family} underlay address", host.name))
    }

    fn add_vif(&mut self, switch: &LogicalSwitch, port: &Port) -> PortNo {
        let number = PortNo(self.ports.len() as u32 + 1);
        let device = match &port.device {
            Device::Tap { name, netns } => DeviceConfig::Tap {
                name: name.clone(),
                mtu: switch.mtu,
                guest: netns.as_ref().map(|netns| GuestConfig {
                    netns: netns.clone(),
                    mac: port.mac,
                    addresses: port
                        .addresses
                        .iter()
                        .filter_map(|net| IpPrefix::new(net.addr(), net.prefix_len()))
                        .collect(),
                }),
            },
            Device::Interface { name } => {
                DeviceConfig::Interface { name: name.clone(), mtu: switch.mtu }
            }
        };
        self.ports.push(PortConfig {
            port: number,
            name: port.name.clone(),
            logical_switch: switch.name.clone(),
            device,
        });
        number
    }

    fn link(&self, switch: &LogicalSwitch) -> SwitchLink {
        match switch.segment {
            Segment::Vni(_) | Segment::Unkeyed => SwitchLink::Tunnel {
                tunnel: switch.tunnel,
                logical_ports: match switch.tunnel {
                    TunnelType::Geneve => self.network.options().geneve.logical_ports,
                    TunnelType::Stt => self.network.options().stt.logical_ports,
                    _ => false,
                },
            },
            Segment::Vlan(vlan) => SwitchLink::Tags {
                uplink: UPLINK,
                outer: Tag::new(EtherType::VLAN, vlan),
                inner: None,
            },
            Segment::QinQ { outer, inner } => SwitchLink::Tags {
                uplink: UPLINK,
                outer: Tag::new(EtherType(self.network.options().qinq.s_tpid.value()), outer),
                inner: Some(Tag::new(EtherType::VLAN, inner)),
            },
        }
    }

    /// What the uplink's MTU has to be for the tagged frames of this host's switches; 0 when there is none.
    fn tagged_mtu_bytes(&self) -> u16 {
        let switches = self.network.logical_switches().iter().filter(|switch| {
            matches!(switch.tunnel, TunnelType::Vlan | TunnelType::QinQ)
                && switch.ports.iter().any(|port| port.host == self.host.index)
        });
        let mtus = switches.map(|s| s.mtu.saturating_add(self.network.overhead_bytes(s.tunnel)));
        mtus.max().unwrap_or(0)
    }

    /// `None` for the types without end points.
    fn tunnel_spec(&self, tunnel: TunnelType) -> Option<TunnelSpec> {
        let options = self.network.options();
        let outer = options.outer(tunnel)?;
        let (port, checksum) = match tunnel {
            TunnelType::Vxlan => (options.vxlan.udp_port, options.vxlan.checksum),
            TunnelType::Geneve => (options.geneve.udp_port, options.geneve.checksum),
            TunnelType::Stt => (options.stt.tcp_port, true),
            _ => (0, options.gre.checksum),
        };
        let is_gre = tunnel == TunnelType::Gre;
        let spec = TunnelSpec {
            tunnel,
            port,
            checksum,
            ttl: outer.ttl,
            dscp: match outer.dscp {
                network::Dscp::Inherit => Dscp::Inherit,
                network::Dscp::Fixed(dscp) => Dscp::Fixed(dscp),
            },
            key: is_gre && options.gre.key,
            sequence: is_gre && options.gre.sequence,
            path_mtu_bytes: self.network.underlay_mtu(),
        };
        Some(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        Network::parse(text, "network.toml").unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn port(name: &str, host: &str, mac: u8) -> String {
        format!(
            "[[logical_switch.port]]\nname = \"{name}\"\nhost = \"{host}\"\nmac = \"02:00:00:00:00:{mac:02x}\"\n\
             device = {{ tap = \"{name}\" }}\n"
        )
    }

    #[test]
    fn switch_on_one_host_needs_no_tunnel_and_no_address() {
        let text = "tunnel = \"vxlan\"\n[[host]]\nname = \"h1\"\nuplink = \"eth0\"\nunderlay = []\n\
                    [[logical_switch]]\nname = \"blue\"\nvni = 5\n"
            .to_owned()
            + &port("a", "h1", 1) + &port("b", "h1", 2);
        let network = network(&text);
        let config = plan(&network, &network.hosts()[0]).unwrap();
        assert_eq!((config.ports.len(), config.tunnels.len(), config.endpoints.len()), (2, 0, 0));
    }

    #[test]
    fn plan_is_refused_when_the_network_asks_for_more_than_forwarding() {
        let switch = "tunnel = \"vxlan\"\n[[host]]\nname = \"h1\"\nuplink = \"eth0\"\n\
                      [[logical_switch]]\nname = \"blue\"\nvni = 5\n";
        let guest = port("a", "h1", 1);
        let cases = [
            (format!("arp_responder = true\n{guest}"), "`arp_responder`"),
            (format!("{guest}port_security = true\n"), "`port_security`"),
            (
                "[[acl]]\nswitch = \"blue\"\ndirection = \"to-port\"\npriority = 1\nmatch = 'ip4'\n\
                 action = \"drop\"\n"
                    .to_owned(),
                "[[acl]]",
            ),
            (
                "[[logical_router]]\nname = \"r\"\n[[logical_router.port]]\nname = \"p\"\n\
                 switch = \"blue\"\nmac = \"02:00:00:00:00:09\"\naddresses = [\"10.0.0.1/24\"]\n"
                    .to_owned(),
                "[[logical_router]]",
            ),
        ];
        for (rest, what) in cases {
            let network = network(&format!("{switch}{rest}"));
            let error = plan(&network, &network.hosts()[0]).err().unwrap().to_string();
            assert!(error.starts_with(&format!("{what} cannot be run yet")), "{error}");
        }
    }

    #[test]
    fn each_remote_host_is_one_end_point_of_each_tunnel_type() {
        let hosts = (1..4).map(|n| {
            format!("[[host]]\nname = \"h{n}\"\nuplink = \"eth0\"\nunderlay = [\"192.0.2.{n}\"]\n")
        });
        let switch = |name: &str, tunnel: &str, vni: u8| {
            format!("[[logical_switch]]\nname = \"{name}\"\nvni = {vni}\ntunnel = \"{tunnel}\"\n")
        };
        let text = hosts.collect::<String>()
            + &switch("blue", "geneve", 1)
            + &port("a", "h1", 1)
            + &port("b", "h2", 2)
            + &port("c", "h2", 3)
            + &port("d", "h3", 4)
            + &switch("green", "geneve", 2)
            + &port("e", "h1", 5)
            + &port("f", "h2", 6)
            + &switch("red", "stt", 1)
            + &port("g", "h1", 7)
            + &port("h", "h3", 8)
            + &switch("elsewhere", "gre", 1)
            + &port("i", "h2", 9)
            + &port("j", "h3", 10);
        let network = network(&text);
        let config = plan(&network, &network.hosts()[0]).unwrap();
        assert_eq!(config.tunnels.len(), 2, "geneve and stt; gre has no port here");
        assert_eq!(config.endpoints.len(), 3, "geneve to h2 and h3, stt to h3");
        assert_eq!(config.ports.iter().map(|p| p.port.0).collect::<Vec<_>>(), [1, 2, 3]);
    }
}
