//! Port security: the addresses that a logical port may send from and receive for (OVN's
//! `port_security` column with `check_in_port_sec` and `check_out_port_sec`).
//!
//! The rules are those that ovn-controller 23.03 installs, including these peculiarities:
//!
//! - The link-layer address inside a neighbour solicitation is not checked.
//! - An advertisement for the port's link-local address may come from any of its MAC addresses.
//! - An advertisement with a hop limit below 255 passes. No receiver accepts it (RFC 4861 section
//!   7.1.2).

mod parse;
#[cfg(test)]
mod tests;

use crate::op::Direction;
use crate::recorder::Recorder;
use flow::Field;
pub use parse::{PortSecurityError, PortSecurityProblem};
use wire::EtherType;

/// The addresses that a logical port may use; the default allows all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortSecurity {
    address_sets: Box<[AddressSet]>,
}

/// A MAC address and the IP addresses that may be used with it; without any, all may be used.
#[derive(Clone, PartialEq, Eq, Debug)]
struct AddressSet {
    mac: u128,
    v4: Box<[Address]>,
    v6: Box<[Address]>,
}

/// One address, or all addresses of a subnet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Address {
    value: u128,
    mask: u128,
    /// The subnet's broadcast address, which the port may also receive for. Set for an IPv4 host
    /// address with a prefix length.
    broadcast: Option<u128>,
}

const IP_PROTO_UDP: u128 = 17;
const IP_PROTO_ICMPV6: u128 = 58;
/// ICMPv6 types of multicast listener reports, version 1 (RFC 2710) and 2 (RFC 3810).
const MLD_REPORTS: [u128; 2] = [131, 143];
const NEIGHBOUR_SOLICITATION: u128 = 135;
const NEIGHBOUR_ADVERTISEMENT: u128 = 136;

impl PortSecurity {
    /// True when the port must not send (ingress) or must not receive (egress) the packet.
    pub fn forbids(&self, direction: Direction, key: &mut impl Recorder) -> bool {
        if self.address_sets.is_empty() {
            return false;
        }
        match direction {
            Direction::Ingress => !self.may_send(key),
            Direction::Egress => !self.may_receive(key),
        }
    }

    fn may_send(&self, key: &mut impl Recorder) -> bool {
        match ethertype(key) {
            EtherType::ARP => self.address_sets.iter().any(|set| set.may_send_arp(key)),
            EtherType::IPV4 => self.address_sets.iter().any(|set| set.may_send_ipv4(key)),
            EtherType::IPV6 => {
                self.address_sets.iter().any(|set| set.may_send_ipv6(key))
                    && self.may_advertise(key)
            }
            _ => self.address_sets.iter().any(|set| !set.is_restricted() && set.is_source(key)),
        }
    }

    /// False for a neighbour advertisement of an address that the port may not use.
    fn may_advertise(&self, key: &mut impl Recorder) -> bool {
        if key.read_field(Field::IpProto) != IP_PROTO_ICMPV6
            || key.read_field(Field::IcmpType) != NEIGHBOUR_ADVERTISEMENT
        {
            return true;
        }
        let is_valid = key.read_field(Field::IpTtl) == 255;
        !is_valid
            || key.read_field(Field::IcmpCode) == 0
                && self.address_sets.iter().any(|set| set.may_advertise(key))
    }

    fn may_receive(&self, key: &mut impl Recorder) -> bool {
        let (mut is_known, mut is_restricted) = (false, false);
        for set in &self.address_sets {
            if equals(key, Field::EthDst, set.mac) {
                is_known = true;
                is_restricted |= set.is_restricted();
            }
        }
        if !is_restricted {
            return is_known;
        }
        // If one MAC address is listed twice, either set allows a packet. If one of the sets has IP
        // addresses, the sets without any are ignored.
        let restricted = self.address_sets.iter().filter(|set| set.is_restricted());
        match ethertype(key) {
            EtherType::IPV4 => restricted.into_iter().any(|set| set.may_receive_ipv4(key)),
            EtherType::IPV6 => restricted.into_iter().any(|set| set.may_receive_ipv6(key)),
            _ => true,
        }
    }
}

impl AddressSet {
    fn is_restricted(&self) -> bool {
        !self.v4.is_empty() || !self.v6.is_empty()
    }

    fn is_source(&self, key: &mut impl Recorder) -> bool {
        equals(key, Field::EthSrc, self.mac)
    }

    fn is_destination(&self, key: &mut impl Recorder) -> bool {
        equals(key, Field::EthDst, self.mac)
    }

    fn may_send_arp(&self, key: &mut impl Recorder) -> bool {
        (!self.v4.is_empty() || self.v6.is_empty())
            && self.is_source(key)
            && equals(key, Field::ArpSha, self.mac)
            && (self.v4.is_empty() || contains(&self.v4, key, Field::ArpSpa))
    }

