//! Router advertisements (RFC 4861 section 6.2), the answers to router solicitations.

use crate::domain_name::{self, BadDomainName};
use std::net::Ipv6Addr;
use wire::NdRepr;
use wire::icmp::nd::{NdOption, NdOptions};

/// The longest list of options, in bytes. With all headers, the message fits the minimum MTU of
/// IPv6, 1,280 bytes.
pub const MAX_OPTIONS_LEN: usize = 1200;

/// The method by which hosts of the link get their addresses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AddressMode {
    /// By stateless autoconfiguration (RFC 4862).
    Slaac,
    /// By stateless autoconfiguration, and other settings by DHCPv6.
    DhcpStateless,
    /// By DHCPv6.
    DhcpStateful,
}

/// The preference of a router or route (RFC 4191 section 2.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Preference {
    /// Preferred to all others.
    High,
    /// The default.
    #[default]
    Medium,
    /// Used only if there is no other.
    Low,
}

impl Preference {
    /// The preference bits in a flags byte.
    const fn bits(self) -> u8 {
        match self {
            Self::High => 0x08,
            Self::Medium => 0,
            Self::Low => 0x18,
        }
    }
}

/// The content of a router's advertisements.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Router {
    flags: u8,
    /// The options, encoded. They are valid.
    options: Vec<u8>,
}

/// An option that cannot be sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadOption {
    /// All options need more than [`MAX_OPTIONS_LEN`].
    #[error("the options need over {MAX_OPTIONS_LEN} bytes")]
    TooLong,
    /// A name is invalid.
    #[error(transparent)]
    Name(#[from] BadDomainName),
}

/// The lifetime of routes and names: infinite.
const INFINITY: [u8; 4] = [0xff; 4];
const MANAGED: u8 = 0x80;
const OTHER_CONFIG: u8 = 0x40;

impl Router {
    /// A router that advertises itself as the default router, without options.
    pub const fn new(mode: AddressMode, preference: Preference) -> Self {
        let mode = match mode {
            AddressMode::Slaac => 0,
            AddressMode::DhcpStateless => OTHER_CONFIG,
            AddressMode::DhcpStateful => MANAGED,
        };
        Self { flags: mode | preference.bits(), options: Vec::new() }
    }

    /// Adds an option.
    ///
    /// # Errors
    /// [`BadOption::TooLong`].
    pub fn add(&mut self, option: NdOption<'_>) -> Result<(), BadOption> {
        let start = self.options.len();
        let end = start + option.wire_len();
        if end > MAX_OPTIONS_LEN {
            return Err(BadOption::TooLong);
        }
        self.options.resize(end, 0);
        if NdOptions::write(&[option], &mut self.options[start..]).is_err() {
            self.options.truncate(start);
            return Err(BadOption::TooLong);
        }
        Ok(())
    }

    /// Adds the addresses of DNS servers (RFC 8106 section 5.1).
    ///
    /// # Errors
    /// [`BadOption::TooLong`].
    pub fn add_dns_servers(&mut self, servers: &[Ipv6Addr]) -> Result<(), BadOption> {
        const RDNSS: u8 = 25;
        let mut data = [&[0, 0], &INFINITY[..]].concat();
        data.extend(servers.iter().flat_map(|server| server.octets()));
        self.add(NdOption::Unknown { kind: RDNSS, data: &data })
    }

