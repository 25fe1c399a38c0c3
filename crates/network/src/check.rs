//! The checks that need the whole file: segments, underlay addresses, MTUs. Then the drafts become the model.

use crate::errors::Report;
use crate::read::{HostDraft, NetworkDraft, OptionsDraft, Setting, SwitchDraft, Unique};
use crate::section::Sited;
use crate::{Family, LogicalSwitch, Network, Segment, ServiceTpid, TunnelOptions, overhead_bytes};
use flow::TunnelType;
use std::net::IpAddr;

/// The MTU of the underlay unless given: that of Ethernet.
const DEFAULT_UNDERLAY_MTU: u16 = 1500;

/// RFC 8200 section 5.
const MIN_IPV6_MTU: u16 = 1280;

/// An STT frame, its header included, has a 16-bit length; so has the IP packet that it is before segmentation.
const MAX_STT_PACKET: u16 = u16::MAX;

/// Checks a draft and makes a network of it; `None` when something that must be there is not (and has been
/// reported).
pub(crate) fn network(report: &mut Report<'_>, draft: NetworkDraft) -> Option<Network> {
    let NetworkDraft { underlay_mtu, underlay_family, options, hosts, switches } = draft;
    unique_segments(report, &switches);
    distinct_tags(report, &options.options, &switches);
    distinct_udp_ports(report, &options, &switches);
    let family = match underlay_family {
        Setting::Given(family) => {
            given_family(report, family, &hosts, &switches);
            Some(family)
        }
        Setting::Default => default_family(report, &hosts, &switches),
        Setting::Wrong => None,
    };
    let underlay = Underlay {
        family: family?,
        mtu: checked_underlay_mtu(report, underlay_mtu, family?)?,
        options: options.options,
    };
    let mtus: Vec<u16> = switches.iter().map(|switch| underlay.guest_mtu(report, switch)).collect();
    let hosts = hosts.into_iter().enumerate().map(|(index, host)| host.finish(index));
    let switches = switches.into_iter().zip(mtus).map(|(switch, mtu)| finish(switch, mtu));
    Some(Network {
        hosts: hosts.collect::<Option<_>>()?,
        logical_switches: switches.collect::<Option<_>>()?,
        options: underlay.options,
        underlay_family: underlay.family,
        underlay_mtu: underlay.mtu,
    })
}

fn finish(switch: SwitchDraft, mtu: u16) -> Option<LogicalSwitch> {
    let segment = switch.segment?.value;
    Some(LogicalSwitch {
        name: switch.name?,
        datapath_key: segment.datapath_key(),
        segment,
        tunnel: switch.tunnel?,
        mtu,
        ports: switch.ports.into_iter().map(|port| port.finish()).collect::<Option<_>>()?,
    })
}

/// No two switches of one tunnel type share a VNI or VLAN: their frames could not be told apart.
fn unique_segments(report: &mut Report<'_>, switches: &[SwitchDraft]) {
    let mut taken = Unique::new();
    for switch in switches {
        let (Some(tunnel), Some(Sited { value: segment, at })) = (switch.tunnel, switch.segment)
        else {
            continue;
        };
        let Some(first) = taken.insert((tunnel, segment), at) else { continue };
        let line = report.line(first);
        let right = format!("give each {tunnel} switch its own");
        let message = match segment {
            Segment::Vni(vni) => {
                format!("VNI {vni} is already that of the {tunnel} switch in line {line}; {right}")
            }
            Segment::Vlan(vlan) => format!(
                "VLAN {vlan} is already that of the {tunnel} switch in line {line}; {right}"
            ),
            Segment::QinQ { outer, inner } => {
                format!(
                    "VLANs {outer} and {inner} are already those of the {tunnel} switch in line {line}; \
                     {right}"
                )
            }
            Segment::Unkeyed => format!(
                "gre without key carries one logical switch, and that is the one in line {line}; set \
                 key = true in [tunnel_options.gre]"
            ),
        };
        report.error(at, message);
    }
}

