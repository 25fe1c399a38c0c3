//! Access control lists that allow related packets: connections that guests may open, and what
//! belongs to them.

use crate::common::{Daemon, Datapath, Lab, PATIENCE, Setup, traffic};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use testkit::host::wait_until;
use testkit::require_root;

/// `g1` may open connections to `g2`, and nobody may open one to `g1`.
const LISTS: &str = "[[acl]]\nswitch = \"blue\"\ndirection = \"to-port\"\npriority = 1000\n\
                     match = 'outport == \"g2\" && ip'\naction = \"allow-related\"\n\
                     [[acl]]\nswitch = \"blue\"\ndirection = \"to-port\"\npriority = 900\n\
                     match = 'ip'\naction = \"drop\"\n";
const MEGABYTE: usize = 1 << 20;
/// How long a connection that must not be opened is tried.
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

            // The error about a datagram to a closed port is related to it.
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
            let kind = opened.expect_err("nobody may connect to g1").kind();
            assert_eq!(kind, ErrorKind::TimedOut, "{datapath:?} IPv{family}");
            wait_until(PATIENCE, "the refused segments are counted", || {
                daemons[0].drops().get("flow_drop").is_some_and(|&count| count > before)
            });
        }
        // What was opened before is not affected by what was refused.
        traffic::tcp(near, far, 4, MEGABYTE);
        daemons.into_iter().for_each(Daemon::stop);
    }
}
