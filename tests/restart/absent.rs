//! Tests guests without permanent neighbour entries while no daemon runs: established flows
//! continue, and new flows are dropped.

use super::{Pinning, kill};
use crate::common::{GUEST_DEVICE, Guest, PATIENCE, Setup, traffic};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use testkit::host::wait_until;
use testkit::require_root;

/// How long systemd waits before it restarts a killed daemon.
const SHORT: Duration = Duration::from_secs(1);
/// The default idle timeout of megaflows.
const IDLE: Duration = Duration::from_secs(10);
/// The time between two datagrams.
const STEP: Duration = Duration::from_millis(10);

/// Makes a guest verify its neighbours often: after one second instead of half a minute. If a
/// neighbour does not respond, it is given up three seconds later, which is Linux's default.
fn forget_neighbours_soon(guest: &Guest) {
    set_neighbours(guest, "delay_first_probe_time", "1");
    confirm_every(guest, "1000");
    let mut flush = guest.netns.program("ip");
    let flushed = flush.args(["neigh", "flush", "dev", GUEST_DEVICE, "nud", "permanent"]).status();
    assert!(flushed.expect("ip can be started").success(), "the neighbours can be removed");
}

/// Sets for how many milliseconds a guest considers a neighbour reachable.
fn confirm_every(guest: &Guest, milliseconds: &str) {
    set_neighbours(guest, "base_reachable_time_ms", milliseconds);
}

/// Makes a guest verify a neighbour one second after the next packet to it.
fn confirm_now(guest: &Guest, other: &Guest, family: u8) {
    let (ip, mac) = (other.ip(family).to_string(), other.mac.to_string());
    let mut set = guest.netns.program("ip");
    set.args(["neigh", "replace", &ip, "lladdr", &mac, "dev", GUEST_DEVICE, "nud", "stale"]);
    assert!(set.status().expect("ip can be started").success(), "a neighbour can be set");
}

fn set_neighbours(guest: &Guest, key: &str, value: &str) {
    for version in ["ipv4", "ipv6"] {
        let path = format!("net/{version}/neigh/{GUEST_DEVICE}/{key}");
        guest.netns.sysctl(&path, value).expect("a sysctl can be set");
    }
}

/// Datagrams from one guest to another at a fixed rate.
struct Stream {
    from: UdpSocket,
    to: UdpSocket,
    sent: AtomicU64,
    received: AtomicU64,
    done: AtomicBool,
}

impl Stream {
    fn new(from: &Guest, to: &Guest, family: u8) -> Self {
        let (from, to) = (traffic::udp_socket(from, family), traffic::udp_socket(to, family));
        from.connect(to.local_addr().expect("an address")).expect("a route");
        to.set_read_timeout(Some(Duration::from_millis(50))).expect("a limit");
        let zero = AtomicU64::default;
        Self { from, to, sent: zero(), received: zero(), done: AtomicBool::new(false) }
    }

    fn send(&self) {
        while !self.done.load(Ordering::Relaxed) {
            // Sending fails while the guest has no entry for the neighbour.
            if self.from.send(b"datagram").is_ok() {
                self.sent.fetch_add(1, Ordering::Relaxed);
            }
            std::thread::sleep(STEP);
        }
    }