/// With 0x8100 as the outer tag of QinQ, a guest of a VLAN switch could put a tag into its frames and so speak
/// in a QinQ switch with the same outer VLAN.
fn distinct_tags(report: &mut Report<'_>, options: &TunnelOptions, switches: &[SwitchDraft]) {
    if options.qinq.s_tpid != ServiceTpid::Dot1q {
        return;
    }
    let segments = || switches.iter().filter_map(|switch| switch.segment);
    let mut vlans = Unique::new();
    for Sited { value, at } in segments() {
        if let Segment::Vlan(vlan) = value {
            vlans.insert(vlan, at);
        }
    }
    for Sited { value, at } in segments() {
        let Segment::QinQ { outer, .. } = value else { continue };
        if let Some(first) = vlans.get(&outer) {
            let line = report.line(first);
            report.error(
                at,
                format!("outer VLAN {outer} is also that of the vlan switch in line {line}, and s_tpid = 0x8100 \
                     makes them look the same; choose another, or s_tpid = 0x88a8"),
            );
        }
    }
}

/// VXLAN and Geneve, when both are in use, need a UDP port each: nothing else tells them apart.
fn distinct_udp_ports(report: &mut Report<'_>, draft: &OptionsDraft, switches: &[SwitchDraft]) {
    let used = |tunnel| switches.iter().any(|switch| switch.tunnel == Some(tunnel));
    let port = draft.options.vxlan.udp_port;
    if port != draft.options.geneve.udp_port
        || !used(TunnelType::Vxlan)
        || !used(TunnelType::Geneve)
    {
        return;
    }
    // The defaults differ, so at least one is given; the later one is the mistake.
    if let Some(at) = draft.vxlan_port_at.max(draft.geneve_port_at) {
        report.error(at, format!("vxlan and geneve both use UDP port {port}; give each its own"));
    }
}

/// For each host, a switch that needs an underlay address of it: one that it shares with another host through
/// tunnels with end points.
fn needs_underlay<'a>(
    hosts: &[HostDraft],
    switches: &'a [SwitchDraft],
) -> Vec<Option<&'a SwitchDraft>> {
    let mut needs = vec![None; hosts.len()];
    for switch in switches {
        if !switch.tunnel.is_some_and(TunnelType::has_endpoints) {
            continue;
        }
        let mut on = switch.ports.iter().filter_map(|port| port.host);
        let Some(first) = on.clone().next() else { continue };
        if on.all(|host| host == first) {
            continue;
        }
        for host in switch.ports.iter().filter_map(|port| port.host) {
            if let Some(need @ None) = needs.get_mut(host.value()) {
                *need = Some(switch);
            }
        }
    }
    needs
}

/// Reports every host that needs an underlay address of the family that the file asks for and has none.
fn given_family(
    report: &mut Report<'_>,
    family: Family,
    hosts: &[HostDraft],
    switches: &[SwitchDraft],
) {
    for (host, need) in hosts.iter().zip(needs_underlay(hosts, switches)) {
        if let Some(switch) = need.filter(|_| !host.underlay_wrong && !host.has(family)) {
            let example = example_address(family);
            report.error(
                host.at,
                format!(
                    "{} has no {family} underlay address, which its ports on {} need (underlay_family = {}); \
                     add one, such as \"{example}\"",
                    host_name(host), switch_name(switch), family.number(),
                ),
            );
        }
    }
}

