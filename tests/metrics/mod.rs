//! Tests the metrics of a running daemon: they equal the output of the commands, Prometheus accepts
//! them, and no client disturbs the daemon.

mod board;
mod prometheus;

use crate::commands::call::weft_json;
use crate::common::daemon::{MEGAFLOWS, WEFT};
use crate::common::frames::{FrameSocket, frame};
use crate::common::{Daemon, Datapath, GUEST_DEVICE, Lab, PATIENCE, Setup, traffic};
use datapath::stats::PortStats;
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use testkit::host::{TestHost, wait_until};
use testkit::require_root;

/// The TCP address at which daemons serve metrics.
const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9478);
const SCRAPE: &str = "GET /metrics HTTP/1.1\r\nHost: weft\r\n\r\n";
const OPEN_METRICS: &str = "GET /metrics HTTP/1.1\r\nHost: weft\r\n\
     Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n\r\n";
/// The number of clients that are served at the same time.
const MAX_CLIENTS: usize = 4;

/// A response: its status, its head and its body.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

/// Sends a request, and reads the response until the connection ends.
fn ask(mut stream: impl Read + Write, request: &[u8]) -> Answer {
    stream.write_all(request).expect("a request is sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer in UTF-8");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    // The header Content-Length may be absent: Prometheus omits it for a long response.
    assert!(length.is_none_or(|length| length.parse() == Ok(body.len())), "{head}");
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

/// Connects to a TCP address on a host.
fn connect(host: &TestHost, address: SocketAddr) -> TcpStream {
    let stream = host.run(|| TcpStream::connect(address)).expect("the daemon listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket has timeouts");
    stream
}

fn connect_unix(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).expect("the daemon listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket has timeouts");
    stream
}

/// The samples in the text format, by name with labels.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        (name.to_owned(), value.parse().expect("a number"))
    };
    lines.map(sample).collect()
}

/// The samples that a daemon serves at a Unix socket.
pub fn scrape(path: &Path) -> BTreeMap<String, f64> {
    let answer = ask(connect_unix(path), SCRAPE.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.head);
    samples(&answer.body)
}

/// Sends frames, of which some are dropped, until the daemon has counted them.
fn send_and_drop(lab: &Lab, daemon: &Daemon) {
    let (near, far) = lab.ends();
    traffic::ping(&near.netns, far.ip(4));
    let socket = FrameSocket::open(&near.netns, GUEST_DEVICE);
    (0..7).for_each(|_| socket.send(&frame(far.mac, near.mac, 0x0800, b"no IP")));
    wait_until(PATIENCE, "malformed frames are counted", || {
        daemon.drops().get("malformed") == Some(&7)
    });
}

#[test]
fn metrics_are_what_the_commands_show() {
    require_root!();
    for datapath in Datapath::BOTH {
        let lab = Lab::new(Setup::new("geneve").datapath(datapath).guests(2, 1));
        let path = lab.dir.path().join("metrics");
        let unix = format!("unix:{}", path.display());
        let daemons = [lab.start_with(0, &["--metrics", &unix]), lab.start(1)];
        let mode = fs::metadata(&path).expect("a socket").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        send_and_drop(&lab, &daemons[0]);
        // Guests send packets by themselves, so counters may grow between two requests. Then both
        // are repeated.
        let mut found = None;
        wait_until(PATIENCE, "nothing is counted between two questions", || {
            let before = daemons[0].show();
            let answer = ask(connect_unix(&path), SCRAPE.as_bytes());
            assert_eq!(answer.status, 200, "{}", answer.head);
            assert!(answer.head.contains("\r\nContent-Length: "), "{}", answer.head);
            let is_same = before.ports == daemons[0].show().ports;
            found = is_same.then_some((before, samples(&answer.body)));
            found.is_some()
        });
        let (shown, samples) = found.expect("it is set when the condition holds");
        let value = |name: &str| *samples.get(name).unwrap_or_else(|| panic!("no {name}"));
        for PortStats { name, rx, tx, drops, .. } in &shown.ports {
            let of = |what: &str| value(&format!("weft_port_{what}{{port=\"{name}\"}}"));
            assert_eq!(of("up"), 1.0);
            assert_eq!(of("receive_packets_total"), rx.packets as f64);
            assert_eq!(of("receive_bytes_total"), rx.bytes as f64);
            assert_eq!(of("transmit_packets_total"), tx.packets as f64);
            assert_eq!(of("transmit_bytes_total"), tx.bytes as f64);
            let of_port = format!("weft_port_drops_total{{port=\"{name}\",");
            assert_eq!(samples.keys().filter(|key| key.starts_with(&of_port)).count(), drops.len());
            for (reason, count) in drops {
                assert_eq!(value(&format!("{of_port}reason=\"{reason}\"}}")), *count as f64);
            }
        }
        assert_eq!(value("weft_drops_total{reason=\"malformed\"}"), 7.0);
        let of_daemon = format!(
            "weft_daemon_info{{host=\"h1\",datapath=\"{}\",control_plane=\"file\"}}",
            datapath.name()
        );
        assert_eq!(value(&of_daemon), 1.0);
        let tunnels = weft_json(&lab.control(0), &["tunnels"]);
        assert_eq!(tunnels["endpoints"][0]["host"], "h2");
        let sent = samples.keys().filter(|key| {
            key.starts_with("weft_endpoint_transmit_packets_total{tunnel=\"geneve\",host=\"h2\",")
        });
        assert_eq!(sent.count(), 1);
        assert!(value("weft_upcalls_total") >= 2.0);
        assert_eq!(value("weft_upcall_latency_seconds_count"), value("weft_upcalls_total"));
        assert!(value("weft_upcall_latency_seconds_sum") >= value("weft_upcall_wait_seconds_sum"));
        assert_eq!(value("weft_upcall_queue_port_limit_packets"), 512.0);
        let ports = "weft_bpf_map_entries{map=\"weft_ports\"}";
        assert_eq!(
            samples.get(ports).copied(),
            (datapath == Datapath::Kernel).then_some(2.0),
            "the kernel datapath has maps"
        );
        let answer = ask(connect_unix(&path), OPEN_METRICS.as_bytes());
        assert!(answer.head.contains("application/openmetrics-text; version=1.0.0"));
        assert!(answer.body.ends_with("\n# EOF\n"));
        daemons.into_iter().for_each(Daemon::stop);
        assert!(!path.exists(), "the daemon removes its socket");
    }
}

