//! Address translation when no port is left, and what translated packets look like to tshark.

use crate::commands::call::{Watch, weft};
use crate::common::{Daemon, Datapath, Guest, Lab, PATIENCE, Setup, traffic};
use crate::ovn::nat::{OUTSIDE, SERVER, ip};
use crate::services::{add_routes, outside, routers};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};
use testkit::host::wait_until;
use testkit::require_root;

/// The ports that address translation chooses from for a source port among them, as Linux does.
const PORTS: RangeInclusive<u16> = 600..=1023;
/// The source port of further connections.
const OTHER_PORT: u16 = 700;
/// UDP is a stream after two seconds of traffic in both directions.
const STREAM: Duration = Duration::from_millis(2300);
const EXHAUSTED: &str = "ct_nat_exhausted";

/// A UDP socket at a port of a guest.
fn bound(guest: &Guest, family: u8, port: u16) -> UdpSocket {
    let address = SocketAddr::new(guest.ip(family), port);
    let socket = guest.netns.run(|| UdpSocket::bind(address)).expect("a UDP socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket has a timeout");
    socket
}

/// A guest that is reached through one address, and the sockets of others that reach it.
struct Exhausted {
    family: u8,
    server: UdpSocket,
    /// One socket for each of the [`PORTS`].
    opened: Vec<UdpSocket>,
}

impl Exhausted {
    /// Opens a connection from each port of a guest.
    fn open(guest: &Guest, outside: &Guest, family: u8) -> Self {
        let address = SocketAddr::new(ip(SERVER, family), 53);
        let server = outside.netns.run(|| UdpSocket::bind(address)).expect("a UDP socket");
        server.set_read_timeout(Some(PATIENCE)).expect("a socket has a timeout");
        traffic::ping(&guest.netns, address.ip());
        let opened = PORTS.map(|port| bound(guest, family, port)).collect();
        let this = Self { family, server, opened };
        let seen: BTreeSet<u16> = this.opened.iter().map(|it| this.exchange(it)).collect();
        assert!(seen.iter().copied().eq(PORTS), "{seen:?}");
        this
    }

    fn address(&self) -> SocketAddr {
        self.server.local_addr().expect("an address")
    }

    /// A datagram to the server and the answer. Returns the port that the server sees.
    fn exchange(&self, client: &UdpSocket) -> u16 {
        let own = client.local_addr().expect("an address").to_string();
        client.send_to(own.as_bytes(), self.address()).expect("a datagram is sent");
        let mut bytes = [0; 64];
        let (len, source) = self.server.recv_from(&mut bytes).expect("a datagram arrives");
        // A datagram of a refused connection would be another one.
        assert_eq!(bytes[..len], *own.as_bytes(), "from {source}");
        assert_eq!(source.ip(), ip(OUTSIDE, self.family), "{own}");
        self.server.send_to(&bytes[..len], source).expect("a datagram is sent");
        let (len, _) = client.recv_from(&mut bytes).expect("an answer arrives");
        assert_eq!(bytes[..len], *own.as_bytes(), "from the server");
        source.port()
    }

    /// All connections still pass, with their ports.
    fn assert_goes_on(&self) {
        for (port, client) in PORTS.zip(&self.opened) {
            assert_eq!(self.exchange(client), port);
        }
    }

    /// No datagram of a new connection arrives, and each is counted.
    fn assert_refused(&self, daemon: &Daemon, client: &UdpSocket) {
        const DATAGRAMS: u64 = 3;
        let count = || daemon.drops().get(EXHAUSTED).copied().unwrap_or_default();
        let before = count();
        for _ in 0..DATAGRAMS {
            client.send_to(b"refused", self.address()).expect("a datagram is sent");
        }
        wait_until(PATIENCE, "the datagrams are counted", || count() >= before + DATAGRAMS);
        assert_eq!(count(), before + DATAGRAMS);
    }
}

#[test]
fn connections_go_on_and_others_are_dropped_when_no_port_is_left() {
    require_root!();
    for datapath in Datapath::BOTH {
        let outside = outside();
        let mut text = routers(&outside);
        for (family, subnet) in [(4, "192.168.7.0/24"), (6, "fd77::/64")] {
            let external = ip(OUTSIDE, family);
            text += &format!(
                "[[nat]]\nrouter = \"edge\"\ntype = \"snat\"\nexternal = \"{external}\"\n\
                 internal = \"{subnet}\"\n"
            );
        }
        let lab = Lab::new(Setup::new("geneve").guests(2, 1).datapath(datapath).more(&text));
        let daemons = lab.start_both();
        lab.guests.iter().for_each(add_routes);
        let [first, near, far] = &lab.guests[..] else { panic!("three guests") };
        let start = Instant::now();
        let all = [4, 6].map(|family| Exhausted::open(first, &outside, family));
        // The router is on `h2`: packets of `near` come to it in a tunnel.
        let new = |guest, of: &Exhausted| bound(guest, of.family, OTHER_PORT);
        for of in &all {
            for guest in [near, far] {
                of.assert_refused(&daemons[1], &new(guest, of));
            }
            assert_is_shown(&lab, of, &new(far, of));
        }
        // The kernel's programs forward connections that last.
        std::thread::sleep(STREAM.saturating_sub(start.elapsed()));
        all.iter().for_each(Exhausted::assert_goes_on);
        for of in &all {
            let flushed = SocketAddr::new(first.ip(of.family), 777).to_string();
            let args = ["ct", "--flush", "--protocol", "udp", "--src", &flushed];
            let (code, out, _) = weft(&lab.control(1), &args);
            assert!(code == 0 && out.starts_with("removed ") && !out.contains(" 0 "), "{out}");
            // The only free port is that of the flushed connection.
            assert_eq!(of.exchange(&new(near, of)), 777, "{datapath:?} IPv{}", of.family);
            of.assert_refused(&daemons[1], &new(far, of));
        }
        daemons.into_iter().for_each(Daemon::stop);
    }
}

/// What the commands of a user say about the refused packets of the guest `g3`.
fn assert_is_shown(lab: &Lab, of: &Exhausted, refused: &UdpSocket) {
    let control = lab.control(1);
    let args = ["monitor", "--drops", "--json", "--count", "1", "--reason", EXHAUSTED];
    let mut watch = Watch::start(&control, &args);
    let mut line = None;
    wait_until(PATIENCE, "the drop is told", || {
        refused.send_to(b"refused", of.address()).expect("a datagram is sent");
        line = watch.lines.recv_timeout(Duration::from_millis(20)).ok();
        line.is_some()
    });
    watch.end();
    let told: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
    assert_eq!((&told["reason"], &told["port"]), (&EXHAUSTED.into(), &"g3".into()), "{told}");
    assert_eq!(told["flow"]["stage"], "lr_out_snat", "{told}");
    for command in ["show", "ports"] {
        let (_, shown, _) = weft(&control, &[command]);
        assert!(shown.contains(EXHAUSTED), "{shown}");
    }
}
