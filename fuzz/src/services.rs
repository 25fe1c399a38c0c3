//! Targets: requests of guests to services of the switch.

use flow::answer;
use packet::PacketBuf;
use services::dns::{Records, Resolver};
use services::health::{Check, Checker, HttpPath, Kind, Status, Timing};
use services::router::{AddressMode, Preference, Router};
use services::{Destination, Service, dhcp4, dhcp6};
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::{EthernetPacket, MacAddr, NdOption, transport_offset};

/// Sends a request to a DHCP server. The reply must be a message for the requesting client, whose
/// options are complete. Returns whether there is a reply.
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

/// Sends a request to a DHCPv6 server. The reply must be a message for the requesting client, whose
/// options are complete. Returns whether there is a reply.
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

/// Sends a frame to a router. If it replies, the headers of the reply must be valid. Returns
/// whether there is a reply.
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

/// Sends a query to a DNS server. The reply must repeat the question. Returns whether there is a
/// reply.
pub fn dns(bytes: &[u8]) -> bool {
    let mut records = Records::new(true);
    assert!(records.add("vm.example", "10.0.0.4 10.0.0.5 fd77::4"));
    assert!(records.add("4.0.0.10.in-addr.arpa", "vm.example"));
    let Some(answer) = Resolver([Arc::new(records)].into()).answer(bytes) else { return false };
    assert!(answer.len() <= 512 && answer[2] & 0x80 != 0);
    assert_eq!((&answer[..2], &answer[12..17]), (&bytes[..2], &bytes[12..17]));
    true
}

/// Starts a health check, and gives it frames as replies. The first byte selects the check: 0 is
/// TCP, 1 HTTP over IPv6, 2 UDP. Each frame is preceded by its length in two bytes. The expected
/// acknowledgement number is inserted at the offset that it has in these headers.
///
/// For all inputs, sent frames must have valid headers, and the check must end. Returns whether the
/// backend is online.
pub fn health(bytes: &[u8]) -> bool {
    let (&first, mut rest) = bytes.split_first().unwrap_or((&0, &[]));
    let path = || HttpPath::new("/").expect("a path");
    let (backend, source, kind, l4) = match first % 3 {
        0 => ("10.0.0.11:80", "10.0.0.254", Kind::Tcp, 34),
        1 => ("[fd00::b]:80", "fd00::fe", Kind::Http(path()), 54),
        _ => ("10.0.0.11:80", "10.0.0.254", Kind::Udp, 34),
    };
    let check = Check {
        backend: backend.parse().expect("an address"),
        backend_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        source: source.parse().expect("an address"),
        source_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        first_port: 40_000,
        port_count: 1,
        arrival: 0,
        kind,
        timing: Timing { interval_ms: 5000, timeout_ms: 3000, failures: 1, successes: 1 },
    };
    let mut checker = Checker::default();
    checker.set(BTreeMap::from([((), check)]), 0);
    let mut sent = checker.poll(10);
    let (_, probe) = sent.remove(0);
    // With UDP, these bytes are not used.
    let sequence = probe[l4 + 4..l4 + 8].first_chunk().map_or(0, |it| u32::from_be_bytes(*it));
    while let Some((length, after)) = rest.split_first_chunk() {
        let end = usize::from(u16::from_be_bytes(*length)).min(after.len());
        let (frame, after) = after.split_at(end);
        rest = after;
        let mut frame = frame.to_vec();
        if first % 3 != 2 {
            if let Some(acked) = frame.get_mut(l4 + 8..l4 + 12) {
                acked.copy_from_slice(&sequence.wrapping_add(1).to_be_bytes());
            }
        } else {
            // An ICMP error must quote the identification, the UDP checksum and the payload of the
            // probe.
            for (to, from) in [(l4 + 12, 18..20), (l4 + 34, l4 + 6..l4 + 16)] {
                if let Some(quoted) = frame.get_mut(to..to + from.len()) {
                    quoted.copy_from_slice(&probe[from]);
                }
            }
        }
        sent.extend(checker.receive(&frame, 0, 20));
    }
    sent.extend(checker.poll(3010));
    for (_, frame) in sent {
        assert!(EthernetPacket::new_checked(&frame).is_ok());
        let packet = PacketBuf::from_bytes(&frame);
        assert_eq!(transport_offset(packet.head()).expect("headers").l4, Some(l4));
    }
    let status = checker.states().next().map(|(_, _, state)| state.status).unwrap_or_default();
    assert_ne!(status, Status::Unknown, "the check has ended");
    status == Status::Online
}
