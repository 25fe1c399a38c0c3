//! Tests guests whose super-packets cost the switch as much as possible. Guests at other ports must
//! lose nothing, and lost packets of the attacker must be counted at its own port.

mod honest;

use crate::common::daemon::port;
use crate::common::{Datapath, GUEST_DEVICE, Guest, Lab, PATIENCE, Setup, traffic};
use bench::traffic::blast::{Blast, Pace};
use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::filter::SocketFilter;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testkit::host::wait_until;
use testkit::require_root;
use wire::checksum::checksum;

/// The length of the virtio-net header before a frame.
const VNET_LEN: usize = 10;
/// The length of the Ethernet, IPv4 and TCP headers.
const HEADERS: usize = 14 + 20 + 20;
/// The payload of a super-packet. The guest's kernel does not segment frames of up to 60 KiB.
const PAYLOAD: usize = 60_000;
/// The number of requests that the victim sends in one flow, and the number of new flows that it
/// starts.
const TRIES: u16 = 60;
/// The number of losses after which the result is clear.
const ENOUGH: u32 = 6;
/// The time after which a missing reply counts as lost. It is long, because this machine may be
/// busy.
const REPLY_LIMIT: Duration = Duration::from_secs(5);
/// The first source port of new flows. The ACL entry lists every second port.
const FIRST_PORT: u16 = 20_000;

/// A lab with an attacker and a victim on the first host, and a peer of each on the second host.
/// The decision about a UDP packet depends on all bits of its source port, so each new flow causes
/// an upcall.
fn lab(datapath: Datapath) -> Lab {
    let ports = (FIRST_PORT..FIRST_PORT + 4 * TRIES).step_by(2).map(|port| port.to_string());
    let listed = ports.collect::<Vec<_>>().join(", ");
    let acl = format!(
        "\n[[acl]]\nswitch = \"blue\"\ndirection = \"from-port\"\npriority = 1000\n\
         match = 'udp.src == {{{listed}}}'\naction = \"allow\"\n"
    );
    let lab = Lab::new(Setup::new("vxlan").guests(2, 2).datapath(datapath).more(&acl));
    // The lowest limit is configured, so that the tests do not depend on the speed of this machine.
    let text = std::fs::read_to_string(lab.network_file()).expect("a network file");
    let text = format!("punt_limit = 128\n{text}");
    std::fs::write(lab.network_file(), text).expect("a file can be written");
    lab
}

/// A virtio-net header and a TCP super-packet with the flag "don't fragment", as sent by
/// [`attack`].
fn super_packet(from: &Guest, to: &Guest, gso_size: u16) -> Vec<u8> {
    let mut bytes = vec![0; VNET_LEN + HEADERS + PAYLOAD];
    // The flag VIRTIO_NET_HDR_F_NEEDS_CSUM, and the type VIRTIO_NET_HDR_GSO_TCPV4.
    bytes[..4].copy_from_slice(&[1, 1, HEADERS as u8, 0]);
    set_gso_size(&mut bytes, gso_size);
    bytes[6..10].copy_from_slice(&[34, 0, 16, 0]);
    let frame = &mut bytes[VNET_LEN..];
    frame[..14].copy_from_slice(&[&to.mac.0[..], &from.mac.0, &[8, 0]].concat());
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6]);
    frame[16..18].copy_from_slice(&(40 + PAYLOAD as u16).to_be_bytes());
    frame[26..34].copy_from_slice(&[from.ip4.octets(), to.ip4.octets()].concat());
    let sum = checksum(&frame[14..34]).to_be_bytes();
    frame[24..26].copy_from_slice(&sum);
    frame[34..50].copy_from_slice(&[0, 9, 0, 9, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff]);
    bytes
}

fn set_gso_size(bytes: &mut [u8], gso_size: u16) {
    bytes[4..6].copy_from_slice(&gso_size.to_le_bytes());
}

/// Sends super-packets from `from` to `to` as fast as possible. `gso_size` is called with the
/// number of each super-packet.
fn attack(from: &Guest, to: &Guest, gso_size: impl Fn(u64) -> u16 + Send + 'static) -> Blast {
    let options = PacketOptions { qdisc_bypass: true, ..PacketOptions::default() };
    let open = || PacketSocket::open_name(GUEST_DEVICE, &SocketFilter::nothing(), options);
    let socket = from.netns.run(open).expect("a packet socket can be opened");
    let template = super_packet(from, to, gso_size(0));
    let change = move |number: u64, bytes: &mut [u8]| set_gso_size(bytes, gso_size(number));
    Blast::start(socket, template, change, Pace::FlatOut, None).expect("a thread can be started")
}

/// The losses of a victim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Lost {
    requests: u32,
    flows: u32,
}

impl Lost {
    const NOTHING: Self = Self { requests: 0, flows: 0 };
}

