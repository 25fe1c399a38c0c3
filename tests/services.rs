//! Tests load balancers and address translation that are configured in one network file, and the
//! list of their connections.

use crate::commands::call::{Watch, weft, weft_json};
use crate::common::daemon::reply;
use crate::common::{Daemon, Datapath, GUEST_DEVICE, Guest, Lab, PATIENCE, Setup, traffic};
use crate::established::{Pair, listen, wait_fused, while_stopped};
use crate::ovn::clients::{backends_of, wait_accepted};
use crate::ovn::nat::{FLOATING, FORWARDED, OUTSIDE, SERVER, exchange, ip};
use crate::peers::carry_wire_frames;
use netdev::Route;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;
use testkit::host::{TestHost, wait_until};
use testkit::require_root;
use traffic::{Answer, EchoServer};
use wire::MacAddr;

/// The virtual addresses of the load balancer.
const VIPS: [&str; 2] = ["10.9.9.9", "fd99::9"];
/// The addresses of the router that runs on every host, via which guests reach the virtual
/// addresses.
const CORE: [&str; 2] = ["192.168.7.253", "fd77::fd"];
/// The addresses of the router on `h2`, which connects guests to the network outside.
pub const EDGE: [&str; 2] = ["192.168.7.254", "fd77::fe"];
/// The virtual addresses of the load balancer on the `h2` router, in the network outside.
const OUTSIDE_VIPS: [&str; 2] = ["172.16.9.40", "fd16::40"];
pub const BACKEND_PORT: u16 = 8080;
const STREAM: usize = 100_000;

/// The guest in the network outside. It is on `h1`.
pub fn outside() -> Guest {
    let netns = TestHost::new("web");
    netns.sysctl("net/ipv4/ping_group_range", "0 2147483647").expect("a sysctl can be set");
    let mac = MacAddr([2, 0, 0, 0, 9, 1]);
    let (ip4, ip6) = ([192, 0, 2, 9].into(), "fd00::9".parse().expect("an address"));
    Guest { name: "web".to_owned(), host: 0, port_key: 1, netns, mac, ip4, ip6 }
}

/// The network file text that is added to the logical switch `blue`: the network outside, and two
/// routers. The one on `h2` connects `blue` with the network outside.
pub fn routers(outside: &Guest) -> String {
    let Guest { name, mac, netns, .. } = outside;
    let netns = netns.name().expect("the namespace of a guest has a name");
    let mut text = format!(
        "[[logical_switch]]\nname = \"out\"\nvni = 5002\n\
         [[logical_switch.port]]\nname = \"{name}\"\nhost = \"h1\"\nmac = \"{mac}\"\n\
         addresses = [\"{}/24\", \"{}/64\"]\n\
         device = {{ tap = \"{GUEST_DEVICE}\", netns = \"{netns}\" }}\n",
        SERVER[0], SERVER[1]
    );
    for (router, home, ports) in [
        ("core", "", vec![("blue", CORE, 1)]),
        ("edge", "host = \"h2\"\n", vec![("blue", EDGE, 2), ("out", OUTSIDE, 3)]),
    ] {
        text += &format!("[[logical_router]]\nname = \"{router}\"\n{home}");
        for (switch, [v4, v6], number) in ports {
            text += &format!(
                "[[logical_router.port]]\nname = \"{router}-{switch}\"\nswitch = \"{switch}\"\n\
                 mac = \"02:00:00:00:ff:0{number}\"\naddresses = [\"{v4}/24\", \"{v6}/64\"]\n"
            );
        }
    }
    text
}

