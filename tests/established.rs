//! Tests established connections in the kernel datapath, which the eBPF programs forward even
//! without the daemons.

use crate::common::daemon::{WEFT, end_of_reply};
use crate::common::{Daemon, Datapath, GUEST_DEVICE, Guest, Lab, PATIENCE, Setup, traffic};
use nix::sys::signal::Signal;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;
use testkit::host::{TestHost, wait_until};
use testkit::require_root;

/// ACLs: `g1` may open connections to `g2`, and no guest may open one to `g1`.
const LISTS: &str = "[[acl]]\nswitch = \"blue\"\ndirection = \"to-port\"\npriority = 1000\n\
                     match = 'outport == \"g2\" && ip'\naction = \"allow-related\"\n\
                     [[acl]]\nswitch = \"blue\"\ndirection = \"to-port\"\npriority = 900\n\
                     match = 'ip'\naction = \"drop\"\n";
/// How long sent bytes may take to arrive.
const STALL: Duration = Duration::from_secs(10);
/// So many bytes fit into the buffers of a new connection.
const PART: usize = 50_000;
/// UDP counts as a stream after two seconds of traffic in both directions.
const STREAM: Duration = Duration::from_millis(2300);

/// A nonblocking listener of a guest.
pub fn listen(guest: &Guest, address: SocketAddr) -> TcpListener {
    let listener = guest.netns.run(|| TcpListener::bind(address)).expect("a TCP listener");
    listener.set_nonblocking(true).expect("a listener can be made non-blocking");
    listener
}

/// The two sockets of a connection.
pub struct Pair<S>(S, S);

impl Pair<TcpStream> {
    fn open(near: &Guest, far: &Guest, family: u8) -> Self {
        let listener = listen(far, SocketAddr::new(far.ip(family), 0));
        let address = listener.local_addr().expect("an address");
        Self::connect(near, address, &[listener])
    }

    /// Connects to `address`, whose connection one of the listeners accepts.
    pub fn connect(near: &Guest, address: SocketAddr, listeners: &[TcpListener]) -> Self {
        let client = near.netns.run(|| TcpStream::connect_timeout(&address, PATIENCE));
        let client = client.unwrap_or_else(|error| panic!("cannot connect to {address}: {error}"));
        let mut accepted = None;
        wait_until(PATIENCE, "the connection arrives", || {
            accepted = listeners.iter().find_map(|listener| listener.accept().ok());
            accepted.is_some()
        });
        let (server, _) = accepted.expect("the wait ends with a connection");
        server.set_nonblocking(false).expect("a stream can be made blocking");
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(STALL)).expect("a timeout can be set");
            stream.set_write_timeout(Some(STALL)).expect("a timeout can be set");
            stream.set_nodelay(true).expect("an option can be set");
        }
        Self(client, server)
    }

    /// Sends bytes in both directions. Returns false if some do not arrive in time.
    pub fn exchange(&mut self, len: usize) -> bool {
        let Self(a, b) = self;
        let sent = traffic::noise(len, 3);
        let mut got = vec![0; len];
        let mut one_way = |from: &mut TcpStream, to: &mut TcpStream| {
            // The receiver reads only after the sender has written, so the buffers must hold all.
            let mut parts = sent.chunks(PART).zip(got.chunks_mut(PART));
            parts.all(|(sent, got)| {
                from.write_all(sent).is_ok() && to.read_exact(got).is_ok() && got == sent
            })
        };
        one_way(a, b) && one_way(b, a)
    }
}

impl Pair<UdpSocket> {
    fn open(near: &Guest, far: &Guest, family: u8) -> Self {
        let (a, b) = (traffic::udp_socket(near, family), traffic::udp_socket(far, family));
        let ends = [&a, &b].map(|socket| socket.local_addr().expect("an address"));
        a.connect(ends[1]).expect("a socket can be connected");
        b.connect(ends[0]).expect("a socket can be connected");
        Self(a, b)
    }

    fn exchange(&self, len: usize) -> bool {
        let Self(a, b) = self;
        let (sent, mut got) = (traffic::noise(len, 5), vec![0; len + 1]);
        let mut one_way = |from: &UdpSocket, to: &UdpSocket| {
            let received = from.send(&sent).and_then(|_| to.recv(&mut got));
            received.is_ok_and(|len| got[..len] == sent)
        };
        one_way(a, b) && one_way(b, a)
    }
}

