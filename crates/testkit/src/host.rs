//! Network namespaces that act as hosts, for tests with the running kernel.
//!
//! Such a test begins with [`require_root!`](crate::require_root). Without root it is skipped and
//! recorded in the [`report`]; with `CI=true` in the environment, a skip is a failure. All
//! functions here panic on errors.

use std::cell::Cell;
use std::env;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Deref;
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use netdev::{Dad, Ifindex, IpNet, LinkKind, LinkSpec, Netlink, Netns, OwnedNetns};
use wire::MacAddr;

#[cfg(doc)]
use crate::report;

/// The interval at which [`wait_until`] checks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How long a change of the kernel's configuration may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Skips the calling test, recorded in the [`report`], unless the process may create network
/// namespaces.
#[macro_export]
macro_rules! require_root {
    () => {
        if !$crate::host::may_run($crate::test_name!(), $crate::report::lacks_root) {
            return;
        }
    };
}

/// Skips the calling test, recorded in the [`report`], unless the program `name` of the Debian
/// package is installed.
#[macro_export]
macro_rules! require_program {
    ($name:expr, $package:expr) => {
        if !$crate::host::may_run($crate::test_name!(), |test| {
            $crate::report::lacks_program(test, $name, $package)
        }) {
            return;
        }
    };
}

/// The path of the enclosing function.
#[macro_export]
macro_rules! test_name {
    () => {{
        fn here() {}
        let path = ::std::any::type_name_of_val(&here);
        path.strip_suffix("::here").unwrap_or(path)
    }};
}

/// Returns false when `lacks` returns true for `test`. Used by
/// [`require_root!`](crate::require_root) and [`require_program!`](crate::require_program).
///
/// # Panics
/// With `CI=true` in the environment, when it would return false.
pub fn may_run(test: &str, lacks: impl FnOnce(&str) -> bool) -> bool {
    let lacks = lacks(test);
    let in_ci = env::var_os("CI").is_some_and(|value| value == "true");
    assert!(
        !(lacks && in_ci),
        "{test} lacks a requirement (see the report), and with CI=true it must not be skipped"
    );
    !lacks
}

/// A host: a network namespace whose loopback device is up. Dropping it removes the namespace.
/// Dereferences to its [`Netns`].
#[derive(Debug)]
pub struct TestHost {
    netlink: Netlink,
    ports: Cell<u32>,
    netns: OwnedNetns,
}

impl TestHost {
    /// Creates a host. Its namespace gets a unique name that contains `name`.
    pub fn new(name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = COUNT.fetch_add(1, Ordering::Relaxed);
        let netns = OwnedNetns::create(&format!("weft-test-{}-{unique}-{name}", process::id()))
            .expect("a namespace can be created");
        // Without duplicate address detection, link-local addresses are usable at once.
        netns
            .sysctl("net/ipv6/conf/default/accept_dad", "0")
            .expect("duplicate address detection can be turned off");
        let netlink = netns.netlink().expect("a netlink socket can be opened");
        Self { netlink, ports: Cell::new(0), netns }
    }

    /// The handle for links, addresses, routes and neighbours.
    pub fn netlink(&self) -> &Netlink {
        &self.netlink
    }

    /// A command that runs `program` on this host.
    pub fn program(&self, program: &str) -> Command {
        self.command(Command::new(program))
    }

    /// Runs `work` on this host, on a new thread.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.run_in(work).expect("a thread can enter the namespace")
    }

    fn next_port(&self) -> String {
        let number = self.ports.get();
        self.ports.set(number + 1);
        format!("eth{number}")
    }
}

impl Deref for TestHost {
    type Target = Netns;

    fn deref(&self) -> &Netns {
        &self.netns
    }
}

/// One end of a [`pair`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WireEnd {
    /// The name of the link: `eth0` for the first pair of a host, then `eth1` ...
    pub name: String,
    /// Its interface index.
    pub index: Ifindex,
    /// Its MAC address.
    pub mac: MacAddr,
    /// Its IPv4 address, in a /24 with the other end.
    pub ip4: Ipv4Addr,
    /// Its IPv6 address, in a /64 with the other end.
    pub ip6: Ipv6Addr,
}

