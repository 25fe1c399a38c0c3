//! Tests access control lists with `allow-related`: connections that guests may open, and packets
//! that are related to them.

use crate::common::daemon::WEFT;
use crate::common::{Daemon, Datapath, Lab, PATIENCE, Setup, traffic};
use bench::traffic::blast::{Blast, Pace};
use bench::traffic::frames::{Frame, socket_in};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;
use testkit::host::wait_until;
use testkit::require_root;

/// ACLs: `g1` may open connections to `g2`, and no guest may open one to `g1`.
const LISTS: &str = "[[acl]]\nswitch = \"blue\"\ndirection = \"to-port\"\npriority = 1000\n\
                     match = 'outport == \"g2\" && ip'\naction = \"allow-related\"\n\
                     [[acl]]\nswitch = \"blue\"\ndirection = \"to-port\"\npriority = 900\n\
                     match = 'ip'\naction = \"drop\"\n";
const MEGABYTE: usize = 1 << 20;
/// How long the test waits for a connection that must not be established.
const REFUSED: Duration = Duration::from_millis(1500);

#[test]
fn guest_opens_connections_and_gets_what_belongs_to_them_when_an_acl_allows_related_packets() {
    require_root!();
    for datapath in Datapath::BOTH {
        let lab = Lab::new(Setup::new("geneve").datapath(datapath).more(LISTS));
        let daemons = lab.start_both();
        let (near, far) = lab.ends();
        for family in [4, 6] {
            traffic::ping(&near.netns, far.ip(family));
            traffic::tcp(near, far, family, MEGABYTE);
            [1, 1300].iter().for_each(|&len| traffic::udp_echo(near, far, family, len));

            // The ICMP error about a datagram to a closed port is related to the datagram's
            // connection.
            let socket = traffic::udp_socket(near, family);
            let closed = SocketAddr::new(far.ip(family), 9);
            socket.connect(closed).expect("a socket can be connected");
            socket.set_read_timeout(Some(PATIENCE)).expect("a socket has a timeout");
            socket.send(b"to a closed port").expect("a datagram is sent");
            let error = socket.recv(&mut [0; 16]).expect_err("nobody answers");
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{datapath:?} IPv{family}");

            let before = daemons[0].drops().get("flow_drop").copied().unwrap_or_default();
            let ip = near.ip(family);
            let listener = near.netns.run(|| TcpListener::bind((ip, 0)));
            let address = listener.and_then(|it| Ok((it.local_addr()?, it)));
            let (address, _listener) = address.expect("a TCP listener");
            let opened = far.netns.run(|| TcpStream::connect_timeout(&address, REFUSED));
            let kind = opened.expect_err("no guest may connect to g1").kind();
            assert_eq!(kind, ErrorKind::TimedOut, "{datapath:?} IPv{family}");
            wait_until(PATIENCE, "the refused segments are counted", || {
                daemons[0].drops().get("flow_drop").is_some_and(|&count| count > before)
            });
        }
        // Connections that were opened before are not affected by refused ones.
        traffic::tcp(near, far, 4, MEGABYTE);
        daemons.into_iter().for_each(Daemon::stop);
    }
}

/// Allows and tracks all connections. A port may open a thousand.
const FEW: &str = "[[acl]]\nswitch = \"blue\"\ndirection = \"from-port\"\npriority = 1000\n\
                   match = 'ip'\naction = \"allow-related\"\n\
                   [connections]\nper_port = 1000\n";
const PER_PORT: u64 = 1000;

/// The number of connections that were opened by packets from the first guest of `h1`.
fn connections_of_first_port(lab: &Lab) -> u64 {
    let mut command = Command::new(WEFT);
    command.args(["ct", "--stats", "--json", "--control"]).arg(lab.control(0));
    let output = command.output().expect("weft can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut rows =
        text.lines().map(|row| -> serde_json::Value { serde_json::from_str(row).expect("JSON") });
    rows.find(|row| row["what"] == "port" && row["name"] == "g1")
        .and_then(|row| row["connections"].as_u64())
        .unwrap_or(0)
}

#[test]
fn other_guest_opens_connections_when_one_floods_the_switch_with_syns() {
    require_root!();
    for datapath in Datapath::BOTH {
        let lab = Lab::new(Setup::new("geneve").guests(2, 1).datapath(datapath).more(FEW));
        let daemons = lab.start_both();
        let (flooding, far) = lab.ends();
        let other = lab.guests_of(0).nth(1).expect("the first host has two guests");
        traffic::ping(&other.netns, far.ip(4));
        // Each SYN has another source address. The receiver has no route to it, so it does not
        // reply.
        let target = far.ip4;
        let change = move |number: u64, bytes: &mut [u8]| {
            let mut frame = Frame::of(bytes);
            let source = Ipv4Addr::new(10, 66, (number >> 8) as u8, number as u8);
            frame.set_addresses(source, target);
            frame.set_ports(1024 + (number >> 16) as u16, 9);
        };
        let template = Frame::syn_template((flooding.mac, flooding.ip4), (far.mac, far.ip4));
        let socket = socket_in(&flooding.netns).expect("the guest has its device");
        let flood = Blast::start(socket, template, change, Pace::PerSecond(3000.0), None)
            .expect("a thread can be started");
        wait_until(PATIENCE, "SYNs are refused", || {
            daemons[0].drops().get("ct_port_limit").is_some_and(|&count| count > 100)
        });
        for _ in 0..20 {
            traffic::tcp(other, far, 4, 1000);
            let opened = connections_of_first_port(&lab);
            assert!((PER_PORT / 4..=PER_PORT).contains(&opened), "{datapath:?}: {opened}");
        }
        assert!(flood.finish() > PER_PORT, "{datapath:?}");
        daemons.into_iter().for_each(Daemon::stop);
    }
}
