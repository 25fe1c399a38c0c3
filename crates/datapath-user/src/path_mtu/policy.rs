//! Decides whether to believe a report of a path MTU: an ICMP "fragmentation needed" or "packet too
//! big".
//!
//! Anybody who reaches the uplink can forge a report. The policy believes a report only if a router
//! could have sent it about a packet of this host, and if its MTU is not below a configured least
//! MTU. A forger who guesses the addresses and the source port of a tunnel can lower its MTU to
//! that least MTU. That makes segments a little shorter, but does not stop the tunnel.
//!
//! The policy does not compare the length of the quoted packet with the MTU of the uplink: a
//! virtual router may quote a super-packet.

use flow::{Carrier, EndpointId, EndpointTable, TunnelSpec};
use std::net::IpAddr;
use std::ops::Range;
use wire::icmp::Quoted;
use wire::{TooBig, icmp::too_big};

/// Why a report is ignored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::path_mtu) enum IgnoreReason {
    /// No tunnel leads from the quoted source to the quoted destination.
    UnknownEndPoint,
    /// No tunnel to that end point has the quoted protocol and destination port.
    WrongTunnel,
    /// Less than eight bytes behind the IP header are quoted, or a later fragment.
    TruncatedQuote,
    /// This host does not send from the quoted source port.
    WrongSourcePort,
    /// This host does not send such a GRE header.
    WrongGreHeader,
    /// The quoted packet does not have "don't fragment", which this host always sets.
    MayFragment,
    /// The quoted packet is not longer than the stated MTU.
    WouldFit,
    /// The stated MTU is below the least path MTU of the configuration.
    BelowLeast,
    /// The stated MTU is not lower than the MTU in use. Packets that were on the way cause this.
    NotLower,
}

impl IgnoreReason {
    /// The name of its counter.
    pub(in crate::path_mtu) const fn name(self) -> &'static str {
        match self {
            Self::UnknownEndPoint => "unknown_end_point",
            Self::WrongTunnel => "wrong_tunnel",
            Self::TruncatedQuote => "truncated_quote",
            Self::WrongSourcePort => "wrong_source_port",
            Self::WrongGreHeader => "wrong_gre_header",
            Self::MayFragment => "may_fragment",
            Self::WouldFit => "would_fit",
            Self::BelowLeast => "below_least_path_mtu",
            Self::NotLower => "not_lower",
        }
    }

    /// The reason in words, for the log.
    pub(in crate::path_mtu) const fn description(self) -> &'static str {
        match self {
            Self::UnknownEndPoint => "it quotes a packet between addresses without a tunnel",
            Self::WrongTunnel => "it quotes a protocol or port of no tunnel to that address",
            Self::TruncatedQuote => "it quotes too little of the packet",
            Self::WrongSourcePort => "it quotes a source port that weft does not use",
            Self::WrongGreHeader => "it quotes a GRE header that weft does not send",
            Self::MayFragment => "it quotes a packet without DF, but weft always sets DF",
            Self::WouldFit => "the quoted packet is not longer than the stated MTU",
            Self::BelowLeast => {
                "the MTU is below `least_path_mtu`; if the path is that narrow, lower the setting"
            }
            Self::NotLower => "the MTU is not lower than the one in use",
        }
    }
}

/// A tunnel to one end point, and the header fields of its packets that a report can quote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::path_mtu) struct Tunnel {
    /// The end point.
    pub(in crate::path_mtu) id: EndpointId,
    /// Its tunnel.
    pub(in crate::path_mtu) spec: TunnelSpec,
    /// The first four bytes of the GRE header: flags, version and protocol type.
    gre_start: Option<[u8; 4]>,
}

impl Tunnel {
    /// The tunnel `spec` from `local` to `remote`.
    pub(in crate::path_mtu) fn new(
        id: EndpointId,
        spec: TunnelSpec,
        local: IpAddr,
        remote: IpAddr,
    ) -> Self {
        let is_gre = spec.tunnel.carrier() == Carrier::Gre;
        Self { id, spec, gre_start: is_gre.then(|| gre_start(&spec, local, remote)).flatten() }
    }

    /// True if the quoted protocol and destination port are this tunnel's. The port is not compared
    /// if the quote is too short to contain it.
    pub(in crate::path_mtu) fn has_carrier(&self, report: &TooBig) -> bool {
        self.spec.tunnel.carrier().protocol() == Some(report.protocol)
            && match report.quoted {
                Quoted::Ports { dst, .. } => dst == self.spec.port,
                Quoted::Gre { .. } | Quoted::Other => true,
            }
    }
}

