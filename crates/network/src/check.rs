//! Checks across the whole file (segments, underlay addresses, MTUs), and the step from drafts to
//! model.

mod acl;
mod condition;
mod health;
mod router;
mod services;

use crate::connectivity::Connectivity;
use crate::errors::ProblemCollector;
use crate::read::{
    HostDraft, LinkDraft, NetworkDraft, OptionsDraft, RouterDraft, Setting, SwitchDraft, Unique,
};
use crate::section::Located;
use crate::{
    FileLine, HostIndex, IpNet, LogicalSwitch, Network, Segment, TunnelOptions, UnderlayFamily,
    overhead_bytes,
};
use flow::{Carrier, NetworkId, TunnelType};
use std::collections::{BTreeMap, BTreeSet};
use wire::EtherType;

/// The default underlay MTU: that of Ethernet.
const DEFAULT_UNDERLAY_MTU: u16 = 1500;

/// Nearly all paths have this MTU, because IPv6 requires it. weft ignores reports of a lower one.
const DEFAULT_LEAST_PATH_MTU: u16 = 1280;

/// The minimum MTU of IPv6 (RFC 8200 section 5).
const MIN_IPV6_MTU: u16 = 1280;

/// The longest STT packet: the length field of the frame, and of its IP packet before segmentation,
/// has 16 bits.
const MAX_STT_PACKET: u16 = u16::MAX;

/// Checks a draft and builds the network. Returns `None` when something required is missing, which
/// has been reported.
pub(crate) fn network(report: &mut ProblemCollector<'_>, draft: NetworkDraft) -> Option<Network> {
    let NetworkDraft {
        underlay_mtu,
        least_path_mtu,
        path_probes,
        checks_reverse_path,
        underlay_family,
        punt_limit,
        upcall_cpu_percent,
        connections,
        options,
        hosts,
        switches,
        bridges,
        routers,
        sets,
        acls,
        load_balancers,
        nats,
    } = draft;
    unique_segments(report, &switches);
    distinct_tags(report, &options.options, &switches);
    distinct_ports(report, &options, &switches);
    let port_groups = acl::port_groups(report, &sets, &switches);
    let acls = acl::acls(report, acls, &sets, &switches, &routers, &options.options);
    services::check_home_links(report, &routers);
    let nats = services::nats(report, nats, &routers);
    services::balancing_routers(report, &load_balancers, &switches, &routers);
    let on_switches = hosts_on_switches(&switches, &routers);
    let routers = router::routers(report, &switches, routers);
    let load_balancers =
        services::load_balancers(report, load_balancers, &switches, (&routers, hosts.len()));
    distinct_senders(report, &hosts, (&switches, &on_switches), &routers.connectivity);
    let needs = needs_underlay(&hosts, (&switches, &on_switches), &routers.connectivity);
    let family = match underlay_family {
        Setting::Given(family) => {
            given_family(report, family, &hosts, &needs);
            Some(family)
        }
        Setting::Default => default_family(report, &hosts, &needs),
        Setting::Wrong => None,
    };
    groups_of_family(report, family?, &options, &switches);
    let mtu = checked_underlay_mtu(report, underlay_mtu, family?)?;
    for host in &hosts {
        checked_least_path_mtu(report, host.least_path_mtu, family?, mtu)?;
    }
    let least_path_mtu = checked_least_path_mtu(report, least_path_mtu, family?, mtu)?;
    let path_probes = path_probes.given_or(false)?;
    let checks_reverse_path = checks_reverse_path.given_or(false)?;
    let punt_limit = match punt_limit {
        Setting::Given(limit) => Some(limit),
        Setting::Default => None,
        Setting::Wrong => return None,
    };
    let upcall_cpu_percent = match upcall_cpu_percent {
        Setting::Given(percent) => Some(percent),
        Setting::Default => None,
        Setting::Wrong => return None,
    };
    let underlay = UnderlayMtu { family: family?, mtu, options: options.options };
    let mtus: Vec<u16> = switches
        .iter()
        .zip(&routers.addresses)
        .map(|(switch, addresses)| underlay.guest_mtu(report, switch, addresses))
        .collect();
    let hosts = hosts.into_iter().enumerate().map(|(index, host)| host.finish(index));
    let switches = switches.into_iter().zip(mtus).zip(&routers.addresses);
    let switches = switches.map(|((switch, mtu), routed)| {
        let line = FileLine(report.line(switch.at));
        finish(switch, mtu, !routed.is_empty(), line)
    });
    let bridges = bridges.into_iter().map(|bridge| bridge.finish(underlay.mtu));
    Some(Network {
        hosts: hosts.collect::<Option<_>>()?,
        logical_switches: switches.collect::<Option<_>>()?,
        logical_routers: routers.finished?,
        bridges: bridges.collect::<Option<_>>()?,
        address_sets: sets.address_sets,
        port_groups,
        acls: acls?,
        load_balancers: load_balancers?,
        nats: nats?,
        options: underlay.options,
        underlay_family: underlay.family,
        underlay_mtu: underlay.mtu,
        least_path_mtu,
        path_probes,
        checks_reverse_path,
        punt_limit,
        upcall_cpu_percent,
        connections,
    })
}