/// The number of fused megaflows.
pub fn fused(lab: &Lab, host: usize) -> u64 {
    let totals = end_of_reply(&lab.control(host), r#"{"command":"flows"}"#);
    totals["switch"]["fused"].as_u64().expect("a number of megaflows")
}

/// Waits until each daemon has at least `least` fused megaflows and the number stays constant.
/// `traffic` is called repeatedly, so that the megaflows do not expire.
pub fn wait_fused(lab: &Lab, least: u64, mut traffic: impl FnMut()) {
    // A pass that no packet has taken before cannot be fused at the first attempt.
    const PAUSE: Duration = Duration::from_millis(150);
    let (mut before, mut rounds) = ([0; 2], 0);
    wait_until(2 * PATIENCE, "connections are fused", || {
        traffic();
        std::thread::sleep(PAUSE);
        let now = [0, 1].map(|host| fused(lab, host));
        rounds = if now == before { rounds + 1 } else { 0 };
        before = now;
        rounds >= 4 && now.iter().all(|&fused| fused >= least)
    });
}

/// Runs `during` while these daemons are stopped with SIGSTOP.
pub fn while_stopped(daemons: &[Daemon], during: impl FnOnce()) {
    /// Continues the daemons when dropped, even if the test fails.
    struct Stopped<'a>(&'a [Daemon]);
    impl Drop for Stopped<'_> {
        fn drop(&mut self) {
            self.0.iter().for_each(|daemon| daemon.signal(Signal::SIGCONT));
        }
    }
    daemons.iter().for_each(|daemon| daemon.signal(Signal::SIGSTOP));
    let _stopped = Stopped(daemons);
    during();
}

#[test]
fn established_connections_go_on_without_daemons() {
    require_root!();
    for tunnel in ["vxlan", "geneve", "gre"] {
        let lab = Lab::new(Setup::new(tunnel).datapath(Datapath::Kernel).more(LISTS));
        let daemons = lab.start_both();
        let (near, far) = lab.ends();
        let mut tcp = [4, 6].map(|family| Pair::<TcpStream>::open(near, far, family));
        let udp = [4, 6].map(|family| Pair::<UdpSocket>::open(near, far, family));
        assert!(udp.iter().all(|pair| pair.exchange(100)), "{tunnel}");
        std::thread::sleep(STREAM);
        // Four connections with two directions each.
        wait_fused(&lab, 8, || {
            assert!(tcp.iter_mut().all(|pair| pair.exchange(100)), "{tunnel}");
            assert!(udp.iter().all(|pair| pair.exchange(100)), "{tunnel}");
        });
        while_stopped(&daemons, || {
            std::thread::sleep(Duration::from_millis(200));
            // Also sends super-packets.
            assert!(tcp.iter_mut().all(|pair| pair.exchange(200_000)), "{tunnel}: TCP");
            assert!(udp.iter().all(|pair| pair.exchange(1300)), "{tunnel}: UDP");
        });
        // Connection tracking in the daemon has not seen these packets, and must accept the
        // following ones.
        assert!(tcp.iter_mut().all(|pair| pair.exchange(100)), "{tunnel}");
        drop(tcp);
        wait_until(PATIENCE, "the ends of connections end their megaflows", || {
            assert!(udp.iter().all(|pair| pair.exchange(100)));
            [0, 1].iter().all(|&host| fused(&lab, host) == 4)
        });
        traffic::tcp(near, far, 4, 100_000);
        daemons.into_iter().for_each(Daemon::stop);
    }
}

/// A guest of another network that has the same addresses as `guest`.
fn copy_guest(guest: &Guest) -> Guest {
    let name = guest.name.replace('g', "r");
    let netns = TestHost::new(&name);
    let Guest { host, port_key, mac, ip4, ip6, .. } = *guest;
    Guest { name, host, port_key, netns, mac, ip4, ip6 }
}