/// Connects two hosts by a veth pair that is up and has usable addresses. The n-th pair of the
/// process has 10.x.y.1 and 10.x.y.2 with n = 256 x + y, and fd00:n::1 and fd00:n::2 with n in
/// hexadecimal. Returns the ends of `a` and `b`.
pub fn pair(a: &TestHost, b: &TestHost) -> (WireEnd, WireEnd) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let network = (COUNT.fetch_add(1, Ordering::Relaxed) % 0xffff) as u16;
    let (name_a, name_b) = (a.next_port(), b.next_port());
    let peer = LinkSpec::new(&name_b).netns(b).up();
    a.netlink
        .create(&LinkSpec::new(&name_a).up(), &LinkKind::Veth { peer })
        .expect("a veth pair can be created");
    (wire_end(a, name_a, network, 1), wire_end(b, name_b, network, 2))
}

fn wire_end(host: &TestHost, name: String, network: u16, number: u8) -> WireEnd {
    let link = host.netlink.link(&name).expect("a new link is there");
    let [high, low] = network.to_be_bytes();
    let ip4 = Ipv4Addr::new(10, high, low, number);
    let ip6 = Ipv6Addr::new(0xfd00, network, 0, 0, 0, 0, 0, number.into());
    for (address, len) in [(IpAddr::from(ip4), 24), (IpAddr::from(ip6), 64)] {
        let prefix = IpNet::new(address, len).expect("the length fits the family");
        host.netlink.add_address(link.index, prefix, Dad::Skip).expect("an address can be added");
        wait_until(PATIENCE, "the kernel has installed the address", || {
            host.netlink.route_get(address, None).is_ok_and(|path| path.local)
        });
    }
    WireEnd { name, index: link.index, mac: link.mac, ip4, ip6 }
}

/// Waits until `condition` holds. Checks it every 10 ms, and later every 100 ms.
///
/// # Panics
/// When it does not hold within `timeout`; the message names `what`.
pub fn wait_until(timeout: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        let waited = start.elapsed();
        assert!(waited < timeout, "waited {timeout:?} in vain: {what}");
        // A condition may start a program, so a long wait checks it less often.
        thread::sleep((waited / 6).clamp(POLL_INTERVAL, 10 * POLL_INTERVAL));
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn test_name_is_the_path_of_the_function() {
        assert!(crate::test_name!().ends_with("tests::test_name_is_the_path_of_the_function"));
    }

    #[test]
    fn test_may_run_when_it_lacks_nothing() {
        assert!(may_run("test", |_| false));
    }

    #[test]
    #[should_panic(expected = "waited 20ms in vain: the impossible")]
    fn waiting_ends_when_the_condition_never_holds() {
        wait_until(Duration::from_millis(20), "the impossible", || false);
    }

    #[test]
    fn paired_hosts_reach_each_other_when_just_created() {
        crate::require_root!();
        let (a, b) = (TestHost::new("a"), TestHost::new("b"));
        let (end_a, end_b) = pair(&a, &b);
        for (from, to) in [
            (IpAddr::from(end_a.ip4), IpAddr::from(end_b.ip4)),
            (IpAddr::from(end_a.ip6), IpAddr::from(end_b.ip6)),
        ] {
            let receiver = b.run(|| UdpSocket::bind((to, 0))).unwrap();
            receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let sender = a.run(|| UdpSocket::bind((from, 0))).unwrap();
            sender.send_to(b"hello", receiver.local_addr().unwrap()).unwrap();
            let mut bytes = [0; 16];
            let (length, peer) = receiver.recv_from(&mut bytes).unwrap();
            assert_eq!((&bytes[..length], peer), (&b"hello"[..], sender.local_addr().unwrap()));
        }
    }

    #[test]
    fn namespace_is_gone_when_its_host_is_dropped() {
        crate::require_root!();
        let host = TestHost::new("gone");
        let name = host.name().unwrap().to_owned();
        assert!(Netns::list().unwrap().contains(&name));
        drop(host);
        assert!(!Netns::list().unwrap().contains(&name));
    }
}
