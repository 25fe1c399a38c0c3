//! Compiles the actions that make the switch reply to a guest: `put_dhcp_opts`, `put_dhcpv6_opts`
//! and `put_nd_ra_opts`.

use super::ast::OptionProtocol;
use super::option_table::{
    BOOT_FILE, BOOT_FILE_ALT, BOOT_FILE_URL, FQDN, IA_ADDR, NEXT_SERVER, OFFER, SERVER_ID6,
    ValueKind, ra,
};
use super::options::ActionOption;
use crate::token::Constant;
use flow::Subfield;
use pipeline::Op;
use services::router::{AddressMode, BadOption, Preference, Router};
use services::{Service, dhcp4, dhcp6};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use wire::MacAddr;
use wire::icmp::nd::{NdOption, NdPrefix};

/// Compiles a `put_*_opts` action. When it is executed, the switch sets `result_bit` to 1 if it
/// replies, else to 0. Returns [`Op::Unsupported`] with the reason if weft cannot build the reply.
pub(super) fn put_options(
    result_bit: Subfield,
    protocol: OptionProtocol,
    options: &[ActionOption],
) -> Op {
    let service = match protocol {
        OptionProtocol::Dhcp4 => dhcp4_server(options).map(Service::Dhcp4),
        OptionProtocol::Dhcp6 => dhcp6_server(options).map(Service::Dhcp6),
        OptionProtocol::NdRa => router(options).map(Service::Router),
    };
    match service {
        Ok(service) => Op::Serve { to: result_bit, service: Arc::new(service) },
        Err(problem) => Op::Unsupported(problem),
    }
}

fn dhcp4_server(options: &[ActionOption]) -> Result<dhcp4::Server, &'static str> {
    let offer = find(options, OFFER).and_then(|option| option.numbers().first());
    let offer = offer.ok_or("put_dhcp_opts without offerip")?;
    let mut server = dhcp4::Server::new(ip4(offer));
    for option in options {
        add_dhcp4_option(&mut server, option)?;
    }
    let file = |code| text(options, code).map(str::as_bytes);
    server.set_boot_files(file(BOOT_FILE), file(BOOT_FILE_ALT));
    server.check().map_err(|_| "put_dhcp_opts with options that are too long")?;
    Ok(server)
}

fn add_dhcp4_option(server: &mut dhcp4::Server, option: &ActionOption) -> Result<(), &'static str> {
    let (numbers, text) = (option.numbers(), option.first_text());
    let number = numbers.first().map_or(0, |number| number.value);
    // Bits beyond the width of an option are cut off, as in OVN.
    match (option.known.code, option.known.kind) {
        (OFFER | BOOT_FILE | BOOT_FILE_ALT, _) => {}
        (NEXT_SERVER, _) => server.set_next_server(Ipv4Addr::from_bits(number as u32)),
        (code, kind) => {
            // The cast is lossless: the codes of DHCP have 8 bits.
            let code = code as u8;
            match kind {
                ValueKind::Bool | ValueKind::Uint8 => server.add(code, &[number as u8]),
                ValueKind::Uint16 => server.add(code, &(number as u16).to_be_bytes()),
                ValueKind::Uint32 => server.add(code, &(number as u32).to_be_bytes()),
                ValueKind::StaticRoutes => server.add_routes(code, &routes(numbers)),
                ValueKind::Domains | ValueKind::Domain => {
                    let added = server.add_domains(code, comma_separated(text.unwrap_or_default()));
                    added.map_err(|_| "put_dhcp_opts with an invalid domain name")?;
                }
                ValueKind::Ipv4 | ValueKind::HostId | ValueKind::Str => match text {
                    Some(text) => server.add(code, text.as_bytes()),
                    None => {
                        let addresses: Vec<Ipv4Addr> = numbers.iter().map(ip4).collect();
                        server.add_addresses(code, &addresses);
                    }
                },
                ValueKind::Ipv6 | ValueKind::Mac => {
                    return Err(
                        "put_dhcp_opts with an option whose value is an IPv6 or MAC address",
                    );
                }
            }
        }
    }
    Ok(())
}

const fn ip4(number: &Constant) -> Ipv4Addr {
    Ipv4Addr::from_bits(number.value as u32)
}

/// Pairs of a prefix and a next hop. Skips a last prefix without a next hop.
fn routes(numbers: &[Constant]) -> Vec<dhcp4::Route> {
    let pairs = numbers.as_chunks::<2>().0.iter();
    let route = |[prefix, gateway]: &[Constant; 2]| dhcp4::Route {
        destination: ip4(prefix),
        // The cast is lossless: a mask of IPv4 has at most 32 ones.
        prefix_len: prefix.mask.map_or(32, |mask| (mask as u32).count_ones() as u8),
        gateway: ip4(gateway),
    };
    pairs.map(route).collect()
}

fn find(options: &[ActionOption], code: u16) -> Option<&ActionOption> {
    options.iter().find(|option| option.known.code == code)
}

