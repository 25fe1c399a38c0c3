//! Tests virtual machines as guests: Debian's kernel with its virtio driver on one host, and a
//! namespace or another machine on the other host.

use crate::common::daemon::{port, wait_port};
use crate::common::{
    Daemon, Datapath, GUEST_DEVICE, Guest, Lab, PATIENCE, Setup, TUNNELS, traffic,
};
use datapath::stats::PacketCount;
use netdev::tap::Tap;
use nix::sys::signal::Signal;
use packet::PacketBuf;
use std::io::{ErrorKind, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};
use testkit::host::wait_until;
use testkit::vm::Vm;
use testkit::{report, require_vm};

const MTU: u16 = 1400;
const LEN: usize = 4 << 20;
/// The TCP port on which the machine accepts connections.
const TCP_PORT: u16 = 5001;
/// A shell command that stores the data of one connection. A plain `nc` would shut down its sending
/// direction at once, and the other `nc` would then exit before it has sent all data.
const LISTEN: &str = "nc -l -p 5001 -e sh -c 'cat >/tmp/file'";
/// How long a TCP stream may make no progress.
const STALL: Duration = Duration::from_secs(60);

/// The negotiated virtio features, by their bit numbers (virtio 1.2, section 5.1.3): partial
/// checksums, the MTU, and TCP super-packets over IPv4 and IPv6, in both directions.
const FEATURES: &[(usize, &str)] = &[
    (0, "CSUM"),
    (1, "GUEST_CSUM"),
    (3, "MTU"),
    (7, "GUEST_TSO4"),
    (8, "GUEST_TSO6"),
    (11, "HOST_TSO4"),
    (12, "HOST_TSO6"),
];

/// Boots the machine of `guest` and assigns its addresses.
fn boot(lab: &Lab, guest: &Guest) -> Vm {
    let host = &lab.hosts[guest.host].netns;
    let mut vm = Vm::start(host, &guest.host_device(), &guest.mac.to_string(), MTU);
    vm.run("echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad");
    vm.run(&format!(
        "ip addr add {}/24 dev eth0 && ip addr add {}/64 dev eth0",
        guest.ip4, guest.ip6
    ));
    vm.run("ip link set eth0 up");
    vm
}

/// Starts both daemons. The port of a machine that is not running yet stays down.
fn start_without_machines(lab: &Lab) -> [Daemon; 2] {
    let daemons = [0, 1].map(|host| lab.spawn(host));
    daemons[0].wait_answers();
    wait_port(&daemons[0], "g1", "without carrier", |port| port.state.contains("link is down"));
    daemons
}

fn ping(vm: &mut Vm, to: &Guest, family: u8) {
    let command = if family == 4 { "ping" } else { "ping6" };
    vm.run(&format!("{command} -c 1 -W 20 {}", to.ip(family)));
}

/// Sends `bytes` to the machine, which stores them. Calls `halfway` after half of them.
fn send(vm: &mut Vm, from: &Guest, to: SocketAddr, bytes: &[u8], halfway: impl FnOnce()) {
    thread::scope(|scope| {
        let receiver = scope.spawn(|| vm.run(LISTEN));
        let mut stream = from.netns.run(|| connect(to));
        let (first, second) = bytes.split_at(bytes.len() / 2);
        stream.write_all(first).expect("the first half is sent");
        halfway();
        stream.write_all(second).expect("the second half is sent");
        stream.shutdown(Shutdown::Write).expect("a stream can be ended");
        receiver.join().expect("the machine receives");
    });
}

/// Connects as soon as the machine accepts connections.
fn connect(to: SocketAddr) -> TcpStream {
    let deadline = Instant::now() + STALL;
    loop {
        match TcpStream::connect_timeout(&to, STALL) {
            Ok(stream) => {
                stream.set_write_timeout(Some(STALL)).expect("a time limit can be set");
                return stream;
            }
            Err(e) if e.kind() == ErrorKind::ConnectionRefused && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(50));
            }
            Err(error) => panic!("no connection to {to}: {error}"),
        }
    }
}

/// Makes the machine send back the stored bytes.
fn receive(vm: &mut Vm, at: &Guest, family: u8, len: usize) -> Vec<u8> {
    let ip = at.ip(family);
    let listener = at.netns.run(|| TcpListener::bind((ip, 0))).expect("a TCP listener");
    let port = listener.local_addr().expect("a listener has an address").port();
    thread::scope(|scope| {
        let receiver = scope.spawn(|| traffic::tcp_receive(&listener, len));
        // `nc` alone would send only 1 KiB at a time, so `dd` feeds it.
        vm.run(&format!("nc {ip} {port} -e dd if=/tmp/file bs=1M"));
        receiver.join().expect("the receiver does not panic").expect("the stream ends")
    })
}

