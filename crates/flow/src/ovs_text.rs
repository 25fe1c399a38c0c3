//! [`OvsText`]: the headers of a packet in the notation of Open vSwitch, as ovn-controller logs
//! them.

use crate::{Field, FlowKey};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use wire::icmp::nd;
use wire::{EtherType, MacAddr, Protocol};

/// Shows the headers of a packet: `icmp,vlan_tci=0x0000,dl_src=02:00:00:00:00:01,...`.
pub struct OvsText<'a>(pub &'a FlowKey);

const TAG_PRESENT: u128 = crate::TAG_PRESENT as u128;
const FLAGS: [&str; 9] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns"];
/// Router and neighbour messages of ICMPv6: solicitation and advertisement.
const NEIGHBOUR: [u128; 2] =
    [nd::NEIGHBOR_SOLICITATION as u128, nd::NEIGHBOR_ADVERTISEMENT as u128];

impl OvsText<'_> {
    fn get(&self, field: Field) -> u128 {
        self.0.get(field)
    }

    /// The casts in the next functions are lossless: fields have the width of the types.
    fn mac(&self, field: Field) -> MacAddr {
        let [_, _, octets @ ..] = (self.get(field) as u64).to_be_bytes();
        MacAddr(octets)
    }

    fn ip4(&self, field: Field) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.get(field) as u32)
    }

    fn ip6(&self, field: Field) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.get(field))
    }

    fn ethernet(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tci = self.get(Field::VlanTci);
        if tci & TAG_PRESENT == 0 {
            f.write_str("vlan_tci=0x0000")?;
        } else {
            write!(f, "dl_vlan={},dl_vlan_pcp={}", tci & 0xfff, tci >> 13 & 7)?;
        }
        write!(f, ",dl_src={},dl_dst={}", self.mac(Field::EthSrc), self.mac(Field::EthDst))
    }

    fn arp(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("arp,")?;
        self.ethernet(f)?;
        let (spa, tpa) = (self.ip4(Field::ArpSpa), self.ip4(Field::ArpTpa));
        let (sha, tha) = (self.mac(Field::ArpSha), self.mac(Field::ArpTha));
        let op = self.get(Field::ArpOp);
        write!(f, ",arp_spa={spa},arp_tpa={tpa},arp_op={op},arp_sha={sha},arp_tha={tha}")
    }

    fn ip(&self, f: &mut fmt::Formatter<'_>, is_v4: bool) -> fmt::Result {
        let protocol = Protocol(self.get(Field::IpProto) as u8);
        let family = if is_v4 { "" } else { "6" };
        let name = match (protocol, is_v4) {
            (Protocol::TCP, _) => Some("tcp"),
            (Protocol::UDP, _) => Some("udp"),
            (Protocol::SCTP, _) => Some("sctp"),
            (Protocol::ICMP, true) | (Protocol::ICMPV6, false) => Some("icmp"),
            _ => None,
        };
        match (name, is_v4) {
            (Some(name), _) => write!(f, "{name}{family},")?,
            (None, true) => f.write_str("ip,")?,
            (None, false) => f.write_str("ipv6,")?,
        }
        self.ethernet(f)?;
        if is_v4 {
            let (src, dst) = (self.ip4(Field::Ip4Src), self.ip4(Field::Ip4Dst));
            write!(f, ",nw_src={src},nw_dst={dst}")?;
        } else {
            let (src, dst) = (self.ip6(Field::Ip6Src), self.ip6(Field::Ip6Dst));
            write!(
                f,
                ",ipv6_src={src},ipv6_dst={dst},ipv6_label={:#07x}",
                self.get(Field::Ip6Label)
            )?;
        }
        if name.is_none() {
            write!(f, ",nw_proto={}", protocol.0)?;
        }
        let fragment = match self.get(Field::IpFrag) {
            0 => "no",
            1 => "first",
            _ => "later",
        };
        write!(
            f,
            ",nw_tos={},nw_ecn={},nw_ttl={},nw_frag={fragment}",
            self.get(Field::IpDscp) << 2,
            self.get(Field::IpEcn),
            self.get(Field::IpTtl)
        )?;
        match name {
            Some("icmp") => self.icmp(f, is_v4),
            Some(_) => {
                write!(f, ",tp_src={},tp_dst={}", self.get(Field::TpSrc), self.get(Field::TpDst))?;
                if protocol == Protocol::TCP { self.flags(f) } else { Ok(()) }
            }
            None => Ok(()),
        }
    }

    fn icmp(&self, f: &mut fmt::Formatter<'_>, is_v4: bool) -> fmt::Result {
        let kind = self.get(Field::IcmpType);
        write!(f, ",icmp_type={kind},icmp_code={}", self.get(Field::IcmpCode))?;
        if is_v4 || !NEIGHBOUR.contains(&kind) {
            return Ok(());
        }
        write!(f, ",nd_target={}", self.ip6(Field::NdTarget))?;
        for (name, field) in [("nd_sll", Field::NdSll), ("nd_tll", Field::NdTll)] {
            write!(f, ",{name}={}", self.mac(field))?;
        }
        Ok(())
    }

    fn flags(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = self.get(Field::TcpFlags);
        let set = FLAGS.iter().enumerate().filter(|(bit, _)| flags >> bit & 1 != 0);
        let set: Vec<&str> = set.map(|(_, name)| *name).collect();
        write!(f, ",tcp_flags={}", if set.is_empty() { "0".to_owned() } else { set.join("|") })
    }
}