fn finish(switch: SwitchDraft, mtu: u16, is_routed: bool, line: FileLine) -> Option<LogicalSwitch> {
    let segment = switch.segment?.value;
    let arp_responder = match switch.arp_responder {
        Setting::Given(given) => given,
        // Routed switches and pools have ports with known addresses, so requests need not be
        // flooded.
        Setting::Default | Setting::Wrong => {
            is_routed || switch.ports.iter().any(|port| port.pool.is_some())
        }
    };
    Some(LogicalSwitch {
        name: switch.name?,
        datapath_key: segment.datapath_key(),
        segment,
        tunnel: switch.tunnel?,
        mtu,
        group: switch.group.map(|group| group.value),
        arp_responder,
        ports: switch.ports.into_iter().map(|port| port.finish()).collect::<Option<_>>()?,
        line,
    })
}

/// For each switch, the hosts of its guests and the home hosts of routers with a port in it.
fn hosts_on_switches(switches: &[SwitchDraft], routers: &[RouterDraft]) -> Vec<BTreeSet<usize>> {
    let guests = |switch: &SwitchDraft| {
        switch.ports.iter().filter_map(|port| port.host).map(HostIndex::value).collect()
    };
    let mut on_switches: Vec<BTreeSet<usize>> = switches.iter().map(guests).collect();
    for router in routers {
        let Setting::Given(home) = router.home else { continue };
        for port in &router.ports {
            if let Some(LinkDraft::Switch(switch)) = &port.link
                && let Some(on_switch) = on_switches.get_mut(switch.value.value())
            {
                on_switch.insert(home.value.value());
            }
        }
    }
    on_switches
}

/// Switches of one tunnel type must not share a VNI or VLAN: their frames could not be told apart.
fn unique_segments(report: &mut ProblemCollector<'_>, switches: &[SwitchDraft]) {
    let mut taken = Unique::new();
    for switch in switches {
        let (Some(tunnel), Some(Located { value: segment, at })) = (switch.tunnel, switch.segment)
        else {
            continue;
        };
        let Some(first) = taken.insert((tunnel, segment), at) else { continue };
        let line = report.line(first);
        let right = format!("give each {tunnel} switch its own");
        let message = match segment {
            Segment::Vni(vni) => {
                format!("VNI {vni} is already used by the {tunnel} switch in line {line}; {right}")
            }
            Segment::Vlan(vlan) => format!(
                "VLAN {vlan} is already used by the {tunnel} switch in line {line}; {right}"
            ),
            Segment::QinQ { outer, inner } => {
                format!(
                    "VLANs {outer} and {inner} are already used by the {tunnel} switch in line \
                     {line}; \
                     {right}"
                )
            }
            Segment::Unkeyed => format!(
                "{tunnel} without key carries only one logical switch, which is in line {line}; set \
                 key = true in [tunnel_options.{tunnel}]"
            ),
        };
        report.error(at, message);
    }
}