#[test]
fn requests_that_are_wrong_slow_or_too_many_disturb_nobody() {
    require_root!();
    let lab = Lab::new(Setup::new("vxlan"));
    let daemon = lab.start_with(0, &["--metrics", "127.0.0.1:9478"]);
    let host = &lab.hosts[0].netns;
    let status = |request: &[u8]| ask(connect(host, ADDRESS), request).status;
    for (request, expected) in [
        (SCRAPE.as_bytes(), 200),
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
        (b"\r\n\r\n", 400),
        (b"GET /metrics HTTP/3.0\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400),
        (&[0xff; 8192], 431),
        (b"GET /metrics HTTP/1.1\r\nHost: x", 408),
        (&b"x".repeat(8192), 431),
    ] {
        let shown = String::from_utf8_lossy(&request[..request.len().min(40)]);
        assert_eq!(status(request), expected, "{shown:?}");
    }
    // A client that disconnects without a request.
    drop(connect(host, ADDRESS));
    let mut silent = Vec::new();
    // On a busy machine, the first clients may time out before the last one has connected.
    wait_until(PATIENCE, "a client too many is refused", || {
        silent = (0..MAX_CLIENTS).map(|_| connect(host, ADDRESS)).collect();
        let refused = ask(connect(host, ADDRESS), SCRAPE.as_bytes());
        let is_refused = refused.status == 503;
        assert!(!is_refused || refused.body == "the daemon is busy: try again later\n");
        is_refused
    });
    assert_eq!(daemon.show().ports.len(), 1, "the control socket does not wait for them");
    silent.pop();
    wait_until(PATIENCE, "a client is served in place of one that has gone", || {
        status(SCRAPE.as_bytes()) == 200
    });
    drop(silent);
    // Clients that do not read their responses.
    let idle_clients: Vec<_> = (1..MAX_CLIENTS)
        .map(|_| {
            let mut stream = connect(host, ADDRESS);
            stream.write_all(SCRAPE.as_bytes()).expect("a request is sent");
            stream
        })
        .collect();
    wait_until(PATIENCE, "others are served", || status(SCRAPE.as_bytes()) == 200);
    drop(idle_clients);
    daemon.stop();
}

#[test]
fn daemon_does_not_start_when_it_cannot_serve_metrics() {
    require_root!();
    let lab = Lab::new(Setup::new("vxlan"));
    let host = &lab.hosts[0].netns;
    let _taken = host.run(|| TcpListener::bind(ADDRESS)).expect("an address");
    let file = lab.dir.path().join("file");
    fs::write(&file, "text").expect("a file can be written");
    let of_file = format!("unix:{}", file.display());
    // Exit code 1: the address may become available later, so a service manager should retry.
    for (metrics, code, reason) in [
        ("127.0.0.1:9478", 1, "cannot serve metrics at 127.0.0.1:9478: choose another address"),
        ("192.0.2.77:9478", 1, "cannot serve metrics at 192.0.2.77:9478"),
        (&of_file, 2, "the file exists and is not a socket; name another with --metrics"),
        ("9478", 2, "write ADDRESS:PORT, such as 127.0.0.1:9478"),
        ("unix:", 2, "there is no path behind `unix:`"),
    ] {
        let mut command = host.program(WEFT);
        command.args(["run", "--host", "h1", "--metrics", metrics]).args(MEGAFLOWS);
        let output = command.arg("--control").arg(lab.control(0)).arg(lab.network_file()).output();
        let output = output.expect("weft can be started");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.contains(reason), "{stderr}");
    }
    assert_eq!(fs::read_to_string(&file).expect("the file stays"), "text");
}

#[test]
fn next_daemon_replaces_the_socket_that_a_killed_one_left() {
    require_root!();
    let lab = Lab::new(Setup::new("vxlan"));
    let path = lab.dir.path().join("metrics");
    let unix = format!("unix:{}", path.display());
    let mut killed = lab.start_with(0, &["--metrics", &unix]);
    killed.signal(Signal::SIGKILL);
    killed.wait_end(PATIENCE);
    assert!(path.exists());
    let daemon = lab.start_with(0, &["--metrics", &unix, "--view-group", "nogroup"]);
    assert_eq!(ask(connect_unix(&path), SCRAPE.as_bytes()).status, 200);
    let mode = fs::metadata(&path).expect("a socket").permissions().mode() & 0o777;
    assert_eq!(mode, 0o660, "the group may read metrics");
    daemon.stop();
}
