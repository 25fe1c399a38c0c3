//! Requests of guests to services of the switch.

use flow::answer;
use packet::PacketBuf;
use services::dns::{Records, Resolver};
use services::router::{AddressMode, Preference, Router};
use services::{Destination, Service, dhcp4, dhcp6};
use std::sync::Arc;
use wire::{MacAddr, NdOption, transport_offset};

/// Asks a DHCP server. Its answer must be a message for the client that asked, whose options are
/// whole. Returns whether there is an answer.
pub fn dhcp4(bytes: &[u8]) -> bool {
    let mut server = dhcp4::Server::new([10, 0, 0, 5].into());
    server.add(54, &[10, 0, 0, 1]);
    server.add(51, &3600_u32.to_be_bytes());
    server.add(15, &[b'x'; 300]);
    server.set_boot_files(Some(b"boot.ipxe"), Some(b"boot"));
    let Some(dhcp4::Answer { payload, destination }) = server.answer(bytes) else { return false };
    assert_eq!((payload[0], &payload[4..8]), (2, &bytes[4..8]), "a reply to this message");
    assert_eq!(payload[28..44], bytes[28..44], "for this client");
    assert!(destination == Destination::Broadcast || bytes[10] & 0x80 == 0);
    let mut rest = &payload[240..];
    while rest[0] != 255 {
        rest = &rest[2 + usize::from(rest[1])..];
    }
    true
}

/// Asks a DHCPv6 server. Its answer must be a message for the client that asked, whose options are
/// whole. Returns whether there is an answer.
pub fn dhcp6(bytes: &[u8]) -> bool {
    let mac = MacAddr([2, 0, 0, 0, 0, 1]);
    let mut server = dhcp6::Server::new(mac, Some([0xfd77, 0, 0, 0, 0, 0, 0, 5].into()));
    server.set_name("vm.example").expect("a domain name");
    server.set_boot_files(Some(b"tftp://a"), None);
    let Some(answer) = server.answer(bytes) else { return false };
    assert_eq!(answer[1..4], bytes[1..4], "a reply to this message");
    let mut rest = &answer[4..];
    while let Some((&[_, _, high, low], after)) = rest.split_first_chunk() {
        rest = &after[usize::from(u16::from_be_bytes([high, low]))..];
    }
    assert!(rest.is_empty());
    true
}

/// Sends a frame to a router. It must answer with a frame whose headers can be parsed. Returns
/// whether there is an answer.
pub fn router(bytes: &[u8]) -> bool {
    let mut router = Router::new(AddressMode::Slaac, Preference::Medium);
    let link = NdOption::SourceLinkLayer(MacAddr([2, 0, 0, 0, 0, 1]));
    router.add(link).expect("an option fits");
    let made = answer(&Service::Router(router), &PacketBuf::from_bytes(bytes));
    let Some((_, made)) = made else { return false };
    let at = transport_offset(made.head()).expect("headers");
    let l4 = at.l4.expect("a message");
    assert_eq!(made.head()[l4..l4 + 2], [134, 0]);
    true
}

/// Asks a DNS server. Its answer must repeat the question. Returns whether there is an answer.
pub fn dns(bytes: &[u8]) -> bool {
    let mut records = Records::new(true);
    assert!(records.add("vm.example", "10.0.0.4 10.0.0.5 fd77::4"));
    assert!(records.add("4.0.0.10.in-addr.arpa", "vm.example"));
    let Some(answer) = Resolver([Arc::new(records)].into()).answer(bytes) else { return false };
    assert!(answer.len() <= 512 && answer[2] & 0x80 != 0);
    assert_eq!((&answer[..2], &answer[12..17]), (&bytes[..2], &bytes[12..17]));
    true
}