/// With 0x8100 as the outer tag of QinQ, a guest of a VLAN switch could send frames with a second
/// tag and so reach a QinQ switch with the same outer VLAN.
fn distinct_tags(
    report: &mut ProblemCollector<'_>,
    options: &TunnelOptions,
    switches: &[SwitchDraft],
) {
    let segments = || switches.iter().filter_map(|switch| switch.segment);
    let pair_types = TunnelType::ALL.into_iter().filter(|tunnel| {
        let is_pair = tunnel.descriptor().network_id == NetworkId::VlanPair;
        is_pair && options.of(*tunnel).service_tpid == EtherType::VLAN
    });
    if pair_types.count() == 0 {
        return;
    }
    let mut vlans = Unique::new();
    for Located { value, at } in segments() {
        if let Segment::Vlan(vlan) = value {
            vlans.insert(vlan, at);
        }
    }
    for Located { value, at } in segments() {
        let Segment::QinQ { outer, .. } = value else { continue };
        if let Some(first) = vlans.get(&outer) {
            let line = report.line(first);
            report.error(
                at,
                format!(
                    "outer VLAN {outer} is also used by the vlan switch in line {line}, and \
                         s_tpid = 0x8100 \
                     makes their tags equal; use another VLAN, or s_tpid = 0x88a8"
                ),
            );
        }
    }
}

/// Two tunnel types over the same transport must have different ports.
fn distinct_ports(
    report: &mut ProblemCollector<'_>,
    draft: &OptionsDraft,
    switches: &[SwitchDraft],
) {
    let is_used = |tunnel| switches.iter().any(|switch| switch.tunnel == Some(tunnel));
    let used: Vec<_> = TunnelType::ALL.into_iter().filter(|tunnel| is_used(*tunnel)).collect();
    for (index, &one) in used.iter().enumerate() {
        for &other in &used[index + 1..] {
            let port = draft.options.of(one).port;
            if one.carrier() != other.carrier() || port != draft.options.of(other).port {
                continue;
            }
            let protocol = match one.carrier() {
                Carrier::Udp => "UDP",
                Carrier::TcpLike => "TCP",
                Carrier::Gre | Carrier::Tags => continue,
            };
            // The defaults differ, so at least one port is given. Report the later one.
            if let Some(at) = draft.port_at.get(&one).max(draft.port_at.get(&other)) {
                report.error(
                    *at,
                    format!("{one} and {other} both use {protocol} port {port}; give each its own"),
                );
            }
        }
    }
}

/// Tunnel types over IP protocol 47 have no ports, and GRE and NVGRE packets look the same: the
/// receiver identifies the type by the sender. So two hosts may have end points of only one such
/// type.
fn distinct_senders(
    report: &mut ProblemCollector<'_>,
    hosts: &[HostDraft],
    (switches, on_switches): (&[SwitchDraft], &[BTreeSet<usize>]),
    connectivity: &Connectivity,
) {
    let has_no_ports = |tunnel: TunnelType| tunnel.carrier() == Carrier::Gre;
    let of_carrier = || {
        let rows = switches.iter().enumerate();
        rows.filter_map(|(index, switch)| Some((index, switch, switch.tunnel?)))
            .filter(|(_, _, tunnel)| has_no_ports(*tunnel))
    };
    let types: BTreeSet<TunnelType> = of_carrier().map(|(_, _, tunnel)| tunnel).collect();
    if types.len() < 2 {
        return;
    }
    let mut parts: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for (index, own) in on_switches.iter().enumerate() {
        parts.entry(connectivity.part_of_switch(index)).or_default().extend(own);
    }
    let mut taken: BTreeMap<(usize, usize), (TunnelType, usize)> = BTreeMap::new();
    for (index, switch, tunnel) in of_carrier() {
        let own = &on_switches[index];
        let others = parts.get(&connectivity.part_of_switch(index)).unwrap_or(own);
        let pairs = own.iter().flat_map(|&one| others.iter().map(move |&other| (one, other)));
        for (one, other) in pairs.filter(|(one, other)| one != other) {
            let pair = (one.min(other), one.max(other));
            let (first, at) = *taken.entry(pair).or_insert((tunnel, switch.at));
            if first == tunnel {
                continue;
            }
            let [one, other] = [pair.0, pair.1].map(|host| host_name(&hosts[host]));
            let line = report.line(at);
            report.error(
                switch.at,
                format!(
                    "{one} and {other} cannot tell {tunnel} from {first}, which they use for the \
                     switch in line {line}: both are IP protocol 47 without ports; use one of \
                     the two types between these hosts"
                ),
            );
            break;
        }
    }
}