/// The first four bytes of the GRE header of a tunnel's packets.
fn gre_start(spec: &TunnelSpec, local: IpAddr, remote: IpAddr) -> Option<[u8; 4]> {
    const ETHERNET_LEN: usize = wire::ethernet::HEADER_LEN;
    let mut table = EndpointTable::new(0, 1);
    table.insert(EndpointId(0), spec, local, remote).ok()?;
    let ip_len = if local.is_ipv4() { wire::ipv4::MIN_HEADER_LEN } else { wire::ipv6::HEADER_LEN };
    let template = table.get(EndpointId(0))?.template().as_bytes();
    template.get(ETHERNET_LEN + ip_len..)?.first_chunk().copied()
}

/// The limits of the path MTU of an end point, in bytes of outer packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::path_mtu) struct Limits {
    /// The least path MTU that is believed.
    pub(in crate::path_mtu) least: u16,
    /// The path MTU that was believed before, if any.
    pub(in crate::path_mtu) believed: Option<u16>,
}

/// The path MTU to believe of a tunnel whose [`carrier`](Tunnel::has_carrier) the report quotes. It
/// equals the MTU believed before if the report confirms that.
///
/// # Errors
/// The reason to ignore the report.
pub(in crate::path_mtu) fn judge(
    report: &TooBig,
    tunnel: &Tunnel,
    source_ports: &Range<u32>,
    limits: Limits,
) -> Result<u16, IgnoreReason> {
    match report.quoted {
        Quoted::Ports { src, .. } if !source_ports.contains(&src.into()) => {
            return Err(IgnoreReason::WrongSourcePort);
        }
        Quoted::Gre { start, .. } if tunnel.gre_start != Some(start) => {
            return Err(IgnoreReason::WrongGreHeader);
        }
        Quoted::Ports { .. } | Quoted::Gre { .. } => {}
        Quoted::Other => return Err(IgnoreReason::TruncatedQuote),
    }
    if !report.dont_fragment {
        return Err(IgnoreReason::MayFragment);
    }
    if usize::from(report.mtu) >= report.quoted_len {
        return Err(IgnoreReason::WouldFit);
    }
    if report.mtu < limits.least.max(rfc_least(report.local)) {
        return Err(IgnoreReason::BelowLeast);
    }
    let is_lower = report.mtu < tunnel.spec.path_mtu_bytes;
    if !is_lower || limits.believed.is_some_and(|believed| report.mtu > believed) {
        return Err(IgnoreReason::NotLower);
    }
    Ok(report.mtu)
}

/// The least MTU of a path that the IP version allows.
const fn rfc_least(local: IpAddr) -> u16 {
    match local {
        IpAddr::V4(_) => too_big::MIN_MTU_V4,
        IpAddr::V6(_) => too_big::MIN_MTU_V6,
    }
}

#[cfg(test)]
pub(in crate::path_mtu) mod tests {
    use super::*;
    use flow::{Dscp, Ttl, TunnelType};
    use wire::Protocol;

    const PORTS: Range<u32> = 49_152..49_216;
    const LIMITS: Limits = Limits { least: 1280, believed: None };