    /// Adds the DNS search domains (RFC 8106 section 5.2).
    ///
    /// # Errors
    /// [`BadOption`].
    pub fn add_domains<'a>(
        &mut self,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), BadOption> {
        const DNSSL: u8 = 31;
        let mut data = [&[0, 0], &INFINITY[..]].concat();
        names.into_iter().try_for_each(|name| domain_name::encode(name, &mut data))?;
        data.resize((data.len() + 2).next_multiple_of(8) - 2, 0);
        self.add(NdOption::Unknown { kind: DNSSL, data: &data })
    }

    /// Adds a route via this router (RFC 4191 section 2.3). A prefix length over 128 counts as 128.
    ///
    /// # Errors
    /// [`BadOption::TooLong`].
    pub fn add_route(
        &mut self,
        (prefix, len): (Ipv6Addr, u8),
        preference: Preference,
    ) -> Result<(), BadOption> {
        const ROUTE: u8 = 24;
        let len = len.min(128);
        let prefix = prefix.octets();
        let prefix = &prefix[..usize::from(len).div_ceil(64) * 8];
        let data = [&[len, preference.bits()], &INFINITY[..], prefix].concat();
        self.add(NdOption::Unknown { kind: ROUTE, data: &data })
    }

    /// The advertisement.
    pub fn advertisement(&self) -> NdRepr<'_> {
        NdRepr::RouterAdvertisement {
            hop_limit: 255,
            flags: self.flags,
            // RFC 8319 section 4.2 permits lifetimes up to this value.
            lifetime_s: u16::MAX,
            reachable_ms: 0,
            retransmit_ms: 0,
            options: NdOptions::new(&self.options).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::MacAddr;
    use wire::icmp::nd::NdPrefix;

    #[test]
    fn options_are_encoded_as_their_rfcs_say() {
        let mut router = Router::new(AddressMode::DhcpStateless, Preference::Low);
        let prefix = NdPrefix {
            len: 64,
            on_link: true,
            autonomous: true,
            valid_lifetime_s: u32::MAX,
            preferred_lifetime_s: u32::MAX,
            prefix: "fd77::".parse().unwrap(),
        };
        let known = [
            NdOption::SourceLinkLayer(MacAddr([2, 0, 0, 0, 0, 1])),
            NdOption::Mtu(1400),
            NdOption::Prefix(prefix),
        ];
        known.iter().for_each(|option| router.add(*option).unwrap());
        router.add_dns_servers(&["fd77::53".parse().unwrap()]).unwrap();
        router.add_domains(["a.b", "c"]).unwrap();
        for (route, preference) in [
            ("fd01::/65", Preference::High),
            ("fd02::/64", Preference::Low),
            ("::/0", Preference::Medium),
        ] {
            let (prefix, len) = route.split_once('/').unwrap();
            let route = (prefix.parse().unwrap(), len.parse().unwrap());
            router.add_route(route, preference).unwrap();
        }
        let NdRepr::RouterAdvertisement { flags: 0x58, lifetime_s: 65535, options, .. } =
            router.advertisement()
        else {
            panic!("{:?}", router.advertisement())
        };
        let options: Vec<_> = options.iter().collect();
        assert_eq!(options[..3], known);
        let other = |option: &NdOption<'_>| match option {
            NdOption::Unknown { kind, data } => (*kind, data.to_vec()),
            known => panic!("{known:?}"),
        };
        let other: Vec<_> = options[3..].iter().map(other).collect();
        let forever = [0xff; 4];
        let mut fd77 = [0; 16];
        (fd77[0], fd77[1], fd77[15]) = (0xfd, 0x77, 0x53);
        let fd01 = [&[0xfd, 1][..], &[0; 14]].concat();
        assert_eq!(
            other,
            [
                (25, [&[0, 0][..], &forever, &fd77].concat()),
                (31, [&[0, 0][..], &forever, b"\x01a\x01b\0\x01c\0"].concat()),
                (24, [&[65, 8][..], &forever, &fd01].concat()),
                (24, [&[64, 0x18][..], &forever, &[0xfd, 2, 0, 0, 0, 0, 0, 0]].concat()),
                (24, [&[0, 0][..], &forever].concat()),
            ]
        );
    }

    #[test]
    fn options_that_are_too_long_are_refused() {
        let mut router = Router::new(AddressMode::Slaac, Preference::Medium);
        let servers = [Ipv6Addr::LOCALHOST; 74];
        router.add_dns_servers(&servers).unwrap();
        let before = router.clone();
        assert_eq!(router.add_dns_servers(&servers[..1]), Err(BadOption::TooLong));
        assert!(matches!(router.add_domains(["a..b"]), Err(BadOption::Name(_))));
        assert_eq!(router, before);
        router.add(NdOption::Mtu(1500)).unwrap();
    }
}