/// The `network.toml` text of the logical switch `red` with these guests.
fn red(guests: &[Guest]) -> String {
    let mut text = "[[logical_switch]]\nname = \"red\"\nvni = 6001\n".to_owned();
    for guest in guests {
        let Guest { name, mac, ip4, ip6, .. } = guest;
        let (host, netns) = (guest.host + 1, guest.netns.name().expect("a namespace has a name"));
        text += &format!(
            "[[logical_switch.port]]\nname = \"{name}\"\nhost = \"h{host}\"\nmac = \"{mac}\"\n\
             addresses = [\"{ip4}/24\", \"{ip6}/64\"]\n\
             device = {{ tap = \"{GUEST_DEVICE}\", netns = \"{netns}\" }}\n"
        );
    }
    text + "[[acl]]\nswitch = \"red\"\ndirection = \"to-port\"\npriority = 1000\n\
            match = 'ip'\naction = \"allow-related\"\n"
}

#[test]
fn connections_of_two_networks_with_equal_addresses_and_ports_are_apart() {
    require_root!();
    let copied_guests =
        Lab::new(Setup::new("geneve")).guests.iter().map(copy_guest).collect::<Vec<_>>();
    let text = format!("{LISTS}{}", red(&copied_guests));
    let lab = Lab::new(Setup::new("geneve").datapath(Datapath::Kernel).more(&text));
    let daemons = lab.start_both();
    let (near, far) = lab.ends();
    let [near_copy, far_copy] = &copied_guests[..] else { panic!("two guests") };
    let bind = |guest: &Guest, port: u16| {
        let address = (guest.ip4, port);
        let socket = guest.netns.run(|| UdpSocket::bind(address)).expect("a socket");
        socket.set_read_timeout(Some(STALL)).expect("a timeout can be set");
        socket
    };
    let connect = |near: &Guest, far: &Guest| {
        let (a, b) = (bind(near, 5000), bind(far, 6000));
        a.connect((far.ip4, 6000)).expect("a socket can be connected");
        b.connect((near.ip4, 5000)).expect("a socket can be connected");
        Pair(a, b)
    };
    let (blue, red) = (connect(near, far), connect(near_copy, far_copy));
    assert!(blue.exchange(100) && red.exchange(200));
    std::thread::sleep(STREAM);
    wait_fused(&lab, 4, || assert!(blue.exchange(100) && red.exchange(200)));
    while_stopped(&daemons, || assert!(blue.exchange(300) && red.exchange(400)));
    // Flushing a zone ends only the connection of `red` and its megaflows.
    for (host, guest) in [(0, near_copy), (1, far_copy)] {
        let zone = format!("red/{}", guest.name);
        let mut flush = Command::new(WEFT);
        flush.args(["ct", "--flush", "--zone", &zone, "--control"]).arg(lab.control(host));
        assert!(flush.output().expect("weft can be started").status.success());
    }
    wait_until(PATIENCE, "the megaflows of red are deleted", || {
        assert!(blue.exchange(100));
        [0, 1].iter().all(|&host| fused(&lab, host) == 2)
    });
    while_stopped(&daemons, || assert!(blue.exchange(300)));
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn flushed_connection_is_no_longer_forwarded() {
    require_root!();
    let lab = Lab::new(Setup::new("geneve").datapath(Datapath::Kernel).more(LISTS));
    let daemons = lab.start_both();
    let (near, far) = lab.ends();
    let mut tcp = Pair::<TcpStream>::open(near, far, 4);
    wait_fused(&lab, 2, || assert!(tcp.exchange(100)));
    for host in [0, 1] {
        let mut flush = Command::new(WEFT);
        flush.args(["ct", "--flush", "--all", "--control"]).arg(lab.control(host));
        assert!(flush.output().expect("weft can be started").status.success());
    }
    wait_until(PATIENCE, "the megaflows are deleted", || {
        [0, 1].iter().all(|&h| fused(&lab, h) == 0)
    });
    // The server may not open connections. After the flush, its segments look like a new
    // connection.
    let Pair(_, server) = &mut tcp;
    let before = daemons[0].drops().get("flow_drop").copied().unwrap_or_default();
    server.write_all(b"late").expect("the kernel takes it");
    wait_until(PATIENCE, "the segment is dropped", || {
        let drops = daemons.iter().map(|daemon| daemon.drops().get("flow_drop").copied());
        drops.map(Option::unwrap_or_default).sum::<u64>() > before
    });
    daemons.into_iter().for_each(Daemon::stop);
}
