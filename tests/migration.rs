//! Moves a guest to another host, as a live migration of a virtual machine does, while other guests
//! exchange packets with it at a fixed rate. The longest pause of each flow is printed.

use crate::commands::call::weft;
use crate::common::daemon::wait_port;
use crate::common::frames::{FrameSocket, frame};
use crate::common::{Attachment, Daemon, GUEST_DEVICE, Guest, Lab, PATIENCE, Setup, traffic};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use testkit::host::wait_until;
use testkit::report;
use wire::MacAddr;

/// The MTU of guests. It fits every tunnel type in these tests.
pub const MTU: u16 = 1400;
/// The time between two packets of a flow.
const PACE: Duration = Duration::from_millis(1);
/// A longer time between two replies is a pause of the flow.
const PAUSE: Duration = Duration::from_millis(20);
/// The number of replies that must arrive before a move, and again after it.
const STEADY: u64 = 500;
/// The limit for a pause of the flow, which even a busy machine does not reach. It is far above the
/// figures in `docs/results`, because this test does not measure.
const LIMIT: Duration = Duration::from_secs(5);
/// The UDP port of the guest that moves.
const PORT: u16 = 9000;
/// RARP, the EtherType of the announcement that QEMU sends.
const RARP: u16 = 0x8035;

/// A guest in two places: a namespace on its old host, and one on its new host. Only one of them
/// replies at a time.
pub struct Mover {
    /// The index of the place that replies: 0 or 1.
    place: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    echoes: Vec<JoinHandle<()>>,
    announcer: FrameSocket,
    mac: MacAddr,
}

impl Mover {
    /// Starts the echo service in both namespaces. The first one replies.
    pub fn start(from: &Guest, to: &Guest) -> Self {
        let (place, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let echo = |(number, guest): (usize, &Guest)| {
            let address = SocketAddr::new(guest.ip(4), PORT);
            let socket = guest.netns.run(|| UdpSocket::bind(address)).expect("a UDP socket");
            socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a time limit");
            let (place, stop) = (Arc::clone(&place), Arc::clone(&stop));
            thread::spawn(move || {
                let mut bytes = [0; 64];
                while !stop.load(Ordering::Relaxed) {
                    let Ok((len, peer)) = socket.recv_from(&mut bytes) else { continue };
                    if place.load(Ordering::Relaxed) == number {
                        // Errors are ignored: if the queue is full, the reply is lost, and the flow
                        // counts the loss.
                        let _ = socket.send_to(&bytes[..len], peer);
                    }
                }
            })
        };
        let echoes = [from, to].into_iter().enumerate().map(echo).collect();
        let announcer = FrameSocket::open(&to.netns, GUEST_DEVICE);
        Self { place, stop, echoes, announcer, mac: to.mac }
    }

    /// Continues in the other place, and announces it as QEMU does.
    pub fn move_over(&self) {
        self.place.store(1, Ordering::Relaxed);
        self.announce();
    }

    /// Sends a RARP request, from which switches learn the new place.
    pub fn announce(&self) {
        // RFC 903: Ethernet, IPv4, the operation "reverse request", and the guest's own address
        // twice.
        let mut body = vec![0, 1, 8, 0, 6, 4, 0, 3];
        for _ in 0..2 {
            body.extend_from_slice(&self.mac.0);
            body.extend_from_slice(&[0; 4]);
        }
        self.announcer.send(&frame(MacAddr::BROADCAST, self.mac, RARP, &body));
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.echoes.drain(..).for_each(|echo| echo.join().unwrap_or_default());
    }
}

/// A flow of 1,000 packets per second from a guest to the [`Mover`], and its replies.
pub struct PacedFlow {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    thread: JoinHandle<Outcome>,
}

/// The result of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Packets that were sent.
    pub sent: u64,
    /// Packets without a reply.
    pub lost: u64,
    /// The longest time between two replies.
    pub longest_pause: Duration,
    /// The sum of all times between two replies that are longer than [`PAUSE`].
    pub paused: Duration,
}