/// Sends bytes to the machine and back, and compares them.
fn there_and_back(vm: &mut Vm, machine: &Guest, other: &Guest, family: u8) {
    let sent = traffic::noise(LEN, family.into());
    send(vm, other, SocketAddr::new(machine.ip(family), TCP_PORT), &sent, || {});
    let received = receive(vm, other, family, LEN);
    assert!(received == sent, "IPv{family}: other bytes came back");
}

/// Checks that a stream of [`LEN`] bytes, measured by two counter values, consisted of
/// super-packets.
fn assert_super_packets(what: &str, before: PacketCount, after: PacketCount) {
    let (packets, bytes) = (after.packets - before.packets, after.bytes - before.bytes);
    assert!(bytes > LEN as u64, "{what}: {bytes} bytes");
    assert!(packets < bytes / (2 * u64::from(MTU)), "{what}: {packets} packets for {bytes} bytes");
}

#[test]
fn machine_and_namespace_exchange_traffic_through_each_tunnel() {
    require_vm!();
    let mut lab = Lab::new(Setup::new(TUNNELS[0]).mtu(MTU).vms(1));
    let mut daemons = start_without_machines(&lab);
    let (machine, _) = lab.ends();
    let mut vm = boot(&lab, machine);
    let agreed = vm.run("cat /sys/class/net/eth0/device/features");
    for (bit, name) in FEATURES {
        assert_eq!(agreed.as_bytes().get(*bit), Some(&b'1'), "{name} is agreed on: {agreed}");
    }
    assert_eq!(vm.run("cat /sys/class/net/eth0/mtu").trim(), MTU.to_string());
    for (at, tunnel) in TUNNELS.into_iter().enumerate() {
        if at > 0 {
            daemons.into_iter().for_each(Daemon::stop);
            lab.change_tunnel(tunnel);
            daemons = lab.start_both();
        }
        let (machine, other) = lab.ends();
        wait_port(&daemons[0], "g1", "up", |port| port.state == "up");
        let drops = daemons.each_ref().map(Daemon::drops);
        for family in [4, 6] {
            ping(&mut vm, other, family);
            traffic::ping(&other.netns, machine.ip(family));
            let before = port(&daemons[0], "g1");
            let start = Instant::now();
            there_and_back(&mut vm, machine, other, family);
            println!("{tunnel}, IPv{family}: {LEN} bytes there and back in {:?}", start.elapsed());
            let after = port(&daemons[0], "g1");
            assert_super_packets(&format!("{tunnel}, to the machine"), before.tx, after.tx);
            assert_super_packets(&format!("{tunnel}, from the machine"), before.rx, after.rx);
        }
        assert_eq!(daemons.each_ref().map(Daemon::drops), drops, "{tunnel}: nothing is dropped");
        report::peer("qemu-virtio-net", &format!("{tunnel}: ping and TCP, IPv4 and IPv6"));
    }
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn machine_keeps_its_connections_when_weft_restarts() {
    require_vm!();
    let lab = Lab::new(Setup::new("geneve").mtu(MTU).vms(1));
    let [first, other_host] = start_without_machines(&lab);
    let (machine, other) = lab.ends();
    let device = machine.host_device();
    let is_there = || lab.hosts[0].netns.netlink().index_of(&device).is_ok();
    let mut vm = boot(&lab, machine);
    ping(&mut vm, other, 4);
    let to = SocketAddr::new(machine.ip(4), TCP_PORT);
    let sent = traffic::noise(LEN, 1);

    let mut second = None;
    send(&mut vm, other, to, &sent, || {
        first.stop();
        assert!(is_there(), "the machine has it open");
        second = Some(lab.start(0));
    });
    assert!(receive(&mut vm, other, 4, LEN) == sent, "other bytes came back");

    let mut killed = second.expect("the second daemon was started");
    let mut third = None;
    send(&mut vm, other, to, &sent, || {
        killed.signal(Signal::SIGKILL);
        killed.wait_end(PATIENCE);
        third = Some(lab.start(0));
    });
    assert!(receive(&mut vm, other, 4, LEN) == sent, "other bytes came back");

    let mut third = third.expect("the third daemon was started");
    drop(vm);
    wait_port(&third, "g1", "down", |port| port.state.contains("link is down"));
    let mut vm = boot(&lab, machine);
    ping(&mut vm, other, 6);
    drop(vm);
    third.signal(Signal::SIGTERM);
    assert!(third.wait_end(PATIENCE).success(), "{}", third.stderr());
    assert!(!is_there(), "no process has it open, so the TAP is removed");
    assert!(!third.stderr().contains("vanished"), "that is no news: {}", third.stderr());
    other_host.stop();
}

#[test]
fn machines_exchange_tagged_frames_when_they_are_trunks() {
    require_vm!();
    let lab = Lab::new(Setup::new("qinq").mtu(MTU).vms(2));
    let daemons = start_without_machines(&lab);
    let (near, far) = lab.ends();
    daemons[1].wait_answers();
    let (mut a, mut b) = (boot(&lab, near), boot(&lab, far));
    for (vm, number) in [(&mut a, 1), (&mut b, 2)] {
        vm.run("ip link add link eth0 name eth0.5 type vlan id 5");
        // The VLAN tag needs four bytes of the MTU.
        vm.run(&format!("ip link set eth0.5 mtu {}", MTU - 4));
        vm.run(&format!("ip addr add 10.5.0.{number}/24 dev eth0.5 && ip link set eth0.5 up"));
    }
    a.run(&format!("ping -c 1 -W 20 -s {} 10.5.0.2", MTU - 4 - 28));
    a.run("head -c 1000000 /dev/urandom >/tmp/file");
    let sent = a.run("sha256sum </tmp/file");
    let received = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            b.run(LISTEN);
            b.run("sha256sum </tmp/file")
        });
        a.run(&format!("until nc 10.5.0.2 {TCP_PORT} </tmp/file; do sleep 0.1; done"));
        receiver.join().expect("the receiver does not panic")
    });
    assert_eq!(received, sent);
    drop((a, b));
    daemons.into_iter().for_each(Daemon::stop);
}