impl fmt::Display for OvsText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match EtherType(self.get(Field::EthType) as u16) {
            EtherType::IPV4 => self.ip(f, true),
            EtherType::IPV6 => self.ip(f, false),
            EtherType::ARP => self.arp(f),
            other => {
                self.ethernet(f)?;
                write!(f, ",dl_type=0x{:04x}", other.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(fields: &[(Field, u128)]) -> String {
        let mut key = FlowKey::default();
        key.set(Field::EthSrc, 0x0200_0000_0001);
        key.set(Field::EthDst, 0x0200_0000_0002);
        fields.iter().for_each(|(field, value)| key.set(*field, *value));
        OvsText(&key).to_string()
    }

    #[test]
    fn headers_are_shown_as_by_open_vswitch() {
        let ends = "dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02";
        let ip4 = [
            (Field::EthType, 0x0800),
            (Field::Ip4Src, 0x0a00_0001),
            (Field::Ip4Dst, 0x0a00_0002),
            (Field::IpTtl, 64),
        ];
        let with = |more: &[(Field, u128)]| shown(&[&ip4[..], more].concat());
        let nw = "nw_src=10.0.0.1,nw_dst=10.0.0.2";
        let plain = "nw_tos=0,nw_ecn=0,nw_ttl=64,nw_frag=no";
        assert_eq!(
            with(&[(Field::IpProto, 1), (Field::IcmpType, 8)]),
            format!("icmp,vlan_tci=0x0000,{ends},{nw},{plain},icmp_type=8,icmp_code=0")
        );
        let tcp = [(Field::IpProto, 6), (Field::TpSrc, 7), (Field::TpDst, 80)];
        assert_eq!(
            with(&[&tcp[..], &[(Field::TcpFlags, 0x12), (Field::VlanTci, 0x7005)]].concat()),
            format!(
                "tcp,dl_vlan=5,dl_vlan_pcp=3,{ends},{nw},{plain},tp_src=7,tp_dst=80,tcp_flags=syn|ack"
            )
        );
        assert_eq!(
            with(&[
                (Field::IpProto, 47),
                (Field::IpDscp, 46),
                (Field::IpEcn, 1),
                (Field::IpFrag, 3)
            ]),
            format!(
                "ip,vlan_tci=0x0000,{ends},{nw},nw_proto=47,\
                 nw_tos=184,nw_ecn=1,nw_ttl=64,nw_frag=later"
            )
        );
        assert_eq!(
            shown(&[
                (Field::EthType, 0x86dd),
                (Field::Ip6Src, 1),
                (Field::Ip6Dst, 2),
                (Field::IpProto, 58),
                (Field::IpTtl, 255),
                (Field::IcmpType, 135),
                (Field::NdTarget, 3),
                (Field::NdSll, 0x0200_0000_0009),
            ]),
            format!(
                "icmp6,vlan_tci=0x0000,{ends},ipv6_src=::1,ipv6_dst=::2,ipv6_label=0x00000,\
                 nw_tos=0,nw_ecn=0,nw_ttl=255,nw_frag=no,icmp_type=135,icmp_code=0,\
                 nd_target=::3,nd_sll=02:00:00:00:00:09,nd_tll=00:00:00:00:00:00"
            )
        );
        assert_eq!(
            shown(&[(Field::EthType, 0x0806), (Field::ArpSpa, 0x0a00_0001), (Field::ArpOp, 1)]),
            format!(
                "arp,vlan_tci=0x0000,{ends},arp_spa=10.0.0.1,arp_tpa=0.0.0.0,arp_op=1,\
                 arp_sha=00:00:00:00:00:00,arp_tha=00:00:00:00:00:00"
            )
        );
        assert_eq!(
            shown(&[(Field::EthType, 0x88cc)]),
            format!("vlan_tci=0x0000,{ends},dl_type=0x88cc")
        );
    }
}