impl PacedFlow {
    /// Starts the flow, and waits until it is steady.
    pub fn start(from: &Guest, to: &Guest) -> Self {
        let netlink = from.netns.netlink();
        let index = netlink.index_of(GUEST_DEVICE).expect("the device of a guest");
        netlink.set_neighbour(index, to.ip(4), to.mac).expect("a neighbour");
        let socket = traffic::udp_socket(from, 4);
        socket.connect((to.ip4, PORT)).expect("a UDP socket can be connected");
        socket.set_nonblocking(true).expect("a socket need not block");
        let (stop, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = {
            let (stop, answers) = (Arc::clone(&stop), Arc::clone(&answers));
            thread::spawn(move || pace(&socket, &stop, &answers))
        };
        let flow = Self { stop, answers, thread };
        flow.wait_steady();
        flow
    }

    /// Waits until the flow has run for another half second.
    pub fn wait_steady(&self) {
        let before = self.answers.load(Ordering::Relaxed);
        wait_until(PATIENCE, "the flow goes on", || {
            self.answers.load(Ordering::Relaxed) >= before + STEADY
        });
    }

    /// Waits until the flow has run for another half second, and ends it.
    pub fn end(self, what: &str) -> Outcome {
        self.wait_steady();
        self.stop.store(true, Ordering::Relaxed);
        let outcome = self.thread.join().expect("the flow does not panic");
        let Outcome { sent, lost, longest_pause, .. } = outcome;
        let ms = longest_pause.as_secs_f64() * 1e3;
        report::peer("migration", &format!("{what}: {ms:.1} ms, {lost} of {sent} packets lost"));
        assert!(longest_pause < LIMIT, "{what}: {outcome:?}");
        outcome
    }
}

/// Sends numbered packets until `stop` is set, and then waits for the last replies.
fn pace(socket: &UdpSocket, stop: &AtomicBool, answers: &AtomicU64) -> Outcome {
    let (mut sent, mut received) = (0_u64, 0_u64);
    let [mut longest_pause, mut paused] = [Duration::ZERO; 2];
    let mut last = None;
    let mut next = Instant::now();
    let mut bytes = [0; 64];
    let mut end: Option<Instant> = None;
    while end.is_none_or(|end| Instant::now() < end) {
        while let Ok(len) = socket.recv(&mut bytes) {
            assert_eq!(len, 8, "no other bytes come back");
            let now = Instant::now();
            let pause = last.map_or(Duration::ZERO, |last| now - last);
            longest_pause = longest_pause.max(pause);
            if pause > PAUSE {
                paused += pause;
            }
            last = Some(now);
            received += 1;
            answers.store(received, Ordering::Relaxed);
        }
        let now = Instant::now();
        if end.is_none() && stop.load(Ordering::Relaxed) {
            end = Some(now + Duration::from_millis(200));
        }
        if end.is_none() && now >= next {
            // Errors are ignored: if the queue is full, the packet counts as lost.
            let _ = socket.send(&sent.to_be_bytes());
            sent += 1;
            next += PACE;
        }
        thread::sleep(Duration::from_micros(200));
    }
    Outcome { sent, lost: sent.saturating_sub(received), longest_pause, paused }
}

/// A lab with a moving guest on `h1`, and one guest on each host that exchanges packets with it.
/// Also returns the second namespace of the moving guest, which is attached to `h2`.
pub fn lab_of_mover(setup: Setup) -> (Lab, Guest) {
    let lab = Lab::new(setup.attachment(Attachment::Veth).mtu(MTU).guests(2, 1));
    let mut moved = Guest::new(1, 1);
    moved.name = "moved".to_owned();
    moved.attach(&lab.hosts[1], MTU);
    for guest in [&lab.guests[0], &moved] {
        // IPv6 is disabled, so that only the test sends packets from the two namespaces. Otherwise
        // switches would learn both places.
        let key = format!("net/ipv6/conf/{GUEST_DEVICE}/disable_ipv6");
        guest.netns.sysctl(&key, "1").expect("a sysctl can be set");
        for peer in &lab.guests[1..] {
            let netlink = guest.netns.netlink();
            let index = netlink.index_of(GUEST_DEVICE).expect("the device of a guest");
            netlink.set_neighbour(index, peer.ip(4), peer.mac).expect("a neighbour");
        }
    }
    (lab, moved)
}

/// Starts a flow from each of the guests that do not move.
pub fn start_flows(lab: &Lab) -> [PacedFlow; 2] {
    [1, 2].map(|at| PacedFlow::start(&lab.guests[at], &lab.guests[0]))
}

/// Ends the flows and prints their results.
pub fn end_flows(flows: [PacedFlow; 2], what: &str, daemon: &Daemon) {
    let datapath = daemon.show().datapath;
    for (flow, host) in flows.into_iter().zip(["the old host", "the new host"]) {
        let outcome = flow.end(&format!("{what}, {datapath} datapath, from {host}"));
        // Packets are lost only in pauses: first until a switch has learned the new place, and then
        // while the port changes its host. On a busy machine replies come between the two.
        let explained = outcome.paused.as_millis() as u64 * 3 / 2 + 50;
        assert!(outcome.lost <= explained, "{outcome:?}");
    }
}

/// Reloads the network file on both hosts at the same time.
fn reload(lab: &Lab) {
    let file = lab.network_file();
    let file = file.to_str().expect("a path in UTF-8");
    let controls = [lab.control(0), lab.control(1)];
    thread::scope(|scope| {
        for control in &controls {
            scope.spawn(move || {
                let (code, _, errors) = weft(control, &["reload", file]);
                assert_eq!(code, 0, "{errors}");
            });
        }
    });
}

/// Changes the part of the network file that begins with the port of the first guest.
fn change_port(lab: &Lab, change: impl FnOnce(&str) -> String) {
    let text = std::fs::read_to_string(lab.network_file()).expect("the network file");
    let first = text.find("name = \"g1\"").expect("the first guest");
    let (head, tail) = text.split_at(first);
    std::fs::write(lab.network_file(), head.to_owned() + &change(tail))
        .expect("a file can be written");
}

#[test]
fn flow_goes_on_when_a_reload_moves_its_guest() {
    testkit::require_root!();
    let (lab, moved) = lab_of_mover(Setup::new("geneve"));
    let daemons = lab.start_both();
    let mover = Mover::start(&lab.guests[0], &moved);
    let flows = start_flows(&lab);
    change_port(&lab, |text| {
        let text = text.replacen("host = \"h1\"", "host = \"h2\"", 1);
        text.replacen(&lab.guests[0].host_device(), &moved.host_device(), 1)
    });
    mover.move_over();
    reload(&lab);
    end_flows(flows, "weft reload", &daemons[1]);
    wait_port(&daemons[1], "g1", "on its new host", |port| port.state == "up");
    drop(mover);
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn flow_goes_on_when_a_learned_guest_announces_its_new_host() {
    testkit::require_root!();
    // The moving guest is not in the network file: in both places, its port learns MAC addresses.
    let place = |device: &str| format!("host = \"h2\"\ndevice = {{ interface = \"{device}\" }}");
    let place = place("vif-moved");
    let more = format!(
        "[[logical_switch.port]]\nname = \"p2\"\nmac = \"02:00:00:00:00:c2\"\n{place}\nlearn = true"
    );
    for tunnel in ["geneve", "vxlan"] {
        let (lab, moved) = lab_of_mover(Setup::new(tunnel).more(&more));
        change_port(&lab, |text| {
            let Guest { mac, ip4, ip6, .. } = &lab.guests[0];
            let own = format!("mac = \"{mac}\"\naddresses = [\"{ip4}/24\", \"{ip6}/64\"]");
            text.replacen(&own, "mac = \"02:00:00:00:00:c1\"\nlearn = true", 1)
        });
        let daemons = lab.start_both();
        let mover = Mover::start(&lab.guests[0], &moved);
        let flows = start_flows(&lab);
        mover.move_over();
        end_flows(flows, &format!("learned, {tunnel}"), &daemons[1]);
        drop(mover);
        daemons.into_iter().for_each(Daemon::stop);
    }
}