/// The text of [`routers`], and load balancers, address translation, and ACLs for `g2`. The guests
/// of the logical switch `blue` are `g1` and `g2` on `h1`, and `g3` on `h2`.
pub fn services(outside: &Guest) -> String {
    let mut text = routers(outside);
    for (family, subnet, guest) in [(4, "192.168.7.0/24", "192.168.7."), (6, "fd77::/64", "fd77::")]
    {
        for (kind, external, internal) in [
            ("snat", OUTSIDE, subnet.to_owned()),
            ("dnat_and_snat", FLOATING, format!("{guest}3")),
            ("dnat", FORWARDED, format!("{guest}1")),
        ] {
            let external = ip(external, family);
            text += &format!(
                "[[nat]]\nrouter = \"edge\"\ntype = \"{kind}\"\nexternal = \"{external}\"\n\
                 internal = \"{internal}\"\n"
            );
        }
        let backend = |number: u8| {
            let address = format!("{guest}{number}").parse().expect("an address");
            SocketAddr::new(address, BACKEND_PORT)
        };
        text += &format!(
            "[[load_balancer]]\nname = \"web{family}\"\nswitches = [\"blue\"]\n\
             protocol = \"tcp\"\nvip = \"{}\"\nbackends = [\"{}\", \"{}\"]\n",
            vip(family),
            backend(2),
            backend(3)
        );
        // The virtual address of the second load balancer is the router's own address, which is
        // also the source of translated connections.
        for (name, vip) in [("out", router_vips(family)[0]), ("own", router_vips(family)[1])] {
            text += &format!(
                "[[load_balancer]]\nname = \"{name}{family}\"\nrouters = [\"edge\"]\n\
                 protocol = \"tcp\"\nvip = \"{vip}\"\nbackends = [\"{}\", \"{}\"]\n",
                backend(1),
                backend(3)
            );
        }
    }
    for (priority, condition, action) in [
        (1000, format!("outport == \"g2\" && tcp.dst == {BACKEND_PORT}"), "allow-related"),
        (900, "outport == \"g2\" && ip".to_owned(), "drop"),
    ] {
        text += &format!(
            "[[acl]]\nswitch = \"blue\"\ndirection = \"to-port\"\npriority = {priority}\n\
             match = '{condition}'\naction = \"{action}\"\n"
        );
    }
    text
}

pub fn vip(family: u8) -> SocketAddr {
    SocketAddr::new(ip(VIPS, family), 80)
}

/// The virtual addresses and ports that the router on `h2` balances for the network outside.
pub fn router_vips(family: u8) -> [SocketAddr; 2] {
    [OUTSIDE_VIPS, OUTSIDE].map(|vip| SocketAddr::new(ip(vip, family), 81))
}

pub fn add_routes(guest: &Guest) {
    for (network, gateway) in [
        (format!("{}/32", VIPS[0]), CORE[0]),
        (format!("{}/128", VIPS[1]), CORE[1]),
        ("172.16.9.0/24".to_owned(), EDGE[0]),
        ("fd16::/64".to_owned(), EDGE[1]),
    ] {
        let network = network.parse().expect("a prefix");
        let route = Route::via(network, gateway.parse().expect("an address"));
        // The kernel adds the route to an IPv6 gateway only after it has detected the carrier.
        wait_until(PATIENCE, "the gateway is reachable", || {
            guest.netns.netlink().add_route(&route).is_ok()
        });
    }
}

#[test]
fn translated_connections_go_on_without_daemons() {
    require_root!();
    let outside = outside();
    let (kernel, text) = (Datapath::Kernel, services(&outside));
    let lab = Lab::new(Setup::new("geneve").guests(2, 1).datapath(kernel).more(&text));
    let daemons = lab.start_both();
    let [first, second, third] = &lab.guests[..] else { panic!("three guests") };
    lab.guests.iter().for_each(add_routes);
    let (mut balanced, mut translated) = open([first, second, third], &outside);
    wait_fused(&lab, 8, || {
        let mut all = balanced.iter_mut().chain(&mut translated);
        assert!(all.all(|pair| pair.exchange(100)));
    });
    while_stopped(&daemons, || {
        // The translated connections pass `h2`, whose eBPF programs do not forward from one tunnel
        // into another. So only the balanced ones continue.
        for (number, pair) in balanced.iter_mut().enumerate() {
            assert!(pair.exchange(200_000), "connection {number}");
        }
    });
    let mut all = balanced.iter_mut().chain(&mut translated);
    assert!(all.all(|pair| pair.exchange(200_000)));
    drop((balanced, translated));
    daemons.into_iter().for_each(Daemon::stop);
}