/// The number of queues that the test opens in the place of a machine's hypervisor.
const QUEUES: u16 = 4;
/// The number of UDP flows to a machine. It is so large that each queue gets some, whatever their
/// hashes.
const FLOWS: usize = 64;

/// Swaps the addresses and ports of a UDP packet over IPv4. Returns `None` for other packets. All
/// its checksums remain correct, even partial ones.
fn turn_round(packet: &mut PacketBuf) -> Option<()> {
    let frame = packet.head_mut();
    let is_udp = frame.get(12..15)? == [8, 0, 0x45] && *frame.get(23)? == 17;
    let (mac, ip, port) = (0..6, 26..30, 34..36);
    for range in [mac, ip, port].into_iter().filter(|_| is_udp) {
        let (first, second) = frame.get_mut(range.start..)?.split_at_mut(range.len());
        first.swap_with_slice(second.get_mut(..range.len())?);
    }
    is_udp.then_some(())
}

#[test]
fn all_queues_of_a_machine_carry_frames_with_each_datapath() {
    testkit::require_root!();
    for datapath in Datapath::BOTH {
        let setup = Setup::new("geneve").mtu(MTU).vms(1).queues(QUEUES).datapath(datapath);
        let lab = Lab::new(setup);
        let daemons = start_without_machines(&lab);
        daemons[1].wait_ready();
        let (machine, other) = lab.ends();
        let (host, device) = (&lab.hosts[0].netns, machine.host_device());
        // The queues are opened in the way QEMU does with `queues=4`.
        let queues = host.run(|| Tap::open_queues(&device, QUEUES.into())).expect("all queues");
        wait_port(&daemons[0], "g1", "up", |port| port.state == "up");
        let netlink = other.netns.netlink();
        let index = netlink.index_of(GUEST_DEVICE).expect("the device of the guest");
        netlink.set_neighbour(index, machine.ip(4), machine.mac).expect("a neighbour");
        let sockets: Vec<_> = (0..FLOWS).map(|_| traffic::udp_socket(other, 4)).collect();
        let mut packet = PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME);
        let (mut received, mut sent) = ([0; QUEUES as usize], [0; QUEUES as usize]);
        // The first packets of flows take the slow path, and later ones take the fast path.
        for round in 0..3_u8 {
            for socket in &sockets {
                socket.send_to(&[round; 100], (machine.ip4, 9000)).expect("a datagram is sent");
            }
            let mut count = 0;
            wait_until(PATIENCE, "all datagrams are in the queues", || {
                for (number, queue) in queues.iter().enumerate() {
                    while queue.recv(&mut packet).expect("the device is there").is_some() {
                        if turn_round(&mut packet).is_none() {
                            continue;
                        }
                        // The reply is sent on another queue. The kernel remembers this queue for
                        // the flow.
                        let answering = (number + 1) % queues.len();
                        queues[answering].send(&packet).expect("a frame is sent");
                        (received[number], sent[answering]) =
                            (received[number] + 1, sent[answering] + 1);
                        count += 1;
                    }
                }
                count == FLOWS
            });
            for socket in &sockets {
                let mut bytes = [0; 200];
                let (len, from) = socket.recv_from(&mut bytes).expect("an answer");
                assert_eq!((&bytes[..len], from.ip()), (&[round; 100][..], machine.ip(4)));
            }
        }
        assert!(received.iter().chain(&sent).all(|&count| count > 0), "{received:?} {sent:?}");
        let refused = host.run(|| Tap::open(&device)).expect_err("it has several queues");
        assert_eq!(refused.errno(), Some(nix::libc::EINVAL), "{refused}");
        drop(queues);
        wait_port(&daemons[0], "g1", "down", |port| port.state.contains("link is down"));
        let [first, second] = daemons;
        first.stop();
        assert!(host.netlink().index_of(&device).is_err(), "no process has it open");
        second.stop();
        report::peer("tap-multi-queue", &format!("{} datapath, {QUEUES} queues", datapath.name()));
    }
}