fn text(options: &[ActionOption], code: u16) -> Option<&str> {
    find(options, code)?.first_text()
}

/// The elements of a comma-separated list, without the white space around them.
fn comma_separated(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim)
}

const fn ip6(number: &Constant) -> Ipv6Addr {
    Ipv6Addr::from_bits(number.value)
}

fn mac(option: &ActionOption) -> Option<MacAddr> {
    let [_, _, octets @ ..] = (option.numbers().first()?.value as u64).to_be_bytes();
    Some(MacAddr(octets))
}

fn dhcp6_server(options: &[ActionOption]) -> Result<dhcp6::Server, &'static str> {
    const BAD_NAME: &str = "put_dhcpv6_opts with an invalid domain name";
    let address = find(options, IA_ADDR).and_then(|option| option.numbers().first()).map(ip6);
    let id = find(options, SERVER_ID6).and_then(mac).ok_or("put_dhcpv6_opts without server_id")?;
    let mut server = dhcp6::Server::new(id, address);
    for option in options {
        match (option.known.code, option.known.kind) {
            (IA_ADDR | SERVER_ID6 | BOOT_FILE_URL | BOOT_FILE_ALT, _) => {}
            (FQDN, _) => {
                let name = option.first_text().unwrap_or_default();
                server.set_name(name).map_err(|_| BAD_NAME)?;
            }
            (code, ValueKind::Ipv6) => {
                let addresses: Vec<Ipv6Addr> = option.numbers().iter().map(ip6).collect();
                server.add_addresses(code, &addresses);
            }
            (code, _) => {
                let list = option.first_text().unwrap_or_default();
                server.add_domains(code, comma_separated(list)).map_err(|_| BAD_NAME)?;
            }
        }
    }
    let file = |code| text(options, code).map(str::as_bytes);
    server.set_boot_files(file(BOOT_FILE_URL), file(BOOT_FILE_ALT));
    server.check().map_err(|_| "put_dhcpv6_opts with options that are too long")?;
    Ok(server)
}

fn router(options: &[ActionOption]) -> Result<Router, &'static str> {
    let mode = match text(options, ra::MODE) {
        Some("dhcpv6_stateful") => AddressMode::DhcpStateful,
        Some("dhcpv6_stateless") => AddressMode::DhcpStateless,
        _ => AddressMode::Slaac,
    };
    let preferred = text(options, ra::PREFERENCE).and_then(preference).unwrap_or_default();
    let mut router = Router::new(mode, preferred);
    for option in options {
        add_ra_option(&mut router, mode, option).map_err(|problem| match problem {
            BadOption::TooLong => "put_nd_ra_opts with options that are too long",
            BadOption::Name(_) => "put_nd_ra_opts with an invalid domain name",
        })?;
    }
    Ok(router)
}

fn preference(name: &str) -> Option<Preference> {
    match name {
        "HIGH" => Some(Preference::High),
        "MEDIUM" => Some(Preference::Medium),
        "LOW" => Some(Preference::Low),
        _ => None,
    }
}

fn add_ra_option(
    router: &mut Router,
    mode: AddressMode,
    option: &ActionOption,
) -> Result<(), BadOption> {
    let number = option.numbers().first();
    let list = option.first_text().unwrap_or_default();
    match option.known.code {
        ra::SLLA => mac(option).map_or(Ok(()), |mac| router.add(NdOption::SourceLinkLayer(mac))),
        ra::MTU => number.map_or(Ok(()), |number| router.add(NdOption::Mtu(number.value as u32))),
        ra::PREFIX => number.map_or(Ok(()), |number| {
            router.add(NdOption::Prefix(NdPrefix {
                // The cast is lossless: a mask has at most 128 ones.
                len: number.mask.map_or(128, u128::count_ones) as u8,
                on_link: true,
                autonomous: mode != AddressMode::DhcpStateful,
                valid_lifetime_s: u32::MAX,
                preferred_lifetime_s: u32::MAX,
                prefix: ip6(number),
            }))
        }),
        ra::DNS => {
            let servers: Vec<Ipv6Addr> = option.numbers().iter().map(ip6).collect();
            router.add_dns_servers(&servers)
        }
        ra::DOMAINS => router.add_domains(comma_separated(list)),
        // Skips routes that do not parse, as OVN does.
        ra::ROUTES => comma_separated(list)
            .filter_map(ra_route)
            .try_for_each(|(preference, prefix)| router.add_route(prefix, preference)),
        _ => Ok(()),
    }
}

/// Reads a route of router advertisements: `PREFERENCE-PREFIX/LENGTH`.
pub fn ra_route(text: &str) -> Option<(Preference, (Ipv6Addr, u8))> {
    let (name, prefix) = text.split_once('-')?;
    let (prefix, len) = prefix.split_once('/')?;
    Some((preference(name)?, (prefix.parse().ok()?, len.parse().ok()?)))
}