/// Opens connections to the load balancer, and connections to and from the network outside. Returns
/// the balanced connections and the translated ones.
fn open(
    [first, second, third]: [&Guest; 3],
    outside: &Guest,
) -> (Vec<Pair<TcpStream>>, Vec<Pair<TcpStream>>) {
    let (mut balanced, mut translated) = (Vec::new(), Vec::new());
    for family in [4, 6] {
        let backend =
            |guest: &Guest| listen(guest, SocketAddr::new(guest.ip(family), BACKEND_PORT));
        let backends = [second, third].map(backend);
        balanced.extend((0..4).map(|_| Pair::connect(first, vip(family), &backends)));
        let server = SocketAddr::new(ip(SERVER, family), 443);
        translated.push(Pair::connect(first, server, &[listen(outside, server)]));
        let inside = listen(third, SocketAddr::new(third.ip(family), 443));
        let floating = SocketAddr::new(ip(FLOATING, family), 443);
        translated.push(Pair::connect(outside, floating, &[inside]));
    }
    (balanced, translated)
}

/// The properties of all established connections that must not change when they are restored.
fn established(control: &Path) -> BTreeSet<String> {
    let (rows, _) = connections(control, &["--state", "established"]);
    let kept = |row: &Value| {
        ["zone", "original", "reply", "mark", "label", "port", "assured"]
            .map(|field| row[field].to_string())
            .join(" ")
    };
    rows.iter().map(kept).collect()
}

#[test]
fn translated_connections_survive_a_killed_daemon() {
    require_root!();
    for datapath in Datapath::BOTH {
        let outside = outside();
        let setup = Setup::new("geneve").guests(2, 1).datapath(datapath).more(&services(&outside));
        let lab = Lab::new(setup);
        let mut daemons = lab.start_both();
        let guests = [&lab.guests[0], &lab.guests[1], &lab.guests[2]];
        lab.guests.iter().for_each(add_routes);
        let (mut balanced, mut translated) = open(guests, &outside);
        let mut exchange = || {
            let mut all = balanced.iter_mut().chain(&mut translated);
            assert!(all.all(|pair| pair.exchange(20_000)), "{datapath:?}");
        };
        exchange();
        for (host, daemon) in daemons.iter_mut().enumerate() {
            let before = established(&lab.control(host));
            assert!(before.len() >= 4, "{before:?}");
            daemon.signal(Signal::SIGKILL);
            daemon.wait_end(PATIENCE);
            *daemon = lab.start(host);
            daemon.wait_says(&format!("restored {} connections", before.len()));
            assert_eq!(established(&lab.control(host)), before, "{datapath:?}");
            if datapath == Datapath::User {
                // The restarted daemon has created new devices for the guests, which have no routes
                // yet.
                lab.guests.iter().filter(|guest| guest.host == host).for_each(add_routes);
            }
            exchange();
        }
        let saved = lab.control(0).with_extension("sock.connections");
        assert!(saved.exists());
        daemons.into_iter().for_each(Daemon::stop);
        assert!(!saved.exists(), "a daemon that ends leaves nothing behind");
    }
}

#[test]
fn network_file_has_load_balancers_and_address_translation() {
    require_root!();
    for datapath in Datapath::BOTH {
        let outside = outside();
        let setup = Setup::new("geneve").guests(2, 1).datapath(datapath).more(&services(&outside));
        let lab = Lab::new(setup);
        let daemons = lab.start_both();
        let [first, second, third] = &lab.guests[..] else { panic!("three guests") };
        lab.guests.iter().for_each(add_routes);
        for offloads in [true, false] {
            if !offloads {
                // Without offloads, the kernel of each guest verifies every checksum.
                let guests = lab.guests.iter().chain([&outside]);
                guests.for_each(|guest| carry_wire_frames(&guest.netns, GUEST_DEVICE));
            }
            for family in [4, 6] {
                assert_balanced([first, second, third], family);
                assert_balanced_by_router([first, third], &outside, family);
                exchange([first, &outside, third], family);
            }
        }
        assert_connections_are_shown([&lab.control(0), &lab.control(1)]);
        daemons.into_iter().for_each(Daemon::stop);
    }
}

