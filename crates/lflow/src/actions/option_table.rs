//! The options that actions know: names, codes and types, as in OVN's tables `DHCP_Options` and
//! `DHCPv6_Options`.

/// An option that an action knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KnownOption {
    /// The name in the language.
    pub name: &'static str,
    /// The code in messages. Some codes stand for other parts of a message.
    pub code: u16,
    /// The type of the value.
    pub kind: ValueKind,
}

/// The type of an option's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueKind {
    /// A truth value, in one byte.
    Bool,
    /// A number of 8 bits.
    Uint8,
    /// A number of 16 bits.
    Uint16,
    /// A number of 32 bits.
    Uint32,
    /// IPv4 addresses.
    Ipv4,
    /// IPv6 addresses.
    Ipv6,
    /// A MAC address.
    Mac,
    /// Pairs of a prefix and a next hop.
    StaticRoutes,
    /// A string.
    Str,
    /// A string, or an IPv4 address.
    HostId,
    /// Domain names, comma-separated.
    Domains,
    /// A domain name.
    Domain,
}

impl ValueKind {
    /// The name in OVN's tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Uint8 => "uint8",
            Self::Uint16 => "uint16",
            Self::Uint32 => "uint32",
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
            Self::Mac => "mac",
            Self::StaticRoutes => "static_routes",
            Self::Str => "str",
            Self::HostId => "host_id",
            Self::Domains => "domains",
            Self::Domain => "domain",
        }
    }
}

const fn option(code: u16, name: &'static str, kind: ValueKind) -> KnownOption {
    KnownOption { name, code, kind }
}

/// The address that a DHCP server offers; not a DHCP option.
pub(super) const OFFER: u16 = 0;
/// The address of the server to boot from; a field of the header.
pub(super) const NEXT_SERVER: u16 = 253;
/// The boot file of clients that are not iPXE, if [`BOOT_FILE`] is given too.
pub(super) const BOOT_FILE_ALT: u16 = 254;
/// The boot file.
pub(super) const BOOT_FILE: u16 = 67;

/// The server identifier of DHCPv6.
pub(super) const SERVER_ID6: u16 = 2;
/// The address that a DHCPv6 server offers.
pub(super) const IA_ADDR: u16 = 5;
/// The name that a DHCPv6 server gives its client.
pub(super) const FQDN: u16 = 39;
/// The boot file URL of DHCPv6, for iPXE clients.
pub(super) const BOOT_FILE_URL: u16 = 59;

/// Parts of a router advertisement. The mode and the preference are flags, the others options.
pub(super) mod ra {
    pub const MODE: u16 = 0;
    pub const PREFERENCE: u16 = 255;
    pub const SLLA: u16 = 1;
    pub const PREFIX: u16 = 3;
    pub const MTU: u16 = 5;
    pub const DNS: u16 = 25;
    pub const DOMAINS: u16 = 31;
    pub const ROUTES: u16 = 24;
}

/// The options of DHCP (RFC 2132 and later RFCs).
pub(super) const DHCP4: &[KnownOption] = &[
    option(OFFER, "offerip", ValueKind::Ipv4),
    option(1, "netmask", ValueKind::Ipv4),
    option(3, "router", ValueKind::Ipv4),
    option(6, "dns_server", ValueKind::Ipv4),
    option(7, "log_server", ValueKind::Ipv4),
    option(9, "lpr_server", ValueKind::Ipv4),
    option(12, "hostname", ValueKind::Str),
    option(15, "domain_name", ValueKind::Str),
    option(16, "swap_server", ValueKind::Ipv4),
    option(19, "ip_forward_enable", ValueKind::Bool),
    option(21, "policy_filter", ValueKind::Ipv4),
    option(23, "default_ttl", ValueKind::Uint8),
    option(26, "mtu", ValueKind::Uint16),
    option(28, "broadcast_address", ValueKind::Ipv4),
    option(31, "router_discovery", ValueKind::Bool),
    option(32, "router_solicitation", ValueKind::Ipv4),
    option(35, "arp_cache_timeout", ValueKind::Uint32),
    option(36, "ethernet_encap", ValueKind::Bool),
    option(37, "tcp_ttl", ValueKind::Uint8),
    option(38, "tcp_keepalive_interval", ValueKind::Uint32),
    option(41, "nis_server", ValueKind::Ipv4),
    option(42, "ntp_server", ValueKind::Ipv4),
    option(44, "netbios_name_server", ValueKind::Ipv4),
    option(46, "netbios_node_type", ValueKind::Uint8),
    option(51, "lease_time", ValueKind::Uint32),
    option(54, "server_id", ValueKind::Ipv4),
    option(58, "T1", ValueKind::Uint32),
    option(59, "T2", ValueKind::Uint32),
    option(66, "tftp_server", ValueKind::HostId),
    option(BOOT_FILE, "bootfile_name", ValueKind::Str),
    option(119, "domain_search_list", ValueKind::Domains),
    option(121, "classless_static_route", ValueKind::StaticRoutes),
    option(150, "tftp_server_address", ValueKind::Ipv4),
    option(210, "path_prefix", ValueKind::Str),
    option(249, "ms_classless_static_route", ValueKind::StaticRoutes),
    option(252, "wpad", ValueKind::Str),
    option(NEXT_SERVER, "next_server", ValueKind::Ipv4),
    option(BOOT_FILE_ALT, "bootfile_name_alt", ValueKind::Str),
];

/// The options of DHCPv6 (RFC 8415 and later RFCs).
pub(super) const DHCP6: &[KnownOption] = &[
    option(SERVER_ID6, "server_id", ValueKind::Mac),
    option(IA_ADDR, "ia_addr", ValueKind::Ipv6),
    option(23, "dns_server", ValueKind::Ipv6),
    option(24, "domain_search", ValueKind::Str),
    option(FQDN, "fqdn", ValueKind::Domain),
    option(BOOT_FILE_URL, "bootfile_name", ValueKind::Str),
    option(BOOT_FILE_ALT, "bootfile_name_alt", ValueKind::Str),
];

/// The options of router advertisements (RFC 4861 and later RFCs).
pub(super) const ND_RA: &[KnownOption] = &[
    option(ra::MODE, "addr_mode", ValueKind::Str),
    option(ra::PREFERENCE, "router_preference", ValueKind::Str),
    option(ra::SLLA, "slla", ValueKind::Mac),
    option(ra::PREFIX, "prefix", ValueKind::Ipv6),
    option(ra::MTU, "mtu", ValueKind::Uint32),
    option(ra::DNS, "rdnss", ValueKind::Ipv6),
    option(ra::DOMAINS, "dnssl", ValueKind::Str),
    option(ra::ROUTES, "route_info", ValueKind::Str),
];

pub(super) const EMPTY_LB_BACKENDS: &[KnownOption] = &[
    option(0, "vip", ValueKind::Str),
    option(1, "protocol", ValueKind::Str),
    option(2, "load_balancer", ValueKind::Str),
];
