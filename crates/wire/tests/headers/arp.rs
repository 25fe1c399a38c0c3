//! ARP.

use etherparse::ArpPacketSlice;
use proptest::prelude::*;
use wire::{ArpOperation, ArpPacket, ArpRepr, Layer, MacAddr, ParseError};

use crate::{dirty, refuses_every_truncation};

const REQUEST: [u8; 28] =
    [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2];

fn request() -> ArpRepr {
    ArpRepr {
        operation: ArpOperation::Request,
        sender_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        sender_ip: [10, 0, 0, 1].into(),
        target_mac: MacAddr::ZERO,
        target_ip: [10, 0, 0, 2].into(),
    }
}

fn parse(bytes: &[u8]) -> Result<ArpRepr, ParseError> {
    ArpRepr::parse(&ArpPacket::new_checked(bytes)?)
}

#[test]
fn arp_is_read_and_emitted_as_the_rfc_lays_it_out() {
    assert_eq!(parse(&[&REQUEST[..], &[0; 18]].concat()), Ok(request()), "padding is ignored");
    let mut bytes = dirty(29);
    request().emit(&mut ArpPacket::new_unchecked(&mut bytes));
    assert_eq!(bytes, [&REQUEST[..], &[0xa5]].concat());
}

#[test]
fn arp_is_refused_when_truncated() {
    refuses_every_truncation(&REQUEST, parse);
}

#[test]
fn arp_is_refused_when_not_ipv4_over_ethernet_or_sent_by_a_group() {
    for (at, name) in [
        (1, "hardware type"),
        (2, "protocol type"),
        (4, "address lengths"),
        (5, "address lengths"),
        (8, "sender hardware address"),
    ] {
        let mut bytes = REQUEST;
        bytes[at] ^= 1;
        assert_eq!(parse(&bytes), Err(ParseError::field(Layer::Arp, name)));
    }
}

proptest! {
    #[test]
    fn arp_round_trips_and_agrees_with_etherparse(
        operation: u16, macs: [[u8; 6]; 2], ips: [[u8; 4]; 2],
    ) {
        let operation = match operation {
            1 => ArpOperation::Request,
            2 => ArpOperation::Reply,
            other => ArpOperation::Other(other),
        };
        let [mut sender, target] = macs;
        sender[0] &= 0xfe;
        let repr = ArpRepr {
            operation, sender_mac: MacAddr(sender), sender_ip: ips[0].into(),
            target_mac: MacAddr(target), target_ip: ips[1].into(),
        };
        let mut bytes = dirty(repr.header_len());
        repr.emit(&mut ArpPacket::new_unchecked(&mut bytes));
        prop_assert_eq!(parse(&bytes), Ok(repr));
        let theirs = ArpPacketSlice::from_slice(&bytes).unwrap();
        prop_assert_eq!(
            (theirs.sender_hw_addr(), theirs.sender_protocol_addr()), (&sender[..], &ips[0][..])
        );
        prop_assert_eq!(
            (theirs.target_hw_addr(), theirs.target_protocol_addr()), (&target[..], &ips[1][..])
        );
    }
}