/// Why a host needs an underlay address: a switch with tunnel end points that has ports on other
/// hosts.
#[derive(Clone, Copy)]
struct UnderlayNeed<'a> {
    switch: &'a SwitchDraft,
    /// The host has ports or a router on the switch. Otherwise the host reaches the switch from one
    /// of its own switches through logical routers.
    is_own: bool,
}

/// For each host that needs an underlay address, the reason.
fn needs_underlay<'a>(
    hosts: &[HostDraft],
    (switches, own): (&'a [SwitchDraft], &[BTreeSet<usize>]),
    connectivity: &Connectivity,
) -> Vec<Option<UnderlayNeed<'a>>> {
    let mut parts: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for (index, hosts) in own.iter().enumerate() {
        parts.entry(connectivity.part_of_switch(index)).or_default().extend(hosts);
    }
    let mut needs: Vec<Option<UnderlayNeed<'a>>> = hosts.iter().map(|_| None).collect();
    for is_own in [true, false] {
        for (index, (switch, on)) in switches.iter().zip(own).enumerate() {
            if !switch.tunnel.is_some_and(TunnelType::has_endpoints) || on.is_empty() {
                continue;
            }
            let part = parts.get(&connectivity.part_of_switch(index)).unwrap_or(on);
            let sending = if is_own { on } else { part };
            // A host without remote ports needs no underlay address.
            for &host in sending.iter().filter(|_| part.len() > 1) {
                if let Some(need @ None) = needs.get_mut(host) {
                    *need = Some(UnderlayNeed { switch, is_own });
                }
            }
        }
    }
    needs
}

impl UnderlayNeed<'_> {
    /// The reason as part of an error message.
    fn describe(self) -> String {
        let what = if self.is_own { "its ports on" } else { "its path over logical routers to" };
        let verb = if self.is_own { "need" } else { "needs" };
        format!("{what} {} {verb}", switch_name(self.switch))
    }
}

/// Multicast groups must have the address family of the underlay.
fn groups_of_family(
    report: &mut ProblemCollector<'_>,
    family: UnderlayFamily,
    draft: &OptionsDraft,
    switches: &[SwitchDraft],
) {
    let own = switches.iter().filter_map(|switch| switch.group);
    let mut groups: Vec<_> = draft.groups.values().copied().chain(own).collect();
    groups.sort_by_key(|group| group.at);
    // A switch without a group of its own uses that of the options.
    groups.dedup_by_key(|group| group.at);
    for Located { value, at } in
        groups.into_iter().filter(|group| UnderlayFamily::of(group.value) != family)
    {
        let (other, example) = (family.other(), example_group(family));
        report.error(
            at,
            format!(
                "{value} is an {other} group, but the underlay is {family}; write for \
                     example \"{example}\""
            ),
        );
    }
}

const fn example_group(family: UnderlayFamily) -> &'static str {
    match family {
        UnderlayFamily::V4 => "239.1.1.1",
        UnderlayFamily::V6 => "ff05::1:1",
    }
}

