//! Logical flows of RA guard and DHCP guard: they drop messages that only routers and DHCP servers
//! may send if they come from another guest.
//!
//! `ls_in_apply_port_sec` sends these packets to the stage of their guard, and all others past both
//! stages. So only the few packets that a guard has to check cost another lookup.
//!
//! # Hidden packets
//!
//! The flow key shows the upper layer behind VLAN tags, SNAP and IPv6 extension headers. Frames
//! whose upper layer the parser cannot reach have no key and are dropped: those with more tags or
//! extension headers than it follows, and first fragments without their whole header chain (RFC
//! 7112, RFC 7113). So a guard sees the upper-layer header of each packet and of each first
//! fragment. Later fragments have no such header. When the first fragment is dropped, a receiver
//! cannot reassemble them. It must not accept a later fragment that overwrites a header of the
//! first one either (RFC 5722), but some receivers do. Such an attack needs extension headers
//! behind the fragment header, so later fragments with these are dropped too.
//!
//! # Masks
//!
//! The guards check packets of all guests, so their conditions are chosen to add few bits to the
//! masks of megaflows. The conditions on the ports of UDP start with the destination. Most packets
//! differ there in a short prefix, and their source port is not read.

use super::acl::AclSwitches;
use super::{DatapathKeys, FlowCollector, Stage, next_to};
use crate::model::port_in_switch;
use crate::{Network, RouterLink};
use flow::DatapathKey;
use std::sync::Arc;

/// Router advertisements (134) and redirects (137), RFC 4861 sections 4.2 and 4.5.
const ROUTER_MESSAGES: &str = "icmp6.type == {134, 137}";

/// Later fragments whose first fragment has routing (43), fragment (44) or destination options (60)
/// headers behind the fragment header.
const LATER_PARTS_OF_HEADERS: &str = "ip6 && ip.later_frag && ip.proto == {43, 44, 60}";

/// Messages to DHCP clients, from any port: clients do not check it. And messages between relays
/// and servers, which have the server's port on both sides (RFC 2131 section 4.1).
const DHCP_SERVER: &str = "ip4 && (udp.dst == 68 || (udp.dst == 67 && udp.src == 67))";

/// The corresponding DHCPv6 messages (RFC 8415 section 7.2).
const DHCP6_SERVER: &str = "ip6 && (udp.dst == 546 || (udp.dst == 547 && udp.src == 547))";

/// Adds the flows of both guards to all switches.
pub(super) fn add(
    network: &Network,
    keys: &DatapathKeys,
    switches: &AclSwitches,
    flows: &mut FlowCollector,
) {
    let all: Arc<[DatapathKey]> = keys.switches.as_slice().into();
    let select = (Stage::LsInApplyPortSec, 50);
    for (condition, guard) in [
        (ROUTER_MESSAGES, Stage::LsInRaGuard),
        (LATER_PARTS_OF_HEADERS, Stage::LsInRaGuard),
        (DHCP_SERVER, Stage::LsInDhcpGuard),
        (DHCP6_SERVER, Stage::LsInDhcpGuard),
    ] {
        flows.add(&all, select, condition, next_to(guard), None);
    }
    for (datapaths, beyond) in switches.by_stage_after_guards() {
        flows.add(datapaths, (Stage::LsInApplyPortSec, 0), "1", next_to(beyond), None);
    }
    for guard in [Stage::LsInRaGuard, Stage::LsInDhcpGuard] {
        flows.add(&all, (guard, 0), "1", "drop;", None);
    }
    add_trusted_guests(network, keys, switches, flows);
    add_routers(network, keys, switches, flows);
}

fn add_trusted_guests(
    network: &Network,
    keys: &DatapathKeys,
    switches: &AclSwitches,
    flows: &mut FlowCollector,
) {
    for (switch, &key) in network.logical_switches().iter().zip(&keys.switches) {
        let beyond = next_to(switches.stage_after_guards(key));
        let datapath: Arc<[DatapathKey]> = [key].into();
        for port in &switch.ports {
            let guards =
                [(port.trusted.ra, Stage::LsInRaGuard), (port.trusted.dhcp, Stage::LsInDhcpGuard)];
            for (_, guard) in guards.into_iter().filter(|(is_trusted, _)| *is_trusted) {
                let condition = format!("inport == {:?}", port.name);
                flows.add(&datapath, (guard, 50), condition, beyond.as_str(), port.line);
            }
        }
    }
}

/// Exempts packets from logical routers, which were checked on the switch that they come from.
fn add_routers(
    network: &Network,
    keys: &DatapathKeys,
    switches: &AclSwitches,
    flows: &mut FlowCollector,
) {
    for port in network.logical_routers().iter().flat_map(|router| &router.ports) {
        let RouterLink::Switch { switch, .. } = port.link else { continue };
        let key = keys.switch(switch);
        let beyond = next_to(switches.stage_after_guards(key));
        let condition =
            format!("inport == {:?}", port_in_switch(&network[switch].name, &port.name));
        let stage = (Stage::LsInApplyPortSec, 70);
        flows.add(&[key].into(), stage, condition, beyond, port.line);
    }
}
