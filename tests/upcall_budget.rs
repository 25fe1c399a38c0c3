//! A guest that sends only new flows. The processor time for them is limited, and the guests at
//! other ports notice nothing.

use crate::common::daemon::port;
use crate::common::{Daemon, Datapath, GUEST_DEVICE, Guest, Lab, PATIENCE, Setup, traffic};
use bench::traffic::blast::{Blast, Pace};
use datapath::stats::PortStats;
use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::filter::SocketFilter;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};
use testkit::host::wait_until;
use testkit::require_root;
use wire::checksum::checksum;

/// The limit, in percent of a processor. Without it, the flood takes several times as much, even on
/// a fast or busy machine.
const PERCENT: u32 = 4;
/// New flows per second.
const RATE: f64 = 6000.0;
/// How long the attacker is watched at its limit.
const WATCHED: Duration = Duration::from_secs(1);
/// What the port may use beyond its share: upcalls that were taken together.
const OVERSHOOT: Duration = Duration::from_millis(30);
/// Bytes of the virtio-net header before a frame.
const VNET_LEN: usize = 10;
/// The source ports of flows. ACL entries list each second one.
const FIRST_PORT: u16 = 1024;
const PORTS: u16 = 1024;
/// The source addresses of the attacker. ACL entries list as many others.
const HOSTS: u16 = 64;
/// New flows of the victim.
const FLOWS: u16 = 10;

/// A source address that is no guest's.
fn source(number: u16) -> Ipv4Addr {
    Ipv4Addr::from(0x0ac8_0000 + u32::from(number))
}

/// A lab whose first host has an attacker and a victim. The decision about a UDP packet depends on
/// all bits of its source address and port, so each flow is an upcall.
fn lab(datapath: Datapath) -> Lab {
    let acl = |priority: u32, field: &str, listed: Vec<String>| {
        format!(
            "\n[[acl]]\nswitch = \"blue\"\ndirection = \"from-port\"\npriority = {priority}\n\
             match = 'udp && {field} == {{{}}}'\naction = \"allow\"\n",
            listed.join(", ")
        )
    };
    let hosts = (0..HOSTS).map(|host| source(2 * host).to_string());
    let ports = (0..PORTS / 2).map(|port| (FIRST_PORT + 2 * port).to_string());
    let acl = acl(1000, "ip4.src", hosts.collect()) + &acl(900, "udp.src", ports.collect());
    let lab = Lab::new(Setup::new("vxlan").guests(2, 1).datapath(datapath).more(&acl));
    let text = std::fs::read_to_string(lab.network_file()).expect("a network file");
    let text = format!("upcall_cpu_percent = {PERCENT}\n{text}");
    std::fs::write(lab.network_file(), text).expect("a file can be written");
    lab
}

/// Sends an empty datagram of another flow each time.
fn flood(from: &Guest, to: &Guest) -> Blast {
    let options = PacketOptions { qdisc_bypass: true, ..PacketOptions::default() };
    let open = || PacketSocket::open_name(GUEST_DEVICE, &SocketFilter::nothing(), options);
    let socket = from.netns.run(open).expect("a packet socket can be opened");
    let mut frame = vec![0; 60];
    frame[..14].copy_from_slice(&[&to.mac.0[..], &from.mac.0, &[8, 0]].concat());
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17]);
    frame[26..34].copy_from_slice(&[from.ip4.octets(), to.ip4.octets()].concat());
    frame[34..42].copy_from_slice(&[0, 0, 0, 9, 0, 8, 0, 0]);
    let change = |number: u64, bytes: &mut [u8]| {
        let Some(ip) = bytes.get_mut(VNET_LEN + 14..VNET_LEN + 42) else { return };
        let (host, port) = (number as u16 / PORTS % HOSTS, number as u16 % PORTS);
        ip[12..16].copy_from_slice(&source(2 * host + 1).octets());
        ip[20..22].copy_from_slice(&(FIRST_PORT + port).to_be_bytes());
        ip[10..12].fill(0);
        let sum = checksum(&ip[..20]).to_be_bytes();
        ip[10..12].copy_from_slice(&sum);
    };
    // The socket expects a virtio-net header; this one asks for no offloads.
    let template = [&[0; VNET_LEN][..], &frame].concat();
    Blast::start(socket, template, change, Pace::PerSecond(RATE), None)
        .expect("a thread can be started")
}

