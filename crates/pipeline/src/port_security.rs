//! Port security: which addresses a logical port may send from and receive for (OVN's `port_security` column and
//! `check_in_port_sec`, `check_out_port_sec`).
//!
//! The rules are those that ovn-controller 23.03 installs, with their peculiarities: neighbour solicitations are not checked for
//! the link-layer address in them, an advertisement that names a port's link-local address may come from any of its MAC
//! addresses, and one with a hop limit below 255, which no receiver accepts (RFC 4861 section 7.1.2), passes.

mod parse;
#[cfg(test)]
mod tests;

use crate::op::Direction;
use crate::recorder::Recorder;
use flow::Field;
pub use parse::{PortSecurityError, PortSecurityProblem};
use wire::EtherType;

/// The addresses that a logical port may use; by default all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortSecurity {
    entries: Box<[Entry]>,
}

/// A MAC address, and the IP addresses that belong to it: all when none is given.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    mac: u128,
    v4: Box<[Address]>,
    v6: Box<[Address]>,
}

/// One address, or all of a subnet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Address {
    value: u128,
    mask: u128,
    /// The subnet's broadcast address, for which the port may receive; of IPv4 addresses with a prefix length.
    broadcast: Option<u128>,
}

const IP_PROTO_UDP: u128 = 17;
const IP_PROTO_ICMPV6: u128 = 58;
/// Multicast listener report (RFC 2710) and its second version (RFC 3810).
const MLD_REPORTS: [u128; 2] = [131, 143];
const NEIGHBOUR_SOLICITATION: u128 = 135;
const NEIGHBOUR_ADVERTISEMENT: u128 = 136;

impl PortSecurity {
    /// True when the port must not send (ingress) or receive (egress) the packet.
    pub fn forbids(&self, direction: Direction, key: &mut impl Recorder) -> bool {
        if self.entries.is_empty() {
            return false;
        }
        match direction {
            Direction::Ingress => !self.may_send(key),
            Direction::Egress => !self.may_receive(key),
        }
    }

    fn may_send(&self, key: &mut impl Recorder) -> bool {
        match ethertype(key) {
            EtherType::ARP => self.entries.iter().any(|entry| entry.may_send_arp(key)),
            EtherType::IPV4 => self.entries.iter().any(|entry| entry.may_send_ipv4(key)),
            EtherType::IPV6 => {
                self.entries.iter().any(|entry| entry.may_send_ipv6(key)) && self.may_advertise(key)
            }
            _ => self.entries.iter().any(|entry| !entry.is_restricted() && entry.is_source(key)),
        }
    }

    /// False for a neighbour advertisement for an address that is not the port's.
    fn may_advertise(&self, key: &mut impl Recorder) -> bool {
        if key.read_field(Field::IpProto) != IP_PROTO_ICMPV6
            || key.read_field(Field::IcmpType) != NEIGHBOUR_ADVERTISEMENT
        {
            return true;
        }
        let is_valid = key.read_field(Field::IpTtl) == 255;
        !is_valid
            || key.read_field(Field::IcmpCode) == 0
                && self.entries.iter().any(|entry| entry.may_advertise(key))
    }

    fn may_receive(&self, key: &mut impl Recorder) -> bool {
        let (mut is_known, mut is_restricted) = (false, false);
        for entry in &self.entries {
            if equals(key, Field::EthDst, entry.mac) {
                is_known = true;
                is_restricted |= entry.is_restricted();
            }
        }
        if !is_restricted {
            return is_known;
        }
        // What is said of one MAC address twice is allowed by either, but for an entry without IP addresses.
        let restricted = self.entries.iter().filter(|entry| entry.is_restricted());
        match ethertype(key) {
            EtherType::IPV4 => restricted.into_iter().any(|entry| entry.may_receive_ipv4(key)),
            EtherType::IPV6 => restricted.into_iter().any(|entry| entry.may_receive_ipv6(key)),
            _ => true,
        }
    }
}

impl Entry {
    fn is_restricted(&self) -> bool {
        !self.v4.is_empty() || !self.v6.is_empty()
    }

    fn is_source(&self, key: &mut impl Recorder) -> bool {
        equals(key, Field::EthSrc, self.mac)
    }

    fn is_target(&self, key: &mut impl Recorder) -> bool {
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

    /// Before [`PortSecurity::may_advertise`].
    fn may_send_ipv6(&self, key: &mut impl Recorder) -> bool {
        if !self.is_restricted() {
            return self.is_source(key);
        }
        !self.v6.is_empty()
            && self.is_source(key)
            && (contains(&self.v6, key, Field::Ip6Src)
                || equals(key, Field::Ip6Src, self.link_local())
                || is_without_address_yet(key))
    }

    /// Of a neighbour advertisement that receivers would accept.
    fn may_advertise(&self, key: &mut impl Recorder) -> bool {
        let has_own_mac = equals(key, Field::NdTll, 0) || equals(key, Field::NdTll, self.mac);
        has_own_mac
            && (self.v6.is_empty()
                || equals(key, Field::NdTarget, self.link_local())
                || self.is_source(key) && contains(&self.v6, key, Field::NdTarget))
    }

    fn may_receive_ipv4(&self, key: &mut impl Recorder) -> bool {
        !self.v4.is_empty()
            && self.is_target(key)
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
            && self.is_target(key)
            && (is_ipv6_multicast(key)
                || contains(&self.v6, key, Field::Ip6Dst)
                || equals(key, Field::Ip6Dst, self.link_local()))
    }

    /// The link-local address made of the MAC address (RFC 4291 appendix A).
    fn link_local(&self) -> u128 {
        const UNIVERSAL_BIT: u128 = 1 << 57;
        let (vendor, device) = (self.mac >> 24, self.mac & 0xff_ffff);
        0xfe80 << 112 | (vendor << 40 | 0xff_fe << 24 | device) ^ UNIVERSAL_BIT
    }
}

fn ethertype(key: &mut impl Recorder) -> EtherType {
    // 16 bits wide.
    EtherType(key.read_field(Field::EthType) as u16)
}

/// True when the field has that value. Reads byte by byte and no further than the first that differs, so that one decision
/// serves many packets with wrong addresses.
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

/// A client that has no address yet (RFC 2131 section 4.1).
fn is_dhcp_request(key: &mut impl Recorder) -> bool {
    equals(key, Field::Ip4Src, 0)
        && equals(key, Field::Ip4Dst, u32::MAX.into())
        && key.read_field(Field::IpProto) == IP_PROTO_UDP
        && key.read_field(Field::TpSrc) == 68
        && key.read_field(Field::TpDst) == 67
}

/// A node that has no address yet: it joins groups, and asks whether an address is in use (RFC 4862 section 5.4.2).
fn is_without_address_yet(key: &mut impl Recorder) -> bool {
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