#[test]
fn client_keeps_its_backend_until_the_affinity_ends() {
    require_root!();
    for datapath in Datapath::BOTH {
        let outside = outside();
        let text = services(&outside)
            .replace("protocol = \"tcp\"\n", "protocol = \"tcp\"\naffinity = 2\n");
        let setup = Setup::new("geneve").guests(2, 1).datapath(datapath).more(&text);
        let lab = Lab::new(setup);
        let daemons = lab.start_both();
        let [client, near, far] = &lab.guests[..] else { panic!("three guests") };
        lab.guests.iter().for_each(add_routes);
        let affinities = || reply(&lab.control(0), r#"{"command":"fdb"}"#)["affinities"].take();
        for family in [4, 6] {
            let _servers = [near, far].map(|guest| EchoServer::start(guest, family, BACKEND_PORT));
            let served = backends_of(client, vip(family), 12);
            assert_eq!(served.len(), 1, "{datapath:?} IPv{family}: {served:?}");
            let known = affinities();
            let row = known.as_array().and_then(|rows| rows.first()).expect("one client");
            assert_eq!(row["client"], client.ip(family).to_string(), "{known}");
            // After the affinity has expired, another backend may serve the client.
            let mut seen = served;
            for _ in 0..24 {
                if seen.len() > 1 {
                    break;
                }
                wait_until(PATIENCE, "the affinity ends", || affinities() == Value::Array(vec![]));
                seen.extend(backends_of(client, vip(family), 1));
            }
            assert_eq!(seen.len(), 2, "{datapath:?} IPv{family}: {seen:?}");
            wait_until(PATIENCE, "the affinity ends", || affinities() == Value::Array(vec![]));
        }
        daemons.into_iter().for_each(Daemon::stop);
    }
}

/// The length of a connection's stream. The first ones are long; for the others, only the backend
/// matters.
fn length(at: usize) -> usize {
    if at < 4 { STREAM } else { 100 }
}

fn assert_balanced(guests: [&Guest; 3], family: u8) {
    let backends = [guests[1], guests[2]];
    let _servers = backends.map(|guest| EchoServer::start(guest, family, BACKEND_PORT));
    for from in guests {
        let answers = (0..16).map(|at| traffic::tcp_echo(from, vip(family), length(at)));
        let answers: BTreeSet<Answer> = answers.collect();
        // A backend that connects to itself sees the virtual address as the source.
        let expected = backends.map(|by| Answer {
            server: by.name.clone(),
            client: if by.name == from.name { vip(family).ip() } else { from.ip(family) },
        });
        assert_eq!(answers, BTreeSet::from(expected), "{} IPv{family}", from.name);
    }
}

/// Checks that connections from outside reach both backends (`first` through a tunnel) and keep
/// their source address.
fn assert_balanced_by_router(backends: [&Guest; 2], outside: &Guest, family: u8) {
    let _servers = backends.map(|guest| EchoServer::start(guest, family, BACKEND_PORT));
    for vip in router_vips(family) {
        let answers = (0..16).map(|at| traffic::tcp_echo(outside, vip, length(at)));
        let answers: BTreeSet<Answer> = answers.collect();
        let client = ip(SERVER, family);
        let expected = backends.map(|by| Answer { server: by.name.clone(), client });
        assert_eq!(answers, BTreeSet::from(expected), "{vip}");
    }
}

/// The rows of `weft ct` with these options, and the totals.
fn connections(control: &Path, options: &[&str]) -> (Vec<Value>, Value) {
    let (code, out, stderr) = weft(control, &[&["ct", "--json"], options].concat());
    assert_eq!((code, stderr.as_str()), (0, ""), "{options:?}");
    let mut rows: Vec<Value> =
        out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let end = rows.pop().expect("the totals");
    (rows, end["totals"].clone())
}

/// Checks the list of connections on both hosts, after the guests have exchanged packets.
fn assert_connections_are_shown([near, far]: [&Path; 2]) {
    let balanced = ["--zone", "blue/g1", "--address", "10.9.9.9:80", "--state", "time_wait"];
    let (rows_to_vip, totals) = connections(near, &balanced);
    assert!(rows_to_vip.len() >= 16, "{rows_to_vip:?}");
    for row in &rows_to_vip {
        assert_eq!(row["destination_nat"], true, "{row}");
        assert_eq!((&row["protocol"], &row["port"]), (&"tcp".into(), &"g1".into()));
        let from = (&row["original"]["dst"], &row["reply"]["src_port"]);
        assert_eq!(from, (&"10.9.9.9".into(), &BACKEND_PORT.into()), "{row}");
    }
    assert!(totals["connections"].as_u64() >= Some(rows_to_vip.len() as u64), "{totals}");
    let (rows, _) = connections(far, &["--zone", "edge snat", "--protocol", "tcp"]);
    assert!(rows.iter().any(|row| row["reply"]["dst"] == OUTSIDE[0]), "{rows:?}");
    let (rows, _) = connections(near, &["--stats"]);
    let of_port = rows.iter().find(|row| row["what"] == "port" && row["name"] == "g1");
    assert!(of_port.is_some_and(|row| row["connections"].as_u64() > Some(0)), "{rows:?}");
    let (_, shown, _) = weft(near, &["show"]);
    assert!(shown.lines().any(|line| line.ends_with("of at most 1000000")), "{shown}");
    // Flushing removes only the connections that the options select.
    let flush = |options: &[&str]| weft(near, &[&["ct", "--flush"], options].concat());
    assert_eq!(flush(&[]).0, 2);
    // The addresses and ports in both directions identify exactly one connection.
    let end = |direction: &str, side: &str| {
        let ends = &rows_to_vip[0][direction];
        format!("{}:{}", ends[side].as_str().expect("an address"), ends[format!("{side}_port")])
    };
    let [src, dst] = ["src", "dst"].map(|side| end("original", side));
    let [reply_src, reply_dst] = ["src", "dst"].map(|side| end("reply", side));
    let tuple = ["--src", &src, "--dst", &dst, "--reply-src", &reply_src, "--protocol", "tcp"];
    let of_zone = [&tuple[..], &["--zone", "blue/g1", "--reply-dst", &reply_dst]].concat();
    let (rows, _) = connections(near, &of_zone);
    let both = |row: &Value| [row["original"].clone(), row["reply"].clone()];
    assert_eq!(rows.iter().map(both).collect::<Vec<_>>(), [both(&rows_to_vip[0])]);
    assert_eq!(flush(&[&of_zone[..], &["--dst", &src]].concat()).0, 2, "an option given twice");
    assert_eq!(flush(&["--src", &dst]).1, "removed 0 connections\n");
    assert_eq!(flush(&of_zone).1, "removed 1 connections\n");
    let (left, _) = connections(near, &balanced);
    assert_eq!(left.len() + 1, rows_to_vip.len());
    let (_, before) = connections(near, &[]);
    let followed = Watch::start(near, &[&["ct", "--follow", "--json"], &balanced[..]].concat());
    let next = || -> Value {
        let line = followed.lines.recv_timeout(PATIENCE).expect("it prints events");
        serde_json::from_str(&line).expect("JSON")
    };
    assert_eq!(next()["following"], left.len());
    let (_, stdout, _) = flush(&["--address", "10.9.9.9"]);
    assert!(stdout.starts_with("removed ") && !stdout.starts_with("removed 0 "), "{stdout}");
    let (rows, after) = connections(near, &["--address", "10.9.9.9"]);
    assert_eq!(rows, [Value::Null; 0]);
    for _ in &left {
        let event = next();
        let ended = (&event["event"], &event["connection"]["original"]["dst"]);
        assert_eq!(ended, (&"ended".into(), &"10.9.9.9".into()), "{event}");
    }
    let count = |totals: &Value| totals["connections"].as_u64().expect("a number");
    assert!(count(&after) > 0 && count(&after) < count(&before), "{before} {after}");
    for (option, value, fault) in [
        ("--zone", "nowhere", "there is no zone `nowhere`"),
        ("--port", "nobody", "nobody"),
        ("--address", "10.0.0", "`10.0.0` is no address"),
        ("--reply-dst", ":65536", "`:65536` is no address"),
        ("--protocol", "xyz", "unknown protocol `xyz`"),
        ("--state", "open", "unknown state `open`"),
    ] {
        let (code, _, stderr) = weft(near, &["ct", option, value]);
        assert!(code == 2 && stderr.contains(fault), "{option} {value}: {code} {stderr}");
    }
}

/// The source addresses of health checks in the switch `blue`.
const SOURCES: [&str; 2] = ["192.168.7.250", "fd77::fa"];

/// The network file text of [`services`], with health checks for all load balancers.
fn checked(outside: &Guest) -> String {
    services(outside)
        .lines()
        .map(|line| match line.starts_with("vip = ") {
            true => format!(
                "{line}\nhealth = {{ sources = {SOURCES:?}, interval = 1, timeout = 1, \
                 failures = 2 }}\n"
            ),
            false => format!("{line}\n"),
        })
        .collect()
}

/// Waits until a host's health checks of a backend have this result for all load balancers.
fn wait_status(control: &Path, backend: SocketAddr, status: &str) {
    wait_until(PATIENCE, &format!("{backend} is {status}"), || {
        let shown = reply(control, r#"{"command":"show"}"#);
        let rows = shown["health"]["backends"].as_array().expect("an array");
        let backend = Value::from(backend.to_string());
        let mut rows = rows.iter().filter(|row| row["backend"] == backend).peekable();
        rows.peek().is_some() && rows.all(|row| row["status"] == status)
    });
}

/// Waits until exactly these backends serve a client, so the host has applied the last change.
fn wait_served(client: &Guest, vip: SocketAddr, by: &[&Guest]) {
    let expected: BTreeSet<String> = by.iter().map(|guest| guest.name.clone()).collect();
    wait_accepted(client, vip);
    wait_until(PATIENCE, &format!("{vip} is served by {expected:?}"), || {
        backends_of(client, vip, 16) == expected
    });
}

#[test]
fn backend_gets_no_connections_while_its_health_checks_fail() {
    require_root!();
    for datapath in Datapath::BOTH {
        let outside = outside();
        let setup = Setup::new("geneve").guests(2, 1).datapath(datapath).more(&checked(&outside));
        let lab = Lab::new(setup);
        let daemons = lab.start_both();
        let [first, near, far] = &lab.guests[..] else { panic!("three guests") };
        lab.guests.iter().for_each(add_routes);
        // Both datapaths process health check packets in the same way for IPv4 and IPv6, so only
        // one of them is tested with both.
        for &family in if datapath == Datapath::Kernel { &[4, 6][..] } else { &[4] } {
            let backend = |guest: &Guest| SocketAddr::new(guest.ip(family), BACKEND_PORT);
            let serve = |guest: &Guest| EchoServer::start(guest, family, BACKEND_PORT);
            let _first = serve(first);
            for (stopped, other) in [(near, far), (far, near)] {
                let (server, _other) = (serve(stopped), serve(other));
                for guest in [near, far] {
                    // Both hosts check all backends.
                    wait_status(&lab.control(0), backend(guest), "online");
                    wait_status(&lab.control(1), backend(guest), "online");
                }
                wait_served(first, vip(family), &[near, far]);
                drop(server);
                // After the check has failed, all connections go to the other backend.
                wait_status(&lab.control(0), backend(stopped), "offline");
                wait_served(first, vip(family), &[other]);
                assert_eq!(
                    backends_of(first, vip(family), 16),
                    BTreeSet::from([other.name.clone()]),
                    "{datapath:?}"
                );
                let (_, shown, _) = weft(&lab.control(0), &["show"]);
                let row = format!(
                    "backend {}  load balancer web{family}  port {}  tcp offline: refused",
                    backend(stopped),
                    stopped.name
                );
                assert!(shown.lines().any(|line| line == row), "{shown}");
                // A reload keeps the results of health checks.
                daemons[0].signal(Signal::SIGHUP);
                assert_eq!(
                    backends_of(first, vip(family), 4),
                    BTreeSet::from([other.name.clone()])
                );
                let server = serve(stopped);
                wait_status(&lab.control(0), backend(stopped), "online");
                wait_served(first, vip(family), &[near, far]);
                drop(server);
            }
            // The router on `h2` distributes connections over `g1` and `g3`.
            let server = serve(far);
            wait_status(&lab.control(1), backend(first), "online");
            wait_status(&lab.control(1), backend(far), "online");
            wait_served(&outside, router_vips(family)[0], &[first, far]);
            drop(server);
            wait_status(&lab.control(1), backend(far), "offline");
            wait_served(&outside, router_vips(family)[0], &[first]);
        }
        daemons.into_iter().for_each(Daemon::stop);
    }
}

/// Runs an HTTP server that responds to each request with this status.
fn serve_http(guest: &Guest, address: SocketAddr, status: &Arc<AtomicU16>) {
    let listener = guest.netns.run(|| TcpListener::bind(address)).expect("a TCP listener");
    let status = Arc::downgrade(status);
    listener.set_nonblocking(true).expect("a listener can be made non-blocking");
    // The thread ends when all other owners of the status have been dropped.
    std::thread::spawn(move || {
        while let Some(status) = status.upgrade() {
            let Ok((mut stream, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            };
            stream.set_nonblocking(false).expect("a stream can be made blocking");
            stream.set_read_timeout(Some(Duration::from_secs(1))).expect("a time limit");
            let mut request = [0; 512];
            let len = stream.read(&mut request).unwrap_or(0);
            let status = match request[..len].starts_with(b"GET /healthy HTTP/1.0\r\n") {
                true => status.load(Ordering::Relaxed),
                false => 404,
            };
            let answer = format!("HTTP/1.0 {status} X\r\nContent-Length: 0\r\n\r\n");
            // Errors are ignored: the health check resets the connection when it has read the
            // status.
            let _ = stream.write_all(answer.as_bytes());
        }
    });
}

/// Health checks detect a closed UDP port by its ICMP error, and a failing HTTP backend by its
/// status. VXLAN and VLAN tags carry no logical ports.
#[test]
fn http_and_udp_backends_are_checked_through_a_tunnel_without_logical_ports() {
    require_root!();
    let balancer = |name: &str, protocol: &str, kind: &str, port: u16| {
        format!(
            "[[load_balancer]]\nname = \"{name}\"\nswitches = [\"blue\"]\n\
             protocol = \"{protocol}\"\nvip = \"10.9.9.9:{port}\"\n\
             backends = [\"192.168.7.1:{port}\", \"192.168.7.2:{port}\"]\n\
             health = {{ {kind}, sources = {SOURCES:?}, \
             interval = 1, timeout = 1, failures = 1 }}\n"
        )
    };
    let text = balancer("http", "tcp", "kind = \"http\", path = \"/healthy\"", 81)
        + &balancer("dns", "udp", "kind = \"udp\"", 82);
    for tunnel in ["vxlan", "vlan"] {
        check_http_and_udp(&Lab::new(Setup::new(tunnel).guests(1, 1).more(&text)));
    }
}

fn check_http_and_udp(lab: &Lab) {
    let daemons = lab.start_both();
    let (near, far) = lab.ends();
    let status = Arc::new(AtomicU16::new(200));
    for guest in [near, far] {
        serve_http(guest, SocketAddr::new(guest.ip(4), 81), &status);
    }
    let at = |guest: &Guest, port| SocketAddr::new(guest.ip(4), port);
    let both = |guest: &Guest, port, status: &str| {
        (0..2).for_each(|host| wait_status(&lab.control(host), at(guest, port), status));
    };
    for guest in [near, far] {
        both(guest, 81, "online");
        both(guest, 82, "offline");
        let address = at(guest, 82);
        let bound = guest.netns.run(|| UdpSocket::bind(address)).expect("a socket");
        both(guest, 82, "online");
        drop(bound);
        both(guest, 82, "offline");
    }
    status.store(503, Ordering::Relaxed);
    both(far, 81, "offline");
    let (_, shown, _) = weft(&lab.control(0), &["show"]);
    assert!(shown.contains("http offline: HTTP status 503"), "{shown}");
    status.store(301, Ordering::Relaxed);
    both(far, 81, "online");
    let shown = weft_json(&lab.control(0), &["show"]);
    assert!(shown["health"]["failures"].as_u64() > Some(0), "{shown}");
    daemons.into_iter().for_each(Daemon::stop);
}
