//! Packets of millions of connections, and ACL entries that make each connection need a separate
//! megaflow.

use std::net::Ipv4Addr;

use super::frames::Frame;
use crate::lab::Guest;

/// The source addresses: an ACL entry matches the even ones of this range, and packets have odd
/// ones.
const SOURCES: (Ipv4Addr, u32) = (Ipv4Addr::new(10, 200, 0, 0), 8192);
/// The first source port and their number. An ACL entry matches the even ones.
const PORTS: (u16, u16) = (1024, 4096);
/// Turns the bytes of an earlier packet into those of the packet with the given number.
pub type Change = Box<dyn FnMut(u64, &mut [u8]) + Send>;

/// Packets from `from` to UDP port `port` of `to`, each with another source address and port.
/// Different `seed`s give different connections.
pub fn connections(from: &Guest, to: &Guest, port: u16, seed: u64) -> (Vec<u8>, Change) {
    let to_ip = to.ip4();
    let template = Frame::udp_template((from.mac(), from.ip4()), (to.mac(), to_ip));
    let change = move |number: u64, bytes: &mut [u8]| {
        let mut frame = Frame::of(bytes);
        let (host, src_port) = connection(number.wrapping_add(seed));
        frame.set_addresses(host, to_ip);
        frame.set_ports(src_port, port);
    };
    (template, Box::new(change))
}

/// The source of a connection. Any [`CONNECTIONS`] consecutive numbers give different sources.
pub fn connection(number: u64) -> (Ipv4Addr, u16) {
    let ports = u64::from(PORTS.1);
    let hosts = u64::from(SOURCES.1 / 2);
    // The factor is odd and the modulus a power of two, so every value occurs once.
    let place = number.wrapping_mul(0x9e37_79b9) % CONNECTIONS;
    let host = u32::from(SOURCES.0) + 2 * (place / ports % hosts) as u32 + 1;
    (Ipv4Addr::from(host), PORTS.0 + (place % ports) as u16)
}

/// The number of different connections.
pub const CONNECTIONS: u64 = SOURCES.1 as u64 / 2 * PORTS.1 as u64;

/// ACL entries that allow everything. Their evaluation reads all bits of the source addresses and
/// ports of [`connections`].
pub fn connection_lists() -> String {
    let first = u32::from(SOURCES.0);
    let hosts = (0..SOURCES.1).step_by(2).map(|host| Ipv4Addr::from(first + host).to_string());
    let ports = (PORTS.0..PORTS.0 + PORTS.1).step_by(2).map(|port| port.to_string());
    let mut text = acl(1000, &format!("ip4.src == {{{}}}", join(hosts)), "allow");
    text += &acl(900, &format!("udp.src == {{{}}}", join(ports)), "allow");
    text
}

/// The `network.toml` text of an ACL entry for the logical switch `lab`.
pub fn acl(priority: u16, condition: &str, action: &str) -> String {
    format!(
        "\n[[acl]]\nswitch = \"lab\"\ndirection = \"from-port\"\npriority = {priority}\nmatch = '{condition}'\naction = \"{action}\"\n"
    )
}

fn join(words: impl Iterator<Item = String>) -> String {
    words.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem;

    #[test]
    fn connections_differ_until_all_have_been_used() {
        let mut seen = vec![false; CONNECTIONS as usize];
        for number in 0..CONNECTIONS {
            let (host, port) = connection(number);
            let host = u32::from(host) - u32::from(SOURCES.0);
            assert!(host % 2 == 1, "connection {number} is from an address of the list");
            let place = u64::from(host / 2) * u64::from(PORTS.1) + u64::from(port - PORTS.0);
            assert!(!mem::replace(&mut seen[place as usize], true), "connection {number} again");
        }
        assert_eq!(connection(CONNECTIONS), connection(0));
    }
}