    fn receive(&self) {
        let mut bytes = [0; 16];
        while !self.done.load(Ordering::Relaxed) {
            if self.to.recv(&mut bytes).is_ok() {
                self.received.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// The number of sent datagrams that have not arrived.
    fn lost(&self) -> u64 {
        let received = self.received();
        self.sent.load(Ordering::Relaxed).saturating_sub(received)
    }

    /// Sends while `work` runs.
    fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        /// Ends the threads even if `work` panics.
        struct End<'a>(&'a AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        std::thread::scope(|scope| {
            let _end = End(&self.done);
            scope.spawn(|| self.receive());
            scope.spawn(|| self.send());
            let before = self.received();
            wait_until(PATIENCE, "the stream flows", || self.received() > before + 10);
            work()
        })
    }
}

#[test]
fn flow_loses_nothing_when_the_daemon_is_absent_for_as_long_as_systemd_waits() {
    require_root!();
    let pinning = Pinning::new(Setup::new("geneve"));
    let [first, second] = pinning.start_both();
    let (a, b) = pinning.lab.ends();
    [a, b].into_iter().for_each(forget_neighbours_soon);
    let stream = Stream::new(a, b, 4);
    let first = stream.during(|| {
        // In this time, the guest verifies the neighbour several times.
        std::thread::sleep(3 * SHORT);
        let before = stream.lost();
        kill(first);
        std::thread::sleep(SHORT);
        let first = pinning.start(0);
        std::thread::sleep(2 * SHORT);
        let lost = stream.lost();
        // A few datagrams may still be in flight.
        assert!(lost <= before + 2, "{lost} lost, {before} before");
        first
    });
    first.stop();
    second.stop();
}

/// The guest verifies its neighbour for the first time long after the last ARP request or neighbour
/// solicitation. The megaflow of these messages must still exist.
#[test]
fn flow_loses_nothing_when_neighbours_are_confirmed_while_no_daemon_runs() {
    require_root!();
    let pinning = Pinning::new(Setup::new("geneve"));
    let [first, second] = pinning.start_both();
    let (a, b) = pinning.lab.ends();
    [a, b].into_iter().for_each(forget_neighbours_soon);
    let [v4, v6] = [4, 6].map(|family| Stream::new(a, b, family));
    let work = || {
        // The guests verify each other for a while, and then not for longer than the idle timeout
        // of other megaflows.
        std::thread::sleep(4 * SHORT);
        [a, b].into_iter().for_each(|guest| confirm_every(guest, "60000"));
        std::thread::sleep(3 * IDLE / 2);
        kill(first);
        let before = [v4.lost(), v6.lost()];
        for (guest, other) in [(a, b), (b, a)] {
            [4, 6].into_iter().for_each(|family| confirm_now(guest, other, family));
        }
        std::thread::sleep(10 * SHORT);
        // A few datagrams may still be in flight.
        for (family, lost, before) in [(4, v4.lost(), before[0]), (6, v6.lost(), before[1])] {
            assert!(lost <= before + 2, "IPv{family}: {lost} lost, {before} before");
        }
        pinning.start(0)
    };
    let first = v4.during(|| v6.during(work));
    first.stop();
    second.stop();
}

/// The switch itself responds to the guest's ARP requests, and its eBPF programs must continue to
/// do so.
#[test]
fn flow_loses_nothing_when_the_switch_answers_arp_while_no_daemon_runs() {
    require_root!();
    let pinning = Pinning::new(Setup::new("geneve"));
    let file = pinning.lab.network_file();
    let text = std::fs::read_to_string(&file).expect("a network file");
    let answering =
        text.replacen("[[logical_switch]]\n", "[[logical_switch]]\narp_responder = true\n", 1);
    assert_ne!(answering, text);
    std::fs::write(&file, answering).expect("a file can be written");
    let [first, second] = pinning.start_both();
    let (a, b) = pinning.lab.ends();
    [a, b].into_iter().for_each(forget_neighbours_soon);
    let stream = Stream::new(a, b, 4);
    let first = stream.during(|| {
        // In this time, the guest verifies the neighbour several times.
        std::thread::sleep(4 * SHORT);
        kill(first);
        let before = stream.lost();
        // Without replies, the guest would give up the neighbour after three seconds.
        std::thread::sleep(10 * SHORT);
        let lost = stream.lost();
        // A few datagrams may still be in flight.
        assert!(lost <= before + 2, "{lost} lost, {before} before");
        pinning.start(0)
    });
    first.stop();
    second.stop();
}

#[test]
fn new_flow_is_dropped_and_counted_until_the_next_daemon_runs() {
    require_root!();
    let pinning = Pinning::new(Setup::new("geneve"));
    let [first, second] = pinning.start_both();
    let (a, b) = pinning.lab.ends();
    traffic::udp_echo(a, b, 4, 100);
    kill(first);
    let (near, far) = (traffic::udp_socket(a, 6), traffic::udp_socket(b, 6));
    far.set_read_timeout(Some(Duration::from_millis(500))).expect("a limit");
    for _ in 0..5 {
        near.send_to(b"new", far.local_addr().expect("an address")).expect("a datagram is sent");
        assert!(far.recv(&mut [0; 8]).is_err(), "a new flow needs a daemon");
    }
    let first = pinning.start(0);
    let counted = first.show().ports[0].drops.get("no_daemon").copied().unwrap_or_default();
    assert!(counted > 0, "nothing is counted as dropped");
    traffic::ping(&a.netns, b.ip(6));
    traffic::udp_echo(a, b, 6, 100);
    first.stop();
    second.stop();
}