    fn host(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    pub(in crate::path_mtu) fn spec(tunnel: TunnelType, port: u16, key: bool) -> TunnelSpec {
        TunnelSpec {
            tunnel,
            port,
            checksum: false,
            ttl: Ttl::default(),
            dscp: Dscp::Inherit,
            key,
            sequence: false,
            path_mtu_bytes: 1500,
            clamp_mss: false,
        }
    }

    fn tunnel(tunnel: TunnelType, port: u16, key: bool) -> Tunnel {
        Tunnel::new(EndpointId(0), spec(tunnel, port, key), host(1), host(2))
    }

    fn report(protocol: Protocol, quoted: Quoted) -> TooBig {
        let (local, remote) = (host(1), host(2));
        TooBig { mtu: 1400, quoted_len: 1500, dont_fragment: true, local, remote, protocol, quoted }
    }

    fn vxlan() -> (Tunnel, TooBig) {
        let quoted = Quoted::Ports { src: 49_160, dst: 4789 };
        (tunnel(TunnelType::Vxlan, 4789, false), report(Protocol::UDP, quoted))
    }

    fn judged(report: &TooBig, tunnel: &Tunnel, limits: Limits) -> Result<u16, IgnoreReason> {
        judge(report, tunnel, &PORTS, limits)
    }

    #[test]
    fn report_is_believed_when_it_quotes_what_the_tunnel_sends() {
        let (vxlan, plain) = vxlan();
        assert_eq!(judged(&plain, &vxlan, LIMITS), Ok(1400));
        for (mtu, believed) in [(1280, None), (1499, None), (1350, Some(1400)), (1400, Some(1400))]
        {
            let report = TooBig { mtu, ..plain };
            assert_eq!(judged(&report, &vxlan, Limits { believed, ..LIMITS }), Ok(mtu), "{mtu}");
        }
        // A virtual router quotes a super-packet.
        let report = TooBig { quoted_len: 65_000, ..plain };
        assert_eq!(judged(&report, &vxlan, LIMITS), Ok(1400));
    }

    #[test]
    fn report_is_ignored_when_the_quoted_packet_is_not_ours() {
        let (vxlan, plain) = vxlan();
        let ports = |src| Quoted::Ports { src, dst: 4789 };
        for (quoted, why) in [
            (ports(49_151), IgnoreReason::WrongSourcePort),
            (ports(49_216), IgnoreReason::WrongSourcePort),
            (ports(4789), IgnoreReason::WrongSourcePort),
            (Quoted::Other, IgnoreReason::TruncatedQuote),
        ] {
            assert_eq!(judged(&TooBig { quoted, ..plain }, &vxlan, LIMITS), Err(why), "{quoted:?}");
        }
        let report = TooBig { dont_fragment: false, ..plain };
        assert_eq!(judged(&report, &vxlan, LIMITS), Err(IgnoreReason::MayFragment));
    }

    #[test]
    fn report_is_ignored_when_its_mtu_is_implausible() {
        let (vxlan, plain) = vxlan();
        for (mtu, quoted_len, why) in [
            (1400, 1400, IgnoreReason::WouldFit),
            (1400, 600, IgnoreReason::WouldFit),
            (1500, 65_000, IgnoreReason::NotLower),
            (9000, 65_000, IgnoreReason::NotLower),
            (1279, 1500, IgnoreReason::BelowLeast),
            (552, 1500, IgnoreReason::BelowLeast),
            (300, 1500, IgnoreReason::BelowLeast),
            (68, 1500, IgnoreReason::BelowLeast),
            (0, 1500, IgnoreReason::BelowLeast),
            (508, 600, IgnoreReason::BelowLeast),
        ] {
            let report = TooBig { mtu, quoted_len, ..plain };
            assert_eq!(judged(&report, &vxlan, LIMITS), Err(why), "{mtu} {quoted_len}");
        }
        let limits = Limits { believed: Some(1350), ..LIMITS };
        assert_eq!(judged(&plain, &vxlan, limits), Err(IgnoreReason::NotLower));
    }

    #[test]
    fn least_mtu_is_that_of_the_configuration_but_1280_with_ipv6() {
        let (vxlan, plain) = vxlan();
        let limits = Limits { least: 576, ..LIMITS };
        assert_eq!(judged(&TooBig { mtu: 576, ..plain }, &vxlan, limits), Ok(576));
        let low = TooBig { mtu: 575, ..plain };
        assert_eq!(judged(&low, &vxlan, limits), Err(IgnoreReason::BelowLeast));
        let local = "fd00::1".parse().unwrap();
        let low = TooBig { mtu: 1279, local, ..plain };
        assert_eq!(judged(&low, &vxlan, limits), Err(IgnoreReason::BelowLeast));
        let limits = Limits { least: 1500, ..LIMITS };
        assert_eq!(judged(&plain, &vxlan, limits), Err(IgnoreReason::BelowLeast));
    }

    #[test]
    fn gre_header_must_have_the_flags_that_are_configured() {
        let quote = |start| report(Protocol::GRE, Quoted::Gre { start, key: None });
        let (plain, keyed) = ([0, 0, 0x65, 0x58], [0x20, 0, 0x65, 0x58]);
        for (key, sent, others) in [
            (false, plain, [keyed, [0, 0, 8, 0], [0, 1, 0x65, 0x58]]),
            (true, keyed, [plain, [0x20, 0, 8, 0], [0x30, 0, 0x65, 0x58]]),
        ] {
            let gre = tunnel(TunnelType::Gre, 0, key);
            assert_eq!(judged(&quote(sent), &gre, LIMITS), Ok(1400));
            for other in others {
                let result = judged(&quote(other), &gre, LIMITS);
                assert_eq!(result, Err(IgnoreReason::WrongGreHeader), "{other:?}");
            }
        }
    }

    #[test]
    fn carrier_is_protocol_and_destination_port() {
        let (vxlan, plain) = vxlan();
        assert!(vxlan.has_carrier(&plain));
        let other = Quoted::Ports { src: 49_160, dst: 6081 };
        assert!(!vxlan.has_carrier(&TooBig { quoted: other, ..plain }));
        assert!(!vxlan.has_carrier(&TooBig { protocol: Protocol::TCP, ..plain }));
        assert!(
            tunnel(TunnelType::Stt, 4789, false)
                .has_carrier(&TooBig { protocol: Protocol::TCP, ..plain })
        );
    }
}