/// Reports every host that needs an underlay address of the given family and has none.
fn given_family(
    report: &mut ProblemCollector<'_>,
    family: UnderlayFamily,
    hosts: &[HostDraft],
    needs: &[Option<UnderlayNeed<'_>>],
) {
    for (host, need) in hosts.iter().zip(needs) {
        if let Some(need) = need.filter(|_| !host.underlay_wrong && !host.has(family)) {
            let example = example_address(family);
            report.error(
                host.at,
                format!(
                    "{} has no {family} underlay address, which {} (underlay_family = {}); \
                     add one, such as \"{example}\"",
                    host_name(host),
                    need.describe(),
                    family.number(),
                ),
            );
        }
    }
}

/// The address family in which all hosts that need an underlay address have one; IPv4 is preferred.
/// Reports an error if there is no such family.
fn default_family(
    report: &mut ProblemCollector<'_>,
    hosts: &[HostDraft],
    needs: &[Option<UnderlayNeed<'_>>],
) -> Option<UnderlayFamily> {
    let needing_underlay: Vec<_> =
        hosts.iter().zip(needs).filter_map(|(host, need)| Some((host, (*need)?))).collect();
    let common = [UnderlayFamily::V4, UnderlayFamily::V6]
        .into_iter()
        .find(|&family| needing_underlay.iter().all(|(host, _)| host.has(family)));
    if common.is_some() {
        return common;
    }
    let without_address: Vec<_> = needing_underlay
        .iter()
        .filter(|(host, _)| !host.has(UnderlayFamily::V4) && !host.has(UnderlayFamily::V6))
        .collect();
    for (host, need) in &without_address {
        if !host.underlay_wrong {
            report.error(
                host.at,
                format!(
                    "{} has no underlay address, which {}; add one, such as underlay = \
                     [\"192.0.2.1\"]",
                    host_name(host),
                    need.describe(),
                ),
            );
        }
    }
    if needing_underlay.iter().any(|(host, _)| host.underlay_wrong) || !without_address.is_empty() {
        return None;
    }
    let lacks =
        |family| needing_underlay.iter().find(|(host, _)| !host.has(family)).map(|(host, _)| host);
    if let (Some(no_v4), Some(no_v6)) = (lacks(UnderlayFamily::V4), lacks(UnderlayFamily::V6)) {
        report.error(
            no_v4.at,
            format!(
                "the hosts have no address family in common: {} has no IPv4 and {} no IPv6 \
                 underlay \
                 address; give each host one of the same family",
                host_name(no_v4),
                host_name(no_v6),
            ),
        );
    }
    None
}

fn host_name(host: &HostDraft) -> String {
    host.name.as_ref().map_or_else(|| "this host".to_owned(), |name| format!("host `{name}`"))
}

fn switch_name(switch: &SwitchDraft) -> String {
    let tunnel = switch.tunnel.map_or("", TunnelType::name);
    match &switch.name {
        Some(name) => format!("the {tunnel} switch `{name}`"),
        None => format!("a {tunnel} switch"),
    }
}

const fn example_address(family: UnderlayFamily) -> &'static str {
    match family {
        UnderlayFamily::V4 => "192.0.2.1",
        UnderlayFamily::V6 => "2001:db8::1",
    }
}

/// Checks the underlay MTU; IPv6 needs at least 1280 bytes.
fn checked_underlay_mtu(
    report: &mut ProblemCollector<'_>,
    setting: Setting<Located<u16>>,
    family: UnderlayFamily,
) -> Option<u16> {
    match setting {
        Setting::Default => Some(DEFAULT_UNDERLAY_MTU),
        Setting::Wrong => None,
        Setting::Given(Located { value, at })
            if family == UnderlayFamily::V6 && value < MIN_IPV6_MTU =>
        {
            report.error(
                at,
                format!(
                    "`underlay_mtu` is {value}; an IPv6 underlay needs at least \
                         {MIN_IPV6_MTU} (RFC 8200)"
                ),
            );
            None
        }
        Setting::Given(Located { value, .. }) => Some(value),
    }
}

/// Checks the least path MTU: at most the underlay MTU, and with IPv6 at least 1280 bytes.
fn checked_least_path_mtu(
    report: &mut ProblemCollector<'_>,
    setting: Setting<Located<u16>>,
    family: UnderlayFamily,
    underlay_mtu: u16,
) -> Option<u16> {
    let Located { value, at } = match setting {
        Setting::Default => return Some(DEFAULT_LEAST_PATH_MTU.min(underlay_mtu)),
        Setting::Wrong => return None,
        Setting::Given(given) => given,
    };
    let rule = if value > underlay_mtu {
        format!("it must not exceed `underlay_mtu`, which is {underlay_mtu}")
    } else if family == UnderlayFamily::V6 && value < MIN_IPV6_MTU {
        format!("with an IPv6 underlay it must be at least {MIN_IPV6_MTU} (RFC 8200)")
    } else {
        return Some(value);
    };
    report.error(at, format!("`least_path_mtu` is {value}; {rule}"));
    None
}

/// The values that limit the MTU of guests.
struct UnderlayMtu {
    family: UnderlayFamily,
    mtu: u16,
    options: TunnelOptions,
}

impl UnderlayMtu {
    /// The MTU of a switch's guests, given or default, after reporting an invalid one.
    fn guest_mtu(
        &self,
        report: &mut ProblemCollector<'_>,
        switch: &SwitchDraft,
        routers: &[Located<IpNet>],
    ) -> u16 {
        let Some(tunnel) = switch.tunnel else { return 0 };
        let (max, default) = self.mtu_limits(tunnel);
        let (mtu, at) = match switch.mtu {
            Setting::Default => (default, switch.at),
            Setting::Given(Located { value, at }) => (value, at),
            Setting::Wrong => return 0,
        };
        if mtu > max {
            report.error(at, self.does_not_fit(tunnel, mtu, max));
        } else if mtu < MIN_IPV6_MTU {
            let addresses = switch.ports.iter().flat_map(|port| &port.addresses).chain(routers);
            let ipv6 = addresses.copied().find(|net| net.value.addr().is_ipv6());
            if let Some(net) = ipv6 {
                self.too_small_for_ipv6(report, switch, tunnel, Located { value: mtu, at }, net);
            }
        }
        mtu
    }

    /// The maximum and the default MTU of guests.
    ///
    /// STT segments a frame like TCP, so a guest's packet may be longer than the underlay MTU; the
    /// limit is the length field. The default is the underlay MTU, so that guests keep the usual
    /// 1500. TCP super-packets are segmented to the underlay MTU anyway; only a single packet
    /// longer than that minus the overhead costs a second segment.
    fn mtu_limits(&self, tunnel: TunnelType) -> (u16, u16) {
        let overhead = self.overhead(tunnel);
        if tunnel.carrier() == Carrier::TcpLike {
            let max = MAX_STT_PACKET - overhead;
            (max, self.mtu.min(max))
        } else {
            let max = self.mtu.saturating_sub(overhead);
            (max, max)
        }
    }

    fn overhead(&self, tunnel: TunnelType) -> u16 {
        overhead_bytes(tunnel, self.family, &self.options)
    }

    fn does_not_fit(&self, tunnel: TunnelType, mtu: u16, max: u16) -> String {
        let added = self.added(tunnel);
        if tunnel.carrier() == Carrier::TcpLike {
            format!(
                "guest MTU {mtu} + {added} does not fit STT's largest packet, {MAX_STT_PACKET} \
                 bytes; at most {max}"
            )
        } else {
            format!(
                "guest MTU {mtu} + {added} does not fit the underlay MTU {}; at most {max}",
                self.mtu
            )
        }
    }

    fn added(&self, tunnel: TunnelType) -> String {
        let bytes = self.overhead(tunnel);
        if tunnel.has_endpoints() {
            format!("{bytes} bytes of {tunnel} over {}", self.family)
        } else {
            format!("{bytes} bytes of {tunnel}")
        }
    }

    /// Reports an MTU that is too small for `net`, an IPv6 address in a switch.
    fn too_small_for_ipv6(
        &self,
        report: &mut ProblemCollector<'_>,
        switch: &SwitchDraft,
        tunnel: TunnelType,
        mtu: Located<u16>,
        Located { value: net, at }: Located<IpNet>,
    ) {
        let line = report.line(at);
        let origin = match switch.mtu {
            Setting::Default => format!(" (underlay MTU {} - {})", self.mtu, self.added(tunnel)),
            _ => String::new(),
        };
        let (max, _) = self.mtu_limits(tunnel);
        let right = if max >= MIN_IPV6_MTU {
            format!("write mtu = {MIN_IPV6_MTU} or more")
        } else {
            let needed = MIN_IPV6_MTU + self.overhead(tunnel);
            format!("set underlay_mtu to at least {needed}")
        };
        report.error(
            mtu.at,
            format!(
                "guest MTU {}{origin} is below {MIN_IPV6_MTU}, which IPv6 needs (RFC 8200), and \
                 line \
                 {line} has {net}; {right}",
                mtu.value,
            ),
        );
    }
}