/// Echoes datagrams until `done` is set.
fn echo(socket: &UdpSocket, done: &AtomicBool) {
    let mut bytes = [0; 64];
    while !done.load(Ordering::Relaxed) {
        if let Ok((len, source)) = socket.recv_from(&mut bytes) {
            // Errors are ignored: the victim counts the missing reply.
            let _ = socket.send_to(&bytes[..len], source);
        }
    }
}

/// Sends requests of a victim, first in one flow and then in new flows. Returns the losses. `first`
/// is the number of the first new flow.
fn victim(from: &Guest, to: &Guest, first: u16) -> Lost {
    let server = traffic::udp_socket(to, 4);
    server.set_read_timeout(Some(Duration::from_millis(100))).expect("a time limit can be set");
    let address = server.local_addr().expect("an address");
    let done = AtomicBool::new(false);
    let mut lost = Lost::NOTHING;
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&server, &done));
        let old = traffic::udp_socket(from, 4);
        old.set_read_timeout(Some(REPLY_LIMIT)).expect("a time limit can be set");
        for number in first..first + TRIES {
            lost.requests += u32::from(!is_answered(&old, number, address));
            let new = client(from, FIRST_PORT + 1 + 2 * number);
            lost.flows += u32::from(!is_answered(&new, number, address));
            if lost.requests + lost.flows >= ENOUGH {
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    lost
}

/// A UDP socket of a guest with this source port.
fn client(guest: &Guest, port: u16) -> UdpSocket {
    let ip = guest.ip(4);
    let socket = guest.netns.run(|| UdpSocket::bind((ip, port))).expect("a UDP socket");
    socket.set_read_timeout(Some(REPLY_LIMIT)).expect("a time limit can be set");
    socket
}

/// Sends a datagram with this number. Returns whether its echo arrives.
fn is_answered(socket: &UdpSocket, number: u16, to: SocketAddr) -> bool {
    let sent = number.to_be_bytes();
    socket.send_to(&sent, to).expect("a datagram is sent");
    let end = Instant::now() + REPLY_LIMIT;
    let mut bytes = [0; 64];
    while Instant::now() < end {
        match socket.recv(&mut bytes) {
            // Any other content is a late reply to an earlier datagram.
            Ok(len) if bytes[..len] == sent => return true,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
    false
}

/// Runs an attack until packets of the attacker are dropped for `reason`, and then checks that a
/// victim loses nothing. Only the attacker's port may count losses.
fn attacked(datapath: Datapath, reason: &str, gso_size: impl Fn(u64) -> u16 + Send + 'static) {
    let lab = lab(datapath);
    let daemons = lab.start_both();
    let [attacker, from, target, to] = &lab.guests[..] else { panic!("there are four guests") };
    traffic::ping(&attacker.netns, target.ip(4));
    traffic::ping(&from.netns, to.ip(4));
    let alone = victim(from, to, 0);
    let before = port(&daemons[0], &from.name).drops;
    let blast = attack(attacker, target, gso_size);
    wait_until(PATIENCE, &format!("{datapath:?}: the attack is dropped as {reason}"), || {
        port(&daemons[0], &attacker.name).drops.contains_key(reason)
    });
    let during = victim(from, to, TRIES);
    let sent = blast.finish();
    println!("{datapath:?}: {sent} sent, {:?}", port(&daemons[0], &attacker.name).drops);
    assert_eq!([alone, during], [Lost::NOTHING; 2], "alone, and during the attack");
    assert_eq!(port(&daemons[0], &from.name).drops, before, "losses count at the attacker's port");
    daemons.into_iter().for_each(crate::common::Daemon::stop);
}

/// Super-packets with segments so small that no network stack sends them.
#[test]
fn victim_loses_nothing_when_a_guest_sends_tiny_segments() {
    require_root!();
    for datapath in Datapath::BOTH {
        attacked(datapath, "tiny_segments", |_| 8);
    }
}

/// The smallest segments that are allowed: a super-packet has 1,667 of them. With the user
/// datapath, the super-packets within the limit would become a flood of small packets to the other
/// host.
#[test]
fn victim_loses_nothing_when_a_guest_sends_small_segments_and_the_datapath_is_kernel() {
    require_root!();
    attacked(Datapath::Kernel, "segment_limit", |_| packet::LEAST_SEGMENT_LEN);
}

/// Each super-packet has segments that are too long for the tunnel, so the eBPF programs punt it.
#[test]
fn victim_loses_nothing_when_a_guest_sends_long_segments() {
    require_root!();
    for (datapath, reason) in
        [(Datapath::User, "underlay_too_big"), (Datapath::Kernel, "punt_queue_full")]
    {
        attacked(datapath, reason, |_| 3000);
    }
}

/// One super-packet in 256 has segments that are too long. It pins the megaflow of the others to
/// the slow path.
#[test]
fn victim_loses_nothing_when_a_guest_pins_its_megaflow_to_the_slow_path() {
    require_root!();
    attacked(
        Datapath::Kernel,
        "underlay_too_big",
        |number| if number % 256 == 0 { 3000 } else { 1400 },
    );
}