/// The family that every host has which needs one, IPv4 before IPv6. `None` when there is no such family, which
/// is reported.
fn default_family(
    report: &mut Report<'_>,
    hosts: &[HostDraft],
    switches: &[SwitchDraft],
) -> Option<Family> {
    let needs = needs_underlay(hosts, switches);
    let needy: Vec<_> =
        hosts.iter().zip(needs).filter_map(|(host, need)| Some((host, need?))).collect();
    let common = [Family::V4, Family::V6]
        .into_iter()
        .find(|&family| needy.iter().all(|(host, _)| host.has(family)));
    if common.is_some() {
        return common;
    }
    let bare: Vec<_> =
        needy.iter().filter(|(host, _)| !host.has(Family::V4) && !host.has(Family::V6)).collect();
    for (host, switch) in &bare {
        if !host.underlay_wrong {
            report.error(
                host.at,
                format!(
                    "{} has no underlay address, which its ports on {} need; add one, such as \
                     underlay = [\"192.0.2.1\"]",
                    host_name(host),
                    switch_name(switch),
                ),
            );
        }
    }
    if needy.iter().any(|(host, _)| host.underlay_wrong) || !bare.is_empty() {
        return None;
    }
    let lacks = |family| needy.iter().find(|(host, _)| !host.has(family)).map(|(host, _)| host);
    if let (Some(no_v4), Some(no_v6)) = (lacks(Family::V4), lacks(Family::V6)) {
        report.error(
            no_v4.at,
            format!(
                "the hosts have no address family in common: {} has no IPv4 and {} no IPv6 underlay \
                 address; give each host one of the same family",
                host_name(no_v4), host_name(no_v6),
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

const fn example_address(family: Family) -> &'static str {
    match family {
        Family::V4 => "192.0.2.1",
        Family::V6 => "2001:db8::1",
    }
}

/// The MTU of the underlay; IPv6 does not run below 1280 bytes.
fn checked_underlay_mtu(
    report: &mut Report<'_>,
    setting: Setting<Sited<u16>>,
    family: Family,
) -> Option<u16> {
    match setting {
        Setting::Default => Some(DEFAULT_UNDERLAY_MTU),
        Setting::Wrong => None,
        Setting::Given(Sited { value, at }) if family == Family::V6 && value < MIN_IPV6_MTU => {
            report.error(
                at,
                format!("`underlay_mtu` is {value}; an IPv6 underlay has at least {MIN_IPV6_MTU} (RFC 8200)"),
            );
            None
        }
        Setting::Given(Sited { value, .. }) => Some(value),
    }
}

/// What the guests' MTU depends on.
struct Underlay {
    family: Family,
    mtu: u16,
    options: TunnelOptions,
}

impl Underlay {
    /// The MTU of a switch's guests, given or default; whatever is wrong with it is reported.
    fn guest_mtu(&self, report: &mut Report<'_>, switch: &SwitchDraft) -> u16 {
        let Some(tunnel) = switch.tunnel else { return 0 };
        let (max, default) = self.mtu_limits(tunnel);
        let (mtu, at) = match switch.mtu {
            Setting::Default => (default, switch.at),
            Setting::Given(Sited { value, at }) => (value, at),
            Setting::Wrong => return 0,
        };
        if mtu > max {
            report.error(at, self.does_not_fit(tunnel, mtu, max));
        } else if mtu < MIN_IPV6_MTU {
            self.check_ipv6(report, switch, tunnel, Sited { value: mtu, at });
        }
        mtu
    }

    /// The largest and the default MTU of guests.
    ///
    /// STT cuts a frame into segments as TCP does, so a guest's packet may be longer than the underlay's MTU;
    /// the limit is the length field. The default is the underlay's MTU: guests keep the usual 1500, and as the
    /// super-packets of TCP are cut to the underlay's MTU anyway, only a lone packet longer than that minus the
    /// overhead pays with a second segment.
    fn mtu_limits(&self, tunnel: TunnelType) -> (u16, u16) {
        let overhead = self.overhead(tunnel);
        if tunnel == TunnelType::Stt {
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
        if tunnel == TunnelType::Stt {
            format!(
                "guest MTU {mtu} + {added} does not fit STT's largest packet, {MAX_STT_PACKET} bytes; at most {max}"
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

    /// Reports an MTU too small for the IPv6 addresses of a switch.
    fn check_ipv6(
        &self,
        report: &mut Report<'_>,
        switch: &SwitchDraft,
        tunnel: TunnelType,
        mtu: Sited<u16>,
    ) {
        let addresses = switch.ports.iter().flat_map(|port| &port.addresses);
        let ipv6 = |sited: &&Sited<crate::IpNet>| matches!(sited.value.addr(), IpAddr::V6(_));
        let Some(Sited { value: net, at }) = addresses.copied().find(|sited| ipv6(&sited)) else {
            return;
        };
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
            format!("an underlay_mtu of at least {needed} leaves room for it")
        };
        report.error(
            mtu.at,
            format!(
                "guest MTU {}{origin} is below {MIN_IPV6_MTU}, which IPv6 needs (RFC 8200), and line \
                 {line} has {net}; {right}",
                mtu.value,
            ),
        );
    }
}