    fn may_send_ipv4(&self, key: &mut impl Recorder) -> bool {
        if !self.is_restricted() {
            return self.is_source(key);
        }
        !self.v4.is_empty()
            && self.is_source(key)
            && (contains(&self.v4, key, Field::Ip4Src) || is_dhcp_request(key))
    }

    /// Neighbour advertisements are also checked by [`PortSecurity::may_advertise`].
    fn may_send_ipv6(&self, key: &mut impl Recorder) -> bool {
        if !self.is_restricted() {
            return self.is_source(key);
        }
        !self.v6.is_empty()
            && self.is_source(key)
            && (contains(&self.v6, key, Field::Ip6Src)
                || equals(key, Field::Ip6Src, self.link_local())
                || is_address_configuration(key))
    }

    /// Checks a valid neighbour advertisement, that is, one with hop limit 255.
    fn may_advertise(&self, key: &mut impl Recorder) -> bool {
        let has_own_mac = equals(key, Field::NdTll, 0) || equals(key, Field::NdTll, self.mac);
        has_own_mac
            && (self.v6.is_empty()
                || equals(key, Field::NdTarget, self.link_local())
                || self.is_source(key) && contains(&self.v6, key, Field::NdTarget))
    }

    fn may_receive_ipv4(&self, key: &mut impl Recorder) -> bool {
        !self.v4.is_empty()
            && self.is_destination(key)
            && (is_ipv4_multicast(key)
                || contains(&self.v4, key, Field::Ip4Dst)
                || self.is_broadcast(key)
                || equals(key, Field::Ip4Dst, u32::MAX.into()))
    }

    fn is_broadcast(&self, key: &mut impl Recorder) -> bool {
        let mut broadcasts = self.v4.iter().filter_map(|address| address.broadcast);
        broadcasts.any(|address| equals(key, Field::Ip4Dst, address))
    }

    fn may_receive_ipv6(&self, key: &mut impl Recorder) -> bool {
        !self.v6.is_empty()
            && self.is_destination(key)
            && (is_ipv6_multicast(key)
                || contains(&self.v6, key, Field::Ip6Dst)
                || equals(key, Field::Ip6Dst, self.link_local()))
    }

    /// The link-local address derived from the MAC address (RFC 4291 appendix A).
    fn link_local(&self) -> u128 {
        const UNIVERSAL_BIT: u128 = 1 << 57;
        let (vendor, device) = (self.mac >> 24, self.mac & 0xff_ffff);
        0xfe80 << 112 | (vendor << 40 | 0xff_fe << 24 | device) ^ UNIVERSAL_BIT
    }
}

fn ethertype(key: &mut impl Recorder) -> EtherType {
    // The cast is lossless: the field is 16 bits wide.
    EtherType(key.read_field(Field::EthType) as u16)
}

/// True when the field has this value. Reads byte by byte and stops at the first difference, so
/// that one megaflow drops many packets with wrong addresses.
fn equals(key: &mut impl Recorder, field: Field, value: u128) -> bool {
    equals_masked(key, field, value, field.all_ones())
}

fn equals_masked(key: &mut impl Recorder, field: Field, value: u128, mask: u128) -> bool {
    (0..field.width()).step_by(8).rev().all(|shift| {
        let part = mask & 0xff << shift;
        part == 0 || key.read(field, part) == value & part
    })
}

fn contains(addresses: &[Address], key: &mut impl Recorder, field: Field) -> bool {
    addresses.iter().any(|address| equals_masked(key, field, address.value, address.mask))
}

/// True for a message of a DHCP client that has no address yet (RFC 2131 section 4.1).
fn is_dhcp_request(key: &mut impl Recorder) -> bool {
    equals(key, Field::Ip4Src, 0)
        && equals(key, Field::Ip4Dst, u32::MAX.into())
        && key.read_field(Field::IpProto) == IP_PROTO_UDP
        && key.read_field(Field::TpSrc) == 68
        && key.read_field(Field::TpDst) == 67
}

/// True for a message of a node that has no address yet: it joins multicast groups and runs
/// duplicate address detection (RFC 4862 section 5.4.2).
fn is_address_configuration(key: &mut impl Recorder) -> bool {
    const LINK_LOCAL_SCOPE: u128 = 0xff02 << 112;
    equals(key, Field::Ip6Src, 0)
        && equals_masked(key, Field::Ip6Dst, LINK_LOCAL_SCOPE, 0xffff << 112)
        && key.read_field(Field::IpProto) == IP_PROTO_ICMPV6
        && key.read_field(Field::IcmpCode) == 0
        && {
            let kind = key.read_field(Field::IcmpType);
            kind == NEIGHBOUR_SOLICITATION || MLD_REPORTS.contains(&kind)
        }
}

fn is_ipv4_multicast(key: &mut impl Recorder) -> bool {
    key.read(Field::Ip4Dst, 0xf000_0000) == 0xe000_0000
}

fn is_ipv6_multicast(key: &mut impl Recorder) -> bool {
    key.read(Field::Ip6Dst, 0xff << 120) == 0xff << 120
}
