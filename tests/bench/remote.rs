//! Tests `weft-bench serve` and `weft-bench client` as processes on two hosts: how each ends when
//! the other dies, freezes or becomes unreachable.

use super::{WEFT_BENCH, run};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrIn};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;
use testkit::host::{TestHost, pair, wait_until};
use testkit::require_root;

const PORT: &str = "7070";
/// The limit is far above every timeout of the programs: the tests check that the programs end, not
/// when.
const LIMIT: Duration = Duration::from_secs(60);

/// Two hosts that are connected by a veth pair.
struct Hosts {
    near: TestHost,
    far: TestHost,
    far_ip: String,
    far_ip6: String,
    link: netdev::Ifindex,
}

/// A process that is killed when its test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn signal(&self, signal: &str) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until(LIMIT, "the end of a process", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

fn hosts() -> Hosts {
    let (near, far) = (TestHost::new("near"), TestHost::new("far"));
    let (_, end) = pair(&near, &far);
    let (far_ip, far_ip6) = (end.ip4.to_string(), end.ip6.to_string());
    Hosts { near, far, far_ip, far_ip6, link: end.index }
}

fn on(host: &TestHost, arguments: &[&str]) -> Command {
    let mut command = host.program(WEFT_BENCH);
    command.args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl Hosts {
    fn serve(&self, more: &[&str]) -> Running {
        let arguments = [&["serve", "--port", PORT], more].concat();
        let server = Running(on(&self.far, &arguments).stderr(Stdio::null()).spawn().unwrap());
        let at = format!("{}:{PORT}", self.far_ip).parse().unwrap();
        let near: &netdev::Netns = &self.near;
        wait_until(LIMIT, "a server", || {
            near.run_in(|| TcpStream::connect_timeout(&at, Duration::from_secs(1)).is_ok()).unwrap()
        });
        server
    }

    fn client(&self, more: &[&str]) -> Output {
        let arguments = [&["client", &self.far_ip, "--port", PORT], more].concat();
        on(&self.near, &arguments).output().unwrap()
    }

    /// Runs a client, and calls `what` during the run to disturb its server. Returns the exit code
    /// and the standard error of the client.
    fn disturbed(
        &self,
        pattern: &str,
        server: &mut Running,
        what: fn(&Self, &mut Running),
    ) -> (i32, String) {
        let arguments =
            ["client", &self.far_ip, "--port", PORT, "--pattern", pattern, "--seconds", "2"];
        let mut client = Running(on(&self.near, &arguments).spawn().unwrap());
        // By then, all connections of the client are established.
        std::thread::sleep(Duration::from_millis(500));
        what(self, server);
        let code = client.wait().code().expect("it ends by itself");
        let mut stderr = String::new();
        client.0.stderr.as_mut().unwrap().read_to_string(&mut stderr).unwrap();
        (code, stderr)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn every_pattern_is_measured_when_two_hosts_are_joined() {
    require_root!();
    let hosts = hosts();
    let _server = hosts.serve(&[]);
    for (pattern, figure) in [
        ("tcp_stream", "gbps"),
        ("tcp_reverse", "gbps"),
        ("tcp_bidirec", "gbps"),
        ("tcp_rr", "transactions_per_second"),
        ("tcp_crr", "transactions_per_second"),
        ("udp_rr", "transactions_per_second"),
        ("udp_stream", "received_per_second"),
    ] {
        for address in [&hosts.far_ip, &hosts.far_ip6] {
            let output = on(
                &hosts.near,
                &[
                    "client",
                    address,
                    "--pattern",
                    pattern,
                    "--connections",
                    "3",
                    "--seconds",
                    "0.1",
                    "--json",
                ],
            )
            .output()
            .unwrap();
            assert!(output.status.success(), "{pattern}: {}", text(&output.stderr));
            let result: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert!(result[figure].as_f64() > Some(0.0), "{pattern} to {address}: {result}");
        }
    }
}

#[test]
fn client_fails_with_a_reason_when_its_server_dies() {
    require_root!();
    let hosts = hosts();
    for pattern in ["tcp_stream", "tcp_rr", "tcp_crr", "udp_rr", "udp_stream"] {
        let mut server = hosts.serve(&[]);
        let kill = |_: &Hosts, server: &mut Running| server.signal("-KILL");
        let (code, stderr) = hosts.disturbed(pattern, &mut server, kill);
        assert_eq!(code, 1, "{pattern}: {stderr}");
        assert!(
            stderr.starts_with("weft-bench: ") && stderr.lines().count() == 1,
            "{pattern}: {stderr}"
        );
    }
}

#[test]
fn client_ends_with_a_reason_when_its_server_freezes_or_the_path_breaks() {
    require_root!();
    let hosts = hosts();
    for pattern in ["tcp_stream", "tcp_rr", "udp_rr", "udp_stream"] {
        let mut server = hosts.serve(&[]);
        let stop = |_: &Hosts, server: &mut Running| server.signal("-STOP");
        let (code, stderr) = hosts.disturbed(pattern, &mut server, stop);
        assert_eq!(code, 1, "{pattern}: {stderr}");
        assert!(stderr.starts_with("weft-bench: "), "{pattern}: {stderr}");
    }
    let mut server = hosts.serve(&[]);
    let cut = |hosts: &Hosts, _: &mut Running| hosts.far.netlink().set_down(hosts.link).unwrap();
    let (code, stderr) = hosts.disturbed("tcp_rr", &mut server, cut);
    assert_eq!(code, 1, "{stderr}");
}

#[test]
fn server_serves_the_next_when_a_client_dies() {
    require_root!();
    let hosts = hosts();
    let _server = hosts.serve(&[]);
    for pattern in ["tcp_bidirec", "tcp_crr", "udp_rr"] {
        let arguments = [
            "client",
            &hosts.far_ip,
            "--pattern",
            pattern,
            "--connections",
            "100",
            "--seconds",
            "20",
        ];
        let mut client = Running(on(&hosts.near, &arguments).spawn().unwrap());
        std::thread::sleep(Duration::from_millis(400));
        client.0.kill().unwrap();
        client.wait();
        let output = hosts.client(&["--pattern", pattern, "--seconds", "0.1"]);
        assert!(output.status.success(), "{pattern}: {}", text(&output.stderr));
    }
}

#[test]
fn more_connections_than_a_server_takes_are_refused_with_the_number() {
    require_root!();
    netdev::limits::raise_open_files().unwrap();
    let hosts = hosts();
    let _server = hosts.serve(&[]);
    let at: SocketAddr = format!("{}:{PORT}", hosts.far_ip).parse().unwrap();
    let near: &netdev::Netns = &hosts.near;
    // These clients send a request and never start the traffic.
    let idle = |_| {
        let mut stream = TcpStream::connect_timeout(&at, LIMIT).unwrap();
        stream.write_all(b"weft-bench 2 tcp_rr 1 0\n").unwrap();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, *b"ok 0\n");
        stream
    };
    let _idle: Vec<_> = near.run_in(|| (0..1300).map(idle).collect()).unwrap();
    let output = hosts.client(&["--pattern", "tcp_rr", "--seconds", "0.1"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("refused the connection: 1300 connections are open"), "{stderr}");
}

#[test]
fn both_ends_work_when_there_is_one_processor() {
    require_root!();
    let hosts = hosts();
    let one = |host: &TestHost, arguments: &[&str]| {
        let mut command = host.program("taskset");
        command.args(["-c", "0", WEFT_BENCH]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        command
    };
    let _server = Running(one(&hosts.far, &["serve"]).spawn().unwrap());
    wait_until(LIMIT, "a measurement", || {
        let arguments = [
            "client",
            &hosts.far_ip,
            "--pattern",
            "udp_rr",
            "--connections",
            "4",
            "--seconds",
            "0.3",
            "--cpu",
            "0",
        ];
        one(&hosts.near, &arguments).status().unwrap().success()
    });
}

#[test]
fn processor_that_is_not_there_is_bad_input() {
    for arguments in [&["serve", "--cpu", "1000"][..], &["client", "::1", "--cpu", "1000"]] {
        let output = Command::new(Path::new(WEFT_BENCH)).args(arguments).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("CPU 1000"), "{stderr}");
    }
}

#[test]
fn client_says_what_is_wrong_when_nobody_serves() {
    // The port is listening, but nobody accepts the connection or responds. The client must not
    // wait forever.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port().to_string();
    let (code, _, error) = run(&["client", "127.0.0.1", "--port", &port, "--seconds", "1"]);
    assert_eq!(code, 1);
    assert!(!error.is_empty());
    // The port is bound, so that no other test gets it. It is not listening, so that the kernel
    // refuses connections.
    let (_taken, port) = bound_without_listening();
    let (code, _, error) =
        run(&["client", "127.0.0.1", "--port", &port.to_string(), "--seconds", "1"]);
    assert_eq!(code, 1);
    assert!(error.contains("refused"), "{error}");
}

/// A TCP socket that is bound to a free port of 127.0.0.1, and that port.
fn bound_without_listening() -> (OwnedFd, u16) {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket::socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
    socket::bind(socket.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
    let address: SockaddrIn = socket::getsockname(socket.as_raw_fd()).unwrap();
    (socket, address.port())
}

#[test]
fn port_in_use_is_named_when_serve_starts() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (code, _, error) = run(&["serve", "--address", "127.0.0.1", "--port", &port]);
    assert_eq!(code, 1);
    assert!(error.contains(&port) && error.contains("in use"), "{error}");
}