/// The processor time of the daemon, and the attacker's port.
fn reading(daemon: &Daemon, attacker: &Guest) -> (Duration, PortStats, Instant) {
    (daemon.cpu_time(), port(daemon, &attacker.name), Instant::now())
}

/// Sends a datagram in each of some new flows, and expects it to arrive.
fn open_flows(from: &Guest, to: &Guest) {
    let far = traffic::udp_socket(to, 4);
    let (address, own) = (far.local_addr().expect("an address"), from.ip4);
    for number in 0..FLOWS {
        let port = FIRST_PORT + 2 * number + 1;
        let near = from.netns.run(|| UdpSocket::bind((own, port))).expect("a UDP socket");
        near.send_to(&number.to_be_bytes(), address).expect("a datagram is sent");
        let mut bytes = [0; 16];
        let (len, source) = traffic::receive(&far, &mut bytes).expect("a datagram arrives");
        assert_eq!((&bytes[..len], source.port()), (&number.to_be_bytes()[..], port));
    }
}

fn attacked(datapath: Datapath) {
    let lab = lab(datapath);
    let daemons = lab.start_both();
    let [attacker, victim, peer] = &lab.guests[..] else { panic!("there are three guests") };
    traffic::ping(&attacker.netns, peer.ip(4));
    traffic::ping(&victim.netns, peer.ip(4));
    let drops_before = port(&daemons[0], &victim.name).drops;
    let blast = flood(attacker, peer);
    wait_until(PATIENCE, &format!("{datapath:?}: the flood reaches its limit"), || {
        port(&daemons[0], &attacker.name).drops.contains_key("upcall_budget")
    });
    let (daemon_before, before, begin) = reading(&daemons[0], attacker);
    std::thread::sleep(WATCHED);
    let (daemon_after, after, end) = reading(&daemons[0], attacker);
    let used = after.slow_path.upcall_cpu_ns - before.slow_path.upcall_cpu_ns;
    let (used, by_daemon) = (Duration::from_nanos(used), daemon_after - daemon_before);
    println!("{datapath:?}: {used:?} for upcalls, {by_daemon:?} of the daemon");
    println!("{:?} {:?}", after.slow_path, after.drops);
    let share = (end - begin) * PERCENT / 100;
    assert!(used <= share + OVERSHOOT, "{used:?} of {share:?}");
    assert!(by_daemon <= (end - begin) / 4, "{by_daemon:?} of processor time");
    let handled = after.slow_path.upcalls - before.slow_path.upcalls;
    let refused = after.drops["upcall_budget"] - before.drops["upcall_budget"];
    assert!(handled > 0 && refused > handled, "most are refused: {refused}, {handled} handled");
    let punted = after.slow_path.punted - before.slow_path.punted;
    match datapath {
        Datapath::Kernel => {
            assert!(punted > 0 && refused > 2 * punted, "by programs: {refused}, {punted} punted");
        }
        Datapath::User => assert_eq!(punted, 0),
    }
    assert_eq!(after.slow_path.upcall_cpu_limit_percent, PERCENT);
    open_flows(victim, peer);
    blast.finish();
    assert_eq!(port(&daemons[0], &victim.name).drops, drops_before, "the victim loses nothing");
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn flood_of_new_flows_stays_within_its_processor_time_and_others_open_flows() {
    require_root!();
    Datapath::BOTH.into_iter().for_each(attacked);
}
